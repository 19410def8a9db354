/** Where a person writes. Enter sends, Shift+Enter breaks the line, Escape stops. */

import type { InputContent, Message } from "@ag-ui/client";
import { useEffect, useLayoutEffect, useRef, useState, type ClipboardEvent, type KeyboardEvent, type MouseEvent, type RefObject } from "react";
import { Attached } from "./Attached";
import { attach, attachmentsOf, takenInWords, type Attachment, type Takes } from "./attachments";
import { takeEarlyWords } from "./early";
import { isLong, sizeOf, type Refusal } from "./long";
import { prepareMarkdown } from "./Markdown";
import { late } from "../panel/late";
import { Icon } from "../ui/icons";
import { sends } from "../ui/keys";

interface Props {
  /** Of the conversation that is shown: a message waits for the answer in its own one alone. */
  threadId: string;
  running: boolean;
  /** The last run failed. */
  failed: boolean;
  disabled: string | null;
  /** Words to begin with, as often as they change. */
  draft: Draft | null;
  takes: Takes;
  /** Bytes of files that the conversation has already. */
  heldBytes: number;
  /** Why this cannot be sent, for a person; null when it was. What was refused stays to be shortened. */
  onSend: (text: string, files: readonly Attachment[]) => Promise<Refusal | null>;
  /** Sends a prompt that an MCP server filled in. */
  onPrompt?: ((messages: readonly Message[]) => void) | undefined;
  /** Begins a new conversation, for a message that has no room in this one. */
  onNew?: (() => void) | undefined;
  onStop: () => void;
}

const Slash = late(() => import("./Slash").then((module) => module.Slash));

export interface Draft {
  text: string;
}

const MAX_HEIGHT = 190;
/** Stop stands where Send was: what is clicked there this soon after sending was a second click on Send. */
const SECOND_CLICK_MS = 400;

export function Composer({ threadId, running, failed, disabled, draft, takes, heldBytes, onSend, onPrompt, onNew, onStop }: Props) {
  const [text, setText] = useState("");
  const [pasted, setPasted] = useState<readonly string[]>([]);
  const [files, setFiles] = useState<readonly Attachment[]>([]);
  const [refused, setRefused] = useState<Refusal | null>(null);
  const [queuedFor, setQueuedFor] = useState<string | null>(null);
  const queued = queuedFor === threadId;
  const picker = useRef<HTMLInputElement>(null);
  const box = useRef<HTMLTextAreaElement>(null);
  const sentAt = useRef(-Infinity);

  useLayoutEffect(() => {
    const words = takeEarlyWords();
    if (!words) return;
    setText(words); // the caret goes behind them
    box.current?.focus();
  }, []);
  useEffect(() => {
    if (!draft) return;
    setText(draft.text);
    box.current?.focus();
  }, [draft]);
  useEffect(() => {
    const area = box.current;
    if (!area) return;
    area.style.height = "auto"; // one line, for which nothing is measured
    if (text) area.style.height = `${Math.min(area.scrollHeight, MAX_HEIGHT)}px`;
  }, [text]);

  useEffect(() => {
    const focus = (event: globalThis.KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const typing = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
      if (event.key === "/" && !typing && !event.metaKey && !event.ctrlKey) {
        event.preventDefault();
        box.current?.focus();
      }
    };
    window.addEventListener("keydown", focus);
    return () => window.removeEventListener("keydown", focus);
  }, []);

  const whole = [text.trim(), ...pasted].filter(Boolean).join("\n\n");
  const written = whole !== "" || files.length > 0;
  const ready = written && !running && disabled === null;
  const send = async (at: number) => {
    if (running && written && disabled === null) setQueuedFor(threadId);
    if (!ready) return;
    setQueuedFor(null);
    sentAt.current = at;
    setText("");
    setPasted([]);
    setFiles([]);
    const reason = await onSend(whole, files);
    setRefused(reason);
    if (reason === null) return;
    setText(text);
    setPasted(pasted);
    setFiles(files);
  };
  // Sends what waits once the answer is complete and asks for nothing. After a failure it stays to be sent by hand.
  const sendQueued = useRef(send);
  sendQueued.current = send;
  useEffect(() => {
    if (queuedFor !== null && (!queued || failed)) setQueuedFor(null);
    else if (queued && ready) void sendQueued.current(-Infinity);
  }, [queuedFor, queued, ready, failed]);
  const add = async (more: readonly File[]) => {
    if (!more.length) return;
    const held = files.reduce((sum, { data }) => sum + data.length * 0.75, heldBytes);
    const { taken, refused } = await attach(more, takes, held);
    setFiles((now) => [...now, ...taken]);
    setRefused(refused.length ? { text: refused.join(" "), full: false } : null);
    box.current?.focus();
  };
  const command = onPrompt && !running && disabled === null ? /^\/(\S*)$/.exec(text)?.[1] : undefined;
  const addContent = (parts: readonly InputContent[], name: string) => {
    const words = parts.flatMap((part) => (part.type === "text" ? part.text : []));
    setPasted((now) => [...now, ...words]);
    const found = attachmentsOf(parts);
    const usable = found.filter(({ kind }) => takes[kind]);
    setFiles((now) => [...now, ...usable.map((file) => ({ ...file, name }))]);
    if (usable.length < found.length) setRefused({ text: `This model takes no files of that kind: ${name} was not added.`, full: false });
  };
  const dropped = useRef(add);
  dropped.current = add;
  const over = useDropped(dropped);
  const stop = (event: MouseEvent) => {
    if (event.timeStamp - sentAt.current >= SECOND_CLICK_MS) {
      setQueuedFor(null);
      onStop();
    }
  };
  const paste = (event: ClipboardEvent) => {
    if (event.clipboardData.files.length) {
      event.preventDefault();
      void add([...event.clipboardData.files]);
      return;
    }
    const more = event.clipboardData.getData("text/plain");
    if (!isLong(more)) return;
    event.preventDefault();
    setPasted([...pasted, more.trim()]);
  };
  const without = (index: number) => setPasted(pasted.filter((_, at) => at !== index));
  const unfold = (index: number) => {
    setText([text, pasted[index]].filter(Boolean).join("\n\n"));
    without(index);
  };
  const key = (event: KeyboardEvent) => {
    if (sends(event)) {
      event.preventDefault();
      void send(event.timeStamp);
    } else if (event.key === "Escape" && running) {
      setQueuedFor(null);
      onStop();
    }
  };

  return (
    <>
    {refused && (
      <div className="refused" role="alert">
        <span>{refused.text}</span>
        {refused.full && onNew && <button type="button" className="button small" onClick={() => { setRefused(null); onNew(); }}>New conversation</button>}
      </div>
    )}
    {command !== undefined && onPrompt && <Slash words={command} onMessages={onPrompt} onContent={addContent} onClose={() => setText("")} />}
    {queued && (
      <p className="queued" role="status">
        <span>This is sent when the answer is complete.</span>
        <button type="button" className="button small" onClick={() => setQueuedFor(null)}>Do not send</button>
      </p>
    )}
    <form className="composer" data-over={over} onSubmit={(event) => { event.preventDefault(); void send(event.timeStamp); }}>
      {pasted.length > 0 && (
        <ul className="pasted" aria-label="Pasted text">
          {pasted.map((part, index) => (
            <li key={index}>
              <Icon name="document" /><span>{isLong(part) ? "Pasted text" : "Added text"}, {sizeOf(part)}</span>
              <button type="button" className="button small" onClick={() => unfold(index)}>Show</button>
              <button type="button" className="icon-button small" aria-label={`Remove the pasted text of ${sizeOf(part)}`} onClick={() => without(index)}><Icon name="close" /></button>
            </li>
          ))}
        </ul>
      )}
      <Attached files={files} onRemove={(index) => setFiles(files.filter((_, at) => at !== index))} />
      {takenInWords(takes) && (
        <>
          <input ref={picker} type="file" multiple hidden aria-label="Files to add" onChange={(event) => { void add([...(event.target.files ?? [])]); event.target.value = ""; }} />
          <button type="button" className="attach" aria-label="Add files" title={`Add ${takenInWords(takes)}`} onClick={() => picker.current?.click()}><Icon name="clip" /></button>
        </>
      )}
      <label className="visually-hidden" htmlFor="message">Message</label>
      <textarea id="message" ref={box} rows={1} value={text} autoFocus={matchMedia("(pointer: fine)").matches} autoComplete="off"
        placeholder={disabled ?? "Ask something"} onChange={(event) => { setText(event.target.value); setRefused(null); prepareMarkdown(); }} onPaste={paste} onKeyDown={key} />
      {running ? (
        <button type="button" className="send stop" aria-label="Stop" title="Stop (Esc)" onClick={stop}><Icon name="stop" /></button>
      ) : (
        <button type="submit" className="send" aria-label="Send" disabled={!ready}><Icon name="send" /></button>
      )}
    </form>
    </>
  );
}

/** Files that are dropped anywhere on the page, which the browser would leave for them; whether some are held over it. */
function useDropped(add: RefObject<(files: readonly File[]) => unknown>): boolean {
  const [over, setOver] = useState(false);
  useEffect(() => {
    const holdsFiles = ({ dataTransfer }: DragEvent) => dataTransfer?.types.includes("Files") === true;
    const drag = (event: DragEvent) => {
      if (!holdsFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent) => event.relatedTarget === null && setOver(false);
    const drop = (event: DragEvent) => {
      setOver(false);
      if (!holdsFiles(event)) return;
      event.preventDefault();
      void add.current([...(event.dataTransfer?.files ?? [])]);
    };
    window.addEventListener("dragover", drag);
    window.addEventListener("dragleave", leave);
    window.addEventListener("drop", drop);
    return () => {
      window.removeEventListener("dragover", drag);
      window.removeEventListener("dragleave", leave);
      window.removeEventListener("drop", drop);
    };
  }, [add]);
  return over;
}
