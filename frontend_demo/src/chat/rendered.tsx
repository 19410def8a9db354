/** Markdown as models write it. Raw HTML stays text, images are not fetched, links open outside. */

import { Component, isValidElement, memo, useEffect, useMemo, useState, type ReactNode } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import CodeBlock from "./CodeBlock";
import type { Plugins } from "./formulas";
import { mayHoldMath, withDollars } from "./math";
import { nextStep, piecesOf, type Piece } from "./pieces";
import { PlainPart } from "./Plain";

const components: Components = {
  a: ({ href, children }) => <a href={href} target="_blank" rel="noreferrer noopener">{children}</a>,
  img: ({ alt, src }) => <a href={typeof src === "string" ? src : undefined} target="_blank" rel="noreferrer noopener">{alt || "image"}</a>,
  input: ({ checked }) => <input type="checkbox" disabled checked={checked === true} aria-label={checked ? "Done" : "Not done"} />,
  table: ({ children }) => <div className="table" tabIndex={0} role="region" aria-label="Table"><table>{children}</table></div>,
  pre: ({ children }) => <CodeBlock code={plain(children).replace(/\n$/, "")} language={languageOf(children)} />,
};
const plugins = [remarkGfm];

/** Work of one step, between which the page takes input: as much as most answers have, which are shown at once. */
const STEP = 8_000;

export default memo(function Rendered({ text }: { text: string }) {
  const pieces = useMemo(() => piecesOf(text), [text]);
  const formulas = useFormulas(pieces);
  // with formulas everything is parsed anew, again in steps
  return <Pieces key={formulas ? "formulas" : "words"} pieces={pieces} formulas={formulas} />;
});

/** A step of work at each rendering; what has not had its turn is shown as it was written. */
function Pieces({ pieces, formulas }: { pieces: readonly Piece[]; formulas: Plugins | null }) {
  const [shown, setShown] = useState(0);
  const next = nextStep(pieces, shown, STEP);
  useEffect(() => {
    if (next <= shown) return;
    const timer = setTimeout(() => setShown(next));
    return () => clearTimeout(timer);
  }, [next, shown]);
  const cut = pieces.some(({ kind }) => kind === "plain");
  return (
    <>
      {cut && <p className="note piece" role="note">This answer is too long or too nested to be formatted as a whole. Parts of it are shown as they were written.</p>}
      {pieces.map((piece, index) => (
        <div key={index} className="piece">
          {index < next && piece.kind !== "plain" ? <Shown kind={piece.kind} text={piece.text} language={piece.language} formulas={formulas} /> : <PlainPart text={piece.text} />}
        </div>
      ))}
    </>
  );
}

interface ShownProps {
  kind: Piece["kind"];
  text: string;
  language: string;
  formulas: Plugins | null;
}

const Shown = memo(function Shown({ kind, text, language, formulas }: ShownProps) {
  if (kind === "code") return <CodeBlock code={text} language={language} />;
  return <Readable text={text}><Formatted text={text} formulas={formulas} /></Readable>;
});

function Formatted({ text, formulas }: { text: string; formulas: Plugins | null }) {
  const remark = formulas ? [...plugins, ...formulas.remarkPlugins] : plugins;
  return <ReactMarkdown remarkPlugins={remark} rehypePlugins={formulas?.rehypePlugins ?? null} components={components}>{formulas ? withDollars(text) : text}</ReactMarkdown>;
}

/** The text as it was written, where its renderer fails. */
class Readable extends Component<{ text: string; children: ReactNode }, { failed: boolean }> {
  override state = { failed: false };

  static getDerivedStateFromError(): { failed: boolean } {
    return { failed: true };
  }

  override render(): ReactNode {
    return this.state.failed ? <PlainPart text={this.props.text} /> : this.props.children;
  }
}

let fetched: Plugins | null = null;

/** The plugins for formulas, once a piece needs them and they are there; null before that. */
function useFormulas(pieces: readonly Piece[]): Plugins | null {
  const needed = useMemo(() => pieces.some(({ kind, text }) => kind === "markdown" && mayHoldMath(text)), [pieces]);
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
