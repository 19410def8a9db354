/** The middle of the page: messages that stay at the newest line unless the person scrolled away, and the composer. */

import type { Message } from "@ag-ui/client";
import { useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import type { Conversation as Thread } from "../kit/conversation";
import { Icon } from "../ui/icons";
import { RunningContext } from "../tools/status";
import type { Own } from "./Asked";
import { bytesOf, type Attachment, type Takes } from "./attachments";
import { LEAD } from "./early";
import { Composer, type Draft } from "./Composer";
import type { Refusal } from "./long";
import { prepareMarkdown } from "./Markdown";
import { Messages } from "./Messages";
import type { Suggestion } from "./suggestions";
import type { Kept } from "./useKept";

interface Props {
  title: string;
  thread: Thread;
  modelName: string | null;
  bundled: boolean;
  /** The server cannot know this thread, so nothing has to come before a visitor is greeted. */
  isNew?: boolean;
  blocked: string | null;
  failure: Refusal | null;
  interrupt: ReactNode;
  /** The last messages of answers that were stopped. */
  stopped?: ReadonlySet<string>;
  kept?: Kept;
  timings?: ReadonlyMap<string, string>;
  /** Tool calls that the interrupt asks about: its form shows them, so the conversation does not. */
  asked?: ReadonlySet<string>;
  readOnly?: boolean;
  suggestions?: readonly Suggestion[];
  own?: Own;
  /** What a run waits for before its first word. */
  waiting?: string;
  /** How the model is, and how to reach it from elsewhere: for an empty conversation. */
  health?: ReactNode;
  connect?: ReactNode;
  /** Which files may be sent beside words. */
  takes?: Takes;
  /** What stands below the composer. */
  foot?: ReactNode;
  onOpen?: (tab: "state" | "document" | "model") => void;
  /** Resolves to why this cannot be sent, or to null when it was. */
  onSend: (text: string, files: readonly Attachment[]) => Promise<Refusal | null>;
  /** Sends a prompt that an MCP server filled in. */
  onPrompt?: (messages: readonly Message[]) => void;
  onRetry: () => void;
  /** Begins a new conversation, where this one is full. */
  onNew?: () => void;
  /** Closes what is shown of a failure. */
  onDismiss?: () => void;
}

const NEAR_BOTTOM = 80;
const NO_SUGGESTIONS: readonly Suggestion[] = [];
const NO_FILES: Takes = { image: false, audio: false, document: false };
const NONE: ReadonlySet<string> = new Set();

export function Conversation({ title, thread, modelName, bundled, isNew = false, blocked, failure, interrupt, stopped = NONE, kept, timings, asked = NONE, readOnly = false, suggestions = NO_SUGGESTIONS, own, waiting = "Waiting for the model", health, connect, foot, takes = NO_FILES, onOpen, onSend, onPrompt, onRetry, onNew, onDismiss }: Props) {
  const { messages } = thread.agent;
  const scroller = useRef<HTMLDivElement>(null);
  const pinned = useRef(true);
  const [away, setAway] = useState(false);
  const [draft, setDraft] = useState<Draft | null>(null);

  const visible = messages.filter((message) => message.role !== "system" && message.role !== "developer");
  const fresh = visible.length === 0;
  const empty = useRef(fresh);
  empty.current = fresh;

  const follow = () => {
    const box = scroller.current;
    if (box && pinned.current && !empty.current) box.scrollTop = box.scrollHeight;
  };
  useLayoutEffect(follow);
  useLayoutEffect(() => {
    const box = scroller.current;
    if (fresh || !box) return;
    return () => void (box.scrollTop = 0); // a conversation is read from its end, what greets a visitor after it from its top
  }, [fresh]);
  useEffect(() => {
    const box = scroller.current?.firstElementChild;
    if (!box) return;
    const observer = new ResizeObserver(follow);
    observer.observe(box);
    return () => observer.disconnect();
  }, []);

  const scrolled = () => {
    const box = scroller.current;
    if (!box || empty.current) return;
    pinned.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_BOTTOM;
    setAway(!pinned.current);
  };
  const toBottom = () => {
    pinned.current = true;
    setAway(false);
    follow();
  };
  const send = (text: string, files: readonly Attachment[] = []) => {
    toBottom();
    prepareMarkdown();
    return onSend(text, files);
  };
  const prompt = (filled: readonly Message[]) => {
    toBottom();
    onPrompt?.(filled);
  };
  const pick = ({ prompt, unfinished, opens }: Suggestion) => {
    if (opens) onOpen?.(opens);
    else if (unfinished) setDraft({ text: prompt });
    else void send(prompt);
  };

  return (
    <main className="conversation panel" aria-label="Conversation">
      <h1 className="visually-hidden">{title}</h1>
      <div className="scroller" ref={scroller} onScroll={scrolled} tabIndex={0} role="region" aria-label="Conversation history">
        <div className="messages" role="log" aria-label="Messages" aria-busy={thread.running}>
          {fresh && !readOnly && (isNew || thread.restored) && <Empty health={health} connect={connect} modelName={modelName} bundled={bundled} disabled={blocked !== null} suggestions={suggestions} onPick={pick} />}
          <RunningContext value={thread.running}>
            <Messages messages={visible} running={thread.running} asked={asked} onRetry={readOnly || blocked !== null || failure !== null ? undefined : onRetry} own={readOnly || blocked !== null ? undefined : own} waiting={waiting} stopped={stopped} kept={kept} timings={timings} />
          </RunningContext>
          {interrupt}
          {thread.reconnecting && <div className="notice quiet" role="status"><span className="spinner" aria-hidden="true" /><span>Reconnecting</span></div>}
          {failure && (
            <div className="notice" role="alert">
              <span>{failure.text}</span>
              {failure.full && onNew && <button className="button small" onClick={onNew}><Icon name="plus" />New conversation</button>}
              {!readOnly && <button className="button small" onClick={onRetry}><Icon name="retry" />Try again</button>}
              {!readOnly && <button className="icon-button small" aria-label="Dismiss" onClick={onDismiss}><Icon name="close" /></button>}
            </div>
          )}
        </div>
      </div>
      {!readOnly && (
        <div className="dock">
          {away && !fresh && <button className="to-bottom" aria-label="To the newest message" onClick={toBottom}><Icon name="down" /></button>}
          {!fresh && !thread.running && blocked === null && <Chips suggestions={suggestions} onPick={pick} />}
          <Composer threadId={thread.agent.threadId} running={thread.running} failed={failure !== null} disabled={blocked} draft={draft} takes={takes} heldBytes={bytesOf(messages)} onSend={send} onPrompt={onPrompt && prompt} onNew={onNew} onStop={thread.stop} />
          {foot}
        </div>
      )}
    </main>
  );
}

interface Offers {
  suggestions: readonly Suggestion[];
  onPick: (suggestion: Suggestion) => void;
}

function Empty({ health, connect, modelName, bundled, disabled, suggestions, onPick }: Offers & { health: ReactNode; connect: ReactNode; modelName: string | null; bundled: boolean; disabled: boolean }) {
  return (
    <div className="empty">
      <h2>{bundled || !modelName ? "A model is running on this machine." : `${modelName} is running on this machine.`}</h2>
      <p className="lead">{LEAD}</p>
      {health}
      {bundled && <p className="note">This model is tiny and trained for this page: keep questions small.</p>}
      {suggestions.length > 0 && (
        <ul className="suggestions" aria-label="Suggestions">
          {suggestions.map((suggestion) => <li key={suggestion.title}><Card suggestion={suggestion} disabled={disabled} onPick={onPick} /></li>)}
        </ul>
      )}
      {connect}
    </div>
  );
}

function Card({ suggestion, disabled, onPick }: { suggestion: Suggestion; disabled: boolean; onPick: Offers["onPick"] }) {
  return (
    <button className="suggestion" disabled={disabled} onClick={() => onPick(suggestion)}>
      <Icon name={suggestion.icon} />
      <span><b>{suggestion.title}</b><small>{suggestion.about}</small></span>
    </button>
  );
}

function Chips({ suggestions, onPick }: Offers) {
  return (
    <ul className="chips" aria-label="Suggestions">
      {suggestions.map((suggestion) => <li key={suggestion.title}><button onClick={() => onPick(suggestion)}>{suggestion.title}</button></li>)}
    </ul>
  );
}
