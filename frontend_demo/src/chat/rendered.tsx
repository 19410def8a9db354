/** Markdown as models write it. Raw HTML stays text, images are not fetched, links open outside. */

import { memo, type ReactNode } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { Copy } from "../ui/copy";

const components: Components = {
  a: ({ href, children }) => <a href={href} target="_blank" rel="noreferrer noopener">{children}</a>,
  img: ({ alt, src }) => <a href={typeof src === "string" ? src : undefined} target="_blank" rel="noreferrer noopener">{alt || "image"}</a>,
  input: ({ checked }) => <input type="checkbox" disabled checked={checked === true} aria-label={checked ? "Done" : "Not done"} />,
  table: ({ children }) => <div className="table" tabIndex={0} role="region" aria-label="Table"><table>{children}</table></div>,
  pre: ({ children }) => (
    <div className="code-block">
      <pre tabIndex={0}>{children}</pre>
      <Copy text={plain(children).replace(/\n$/, "")} label="Copy code" />
    </div>
  ),
};
const plugins = [remarkGfm];

export default memo(function Rendered({ text }: { text: string }) {
  return <ReactMarkdown remarkPlugins={plugins} components={components}>{text}</ReactMarkdown>;
});

function plain(node: ReactNode): string {
  if (typeof node === "string" || typeof node === "number") return String(node);
  if (Array.isArray(node)) return node.map(plain).join("");
  if (node && typeof node === "object" && "props" in node) return plain((node.props as { children?: ReactNode }).children);
  return "";
}
