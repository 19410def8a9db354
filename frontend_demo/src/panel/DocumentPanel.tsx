/** The document that the model writes, shown while it writes it, and editable afterwards. */

import { useState } from "react";
import { Markdown } from "../chat/Markdown";
import { Copy } from "../ui/copy";
import { Icon } from "../ui/icons";

interface Props {
  text: string;
  writing: boolean;
  onEdit: (text: string) => void;
}

export function DocumentPanel({ text, writing, onEdit }: Props) {
  const [draft, setDraft] = useState<string | null>(null);
  if (!text && draft === null) {
    return (
      <div className="panel-empty">
        <Icon name="document" />
        <h2>No document yet</h2>
        <p>When an agent writes one with <code>write_document</code>, it appears here word by word.</p>
      </div>
    );
  }
  const words = text.split(/\s+/).filter(Boolean).length;
  return (
    <>
      <div className="document-bar">
        <span role="status">{writing ? "The model is writing" : `${words} words`}</span>
        {draft === null ? (
          <>
            <Copy text={text} label="Copy document" />
            <button className="button small" disabled={writing} onClick={() => setDraft(text)}><Icon name="pencil" />Edit</button>
          </>
        ) : (
          <>
            <button className="button small" onClick={() => setDraft(null)}>Cancel</button>
            <button className="button small primary" onClick={() => { onEdit(draft); setDraft(null); }}>Save</button>
          </>
        )}
      </div>
      {draft === null
        ? <div className={`document ${writing ? "streaming" : ""}`} tabIndex={0} role="region" aria-label="Document text"><Markdown text={text} /></div>
        : <div className="editor"><textarea className="field" aria-label="Document as markdown" value={draft} onChange={(event) => setDraft(event.target.value)} /></div>}
    </>
  );
}
