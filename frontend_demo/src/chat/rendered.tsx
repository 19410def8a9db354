/** Markdown as models write it. Raw HTML stays text, images are not fetched, links open outside. */

import { isValidElement, memo, useEffect, useMemo, useState, type ReactNode } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import CodeBlock from "./CodeBlock";
import type { Plugins } from "./formulas";
import { mayHoldMath, withDollars } from "./math";

const components: Components = {
  a: ({ href, children }) => <a href={href} target="_blank" rel="noreferrer noopener">{children}</a>,
  img: ({ alt, src }) => <a href={typeof src === "string" ? src : undefined} target="_blank" rel="noreferrer noopener">{alt || "image"}</a>,
  input: ({ checked }) => <input type="checkbox" disabled checked={checked === true} aria-label={checked ? "Done" : "Not done"} />,
  table: ({ children }) => <div className="table" tabIndex={0} role="region" aria-label="Table"><table>{children}</table></div>,
  pre: ({ children }) => <CodeBlock code={plain(children).replace(/\n$/, "")} language={languageOf(children)} />,
};
const plugins = [remarkGfm];

export default memo(function Rendered({ text }: { text: string }) {
  const formulas = useFormulas(text);
  const remark = useMemo(() => [...plugins, ...(formulas?.remarkPlugins ?? [])], [formulas]);
  return <ReactMarkdown remarkPlugins={remark} rehypePlugins={formulas?.rehypePlugins ?? null} components={components}>{formulas ? withDollars(text) : text}</ReactMarkdown>;
});

let fetched: Plugins | null = null;

/** The plugins for formulas, once this text needs them and they are there; null before that. */
function useFormulas(text: string): Plugins | null {
  const needed = useMemo(() => mayHoldMath(text), [text]);
  const [found, setFound] = useState<Plugins | null>(fetched);
  useEffect(() => {
    if (!needed || found) return;
    let current = true;
    import("./formulas").then(({ plugins }) => {
      fetched = plugins;
      if (current) setFound(plugins);
    }, () => undefined); // without a network the formula is still to be read
    return () => {
      current = false;
    };
  }, [needed, found]);
  return needed ? found : null;
}

function languageOf(node: ReactNode): string {
  const code = Array.isArray(node) ? node.find(isValidElement) : node;
  if (!isValidElement<{ className?: string }>(code)) return "";
  return /language-(\S+)/.exec(code.props.className ?? "")?.[1] ?? "";
}

function plain(node: ReactNode): string {
  if (typeof node === "string" || typeof node === "number") return String(node);
  if (Array.isArray(node)) return node.map(plain).join("");
  if (node && typeof node === "object" && "props" in node) return plain((node.props as { children?: ReactNode }).children);
  return "";
}
