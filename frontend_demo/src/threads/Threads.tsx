/** Earlier conversations, newest first: open, rename, delete. */

import { useRef, useState } from "react";
import { Icon } from "../ui/icons";
import { focusComposer } from "../ui/keys";
import type { ThreadEntry } from "./api";

interface Props {
  threads: ThreadEntry[] | null;
  current: string;
  onNew: () => void;
  onOpen: (id: string) => void;
  onRename: (id: string, name: string) => void;
  onDelete: (thread: ThreadEntry) => void;
}

const UNTITLED = "New conversation";

export function Threads({ threads, current, onNew, onOpen, onRename, onDelete }: Props) {
  const [editing, setEditing] = useState<string | null>(null);
  const [wanted, setWanted] = useState("");
  const panel = useRef<HTMLElement>(null);
  const focusEntry = (id: string | undefined) => requestAnimationFrame(() => {
    const entry = id === undefined ? null : panel.current?.querySelector<HTMLElement>(`[data-thread="${CSS.escape(id)}"] .open`);
    (entry ?? panel.current?.querySelector<HTMLElement>("header button"))?.focus();
  });
  const found = threads?.filter((thread) => matches(thread, wanted));
  const remove = (thread: ThreadEntry) => {
    const at = found?.indexOf(thread) ?? -1;
    onDelete(thread);
    if (thread.id === current) focusComposer();
    else focusEntry((found?.[at + 1] ?? found?.[at - 1])?.id);
  };
  return (
    <nav ref={panel} className="threads panel" aria-label="Conversations">
      <header>
        <h2>Conversations</h2>
        <button className="icon-button small" aria-label="New conversation" title="New conversation" onClick={onNew}><Icon name="plus" /></button>
      </header>
      {threads && threads.length > 1 && (
        <input className="field find" type="search" placeholder="Search conversations" aria-label="Search conversations" value={wanted} onChange={(event) => setWanted(event.target.value)} />
      )}
      {threads?.length !== 0 && found?.length === 0 && <p className="nothing" role="status">No conversation has these words in its name.</p>}
      {threads?.length === 0 && <p className="nothing">What you ask is kept here, and is still here after a reload.</p>}
      <ul className="thread-list">
        {found?.map((thread) => (
          <li key={thread.id} className="thread" data-thread={thread.id} data-current={thread.id === current}>
            {editing === thread.id
              ? <Rename name={thread.name ?? ""} onDone={(name, byKey) => { setEditing(null); if (name && name !== thread.name) onRename(thread.id, name); if (byKey) focusEntry(thread.id); }} />
              : <Entry thread={thread} current={thread.id === current} onOpen={onOpen} onEdit={setEditing} onDelete={remove} />}
          </li>
        ))}
      </ul>
    </nav>
  );
}

interface EntryProps {
  thread: ThreadEntry;
  current: boolean;
  onOpen: (id: string) => void;
  onEdit: (id: string) => void;
  onDelete: (thread: ThreadEntry) => void;
}

function Entry({ thread, current, onOpen, onEdit, onDelete }: EntryProps) {
  const title = thread.name || UNTITLED;
  return (
    <>
      <button className="open" aria-current={current ? "page" : undefined} onClick={() => onOpen(thread.id)}>
        <span className="title" dir="auto">{title}</span>
        <span className="when">{ago(thread.updatedAt)}</span>
      </button>
      <span className="actions">
        <button className="icon-button small" aria-label={`Rename ${title}`} title="Rename" onClick={() => onEdit(thread.id)}><Icon name="pencil" /></button>
        <button className="icon-button small" aria-label={`Delete ${title}`} title="Delete" onClick={() => onDelete(thread)}><Icon name="trash" /></button>
      </span>
    </>
  );
}

/** byKey: the keyboard ended it, and has to go somewhere. What is done is done once: the field loses the focus when it goes. */
function Rename({ name, onDone }: { name: string; onDone: (name: string | null, byKey: boolean) => void }) {
  const [text, setText] = useState(name);
  const over = useRef(false);
  const done = (found: string | null, byKey: boolean) => {
    if (over.current) return;
    over.current = true;
    onDone(found, byKey);
  };
  return (
    <form style={{ flex: 1 }} onSubmit={(event) => { event.preventDefault(); done(text.trim(), true); }}>
      <input className="field" aria-label="Name of the conversation" autoFocus value={text} onChange={(event) => setText(event.target.value)}
        onBlur={() => done(text.trim(), false)} onKeyDown={(event) => event.key === "Escape" && done(null, true)} style={{ width: "calc(100% - 8px)" }} />
    </form>
  );
}

/** Whether a conversation's name has all the words that are looked for. */
export function matches(thread: Pick<ThreadEntry, "name">, wanted: string): boolean {
  const name = (thread.name || UNTITLED).toLowerCase();
  return wanted.toLowerCase().split(/\s+/).every((word) => name.includes(word));
}

const UNITS: readonly [Intl.RelativeTimeFormatUnit, number][] = [["day", 86_400], ["hour", 3_600], ["minute", 60]];

export function ago(iso: string, now = Date.now()): string {
  const seconds = (Date.parse(iso) - now) / 1000;
  const words = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  for (const [unit, size] of UNITS) if (Math.abs(seconds) >= size) return words.format(Math.round(seconds / size), unit);
  return "just now";
}
