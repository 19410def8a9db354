import { Icon } from "../ui/icons";
import type { ToolProps } from "./status";
import { Status } from "./ToolCard";

/** The document itself is in the pane; the conversation only says so. */
export function DocumentCard({ args, status, onOpen }: ToolProps & { onOpen: () => void }) {
  const text = typeof args.document === "string" ? args.document : "";
  const words = text.split(/\s+/).filter(Boolean).length;
  return (
    <section className="tool" aria-label="Document">
      <div className="head">
        <Icon name="document" className="kind" />
        <span className="name">{/^#\s+(.+)$/m.exec(text)?.[1] ?? "Document"}</span>
        <span className="brief">{words} {words === 1 ? "word" : "words"}</span>
        <Status status={status} />
        <button className="button small" onClick={onOpen}>Open</button>
      </div>
    </section>
  );
}
