/** A message of the person's own: folded where it is long, and open to other words or to being taken away. */

import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { Copy } from "../ui/copy";
import { Icon } from "../ui/icons";
import { focusComposer, sends } from "../ui/keys";
import { Attached } from "./Attached";
import type { Attachment } from "./attachments";
import { beginningOf, isLong, sizeOf, type Refusal } from "./long";
import { longClass, Plain } from "./Plain";

export interface Own {
  /** Asks again in these words; resolves to why that is not possible, or null. */
  onEdit: (id: string, text: string) => Promise<Refusal | null>;
  /** Takes the message away, with all that answered it. */
  onDelete: (id: string) => void;
  /** Begins another conversation with what was said up to this message. */
  onBranch: (id: string) => void;
}

interface Props {
  id: string;
  text: string;
  files?: readonly Attachment[];
  own: Own | undefined;
  /** Asks again, where no answer came that could offer it. */
  onRetry?: (() => void) | undefined;
}

export function Asked({ id, text, files = [], own, onRetry }: Props) {
  const [editing, setEditing] = useState<boolean | null>(null);
  const change = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (editing === false) change.current?.focus();
  }, [editing]);
  const sent = () => {
    setEditing(null);
    focusComposer();
  };
  if (editing && own) return <Edit text={text} onCancel={() => setEditing(false)} onSent={sent} onSend={(next) => own.onEdit(id, next)} />;
  return (
    <div className="asked">
      <Attached files={files} />
      {(text || !files.length) && <div className="message user" data-role="user">{isLong(text) ? <Folded text={text} /> : text}</div>}
      {own && (
        <div className="message-actions">
          <Copy text={text} label="Copy message" />
          {onRetry && <button className="icon-button small" aria-label="Try again" title="Try again" onClick={onRetry}><Icon name="retry" /></button>}
          <button ref={change} className="icon-button small" aria-label="Change message" title="Edit and send again" onClick={() => setEditing(true)}><Icon name="pencil" /></button>
          <button className="icon-button small" aria-label="Delete message" title="Delete this turn" onClick={() => own.onDelete(id)}><Icon name="trash" /></button>
        </div>
      )}
    </div>
  );
}

function Folded({ text }: { text: string }) {
  const [open, setOpen] = useState(false);
  return (
    <>
      {open ? <div className={longClass(text)}><Plain text={text} /></div> : `${beginningOf(text)} …`}
      <button className="unfold" aria-expanded={open} onClick={() => setOpen(!open)}>{open ? "Show less" : `Show all ${sizeOf(text)}`}</button>
    </>
  );
}

interface EditProps {
  text: string;
  onCancel: () => void;
  onSent: () => void;
  /** Resolves to why that is not possible, or null. */
  onSend: (text: string) => Promise<Refusal | null>;
}

function Edit({ text, onCancel, onSent, onSend }: EditProps) {
  const [words, setWords] = useState(text);
  const [refused, setRefused] = useState<Refusal | null>(null);
  const send = async () => {
    if (!words.trim()) return;
    const reason = await onSend(words.trim());
    setRefused(reason);
    if (reason === null) onSent();
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Escape") return onCancel();
    if (!sends(event) || !(event.target instanceof HTMLTextAreaElement)) return;
    event.preventDefault();
    void send();
  };
  return (
    <form className="asked edit" onSubmit={(event) => { event.preventDefault(); void send(); }} onKeyDown={key}>
      <textarea className="field" aria-label="Your message in other words" autoFocus rows={Math.min(10, text.split("\n").length + 1)} value={words} onChange={(event) => setWords(event.target.value)} />
      {refused && <p className="refused" role="alert">{refused.text}</p>}
      <div className="choices">
        <button className="button small primary" disabled={!words.trim()}>Send again</button>
        <button type="button" className="button small" onClick={onCancel}>Cancel</button>
      </div>
    </form>
  );
}
