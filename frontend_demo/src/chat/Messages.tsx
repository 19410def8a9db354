/** The conversation's messages, in order, each in the form that its role asks for. */

import type { ActivityMessage, AssistantMessage, Message, ToolMessage } from "@ag-ui/core";
import { useRenderToolCall } from "@copilotkit/react-core/v2/headless";
import { Fragment, memo, useEffect, useMemo, useState } from "react";
import { titleOf } from "../tools/status";
import { Copy, CopyAs } from "../ui/copy";
import { Icon } from "../ui/icons";
import { attachmentsOf } from "./attachments";
import { Asked, type Own } from "./Asked";
import { Markdown } from "./Markdown";
import { Reasoning } from "./Reasoning";
import { withVersions, type Kept, type Pager, type Score } from "./useKept";

interface Props {
  messages: readonly Message[];
  running: boolean;
  /** Tool calls that wait for a person elsewhere on the page. */
  asked: ReadonlySet<string>;
  onRetry: (() => void) | undefined;
  /** Changing the person's own messages; undefined where the conversation is only to be read. */
  own: Own | undefined;
  /** What a run waits for before its first word. */
  waiting: string;
  /** The last messages of answers that were stopped. */
  stopped: ReadonlySet<string>;
  /** Earlier versions and feedback; undefined where the server keeps none. */
  kept?: Kept | undefined;
  /** How long answers took, by their messages. */
  timings?: ReadonlyMap<string, string> | undefined;
}

const NOTHING_CHOSEN: ReadonlyMap<string, number> = new Map();

export function Messages({ messages: present, running, asked, onRetry, own, waiting, stopped, kept, timings }: Props) {
  const [chosen, setChosen] = useState(NOTHING_CHOSEN);
  useEffect(() => {
    if (running) setChosen(NOTHING_CHOSEN); // what is said now goes on behind the present versions
  }, [running]);
  const { messages, pagers } = useMemo(() => withVersions(present, kept?.versions ?? new Map(), chosen), [present, kept, chosen]);
  const earlier = chosen.size > 0;
  const last = messages.at(-1);
  const question = messages.findLastIndex((message) => message.role === "user");
  const answer = messages.findLast((message, index) => index > question && message.role === "assistant" && plainText(message.content));
  const again = answer ?? messages[question]; // where trying again is offered
  return (
    <>
      {messages.map((message) => (
        <Fragment key={message.id}>
          <One message={message} messages={messages} asked={asked} streaming={running && message === last}
            onRetry={!running && !earlier && message === again ? onRetry : undefined} own={running || earlier ? undefined : own}
            score={kept?.scores.get(message.id) ?? 0} onJudge={running || earlier ? undefined : kept?.judge} timing={timings?.get(message.id)} />
          {stopped.has(message.id) && !(running && message === last) && <p className="stopped"><Icon name="stop" />Stopped</p>}
          {!running && pagers.has(message.id) && <Versions pager={pagers.get(message.id) as Pager} onShow={(id, index, count) => setChosen((now) => choose(now, id, index, count))} />}
        </Fragment>
      ))}
      {running && isWaiting(last) && <Waiting text={waiting} />}
    </>
  );
}

function choose(now: ReadonlyMap<string, number>, id: string, index: number, count: number): ReadonlyMap<string, number> {
  const next = new Map(now);
  if (index === count - 1) next.delete(id);
  else next.set(id, index);
  return next;
}

function Versions({ pager: { id, shown, count }, onShow }: { pager: Pager; onShow: (id: string, index: number, count: number) => void }) {
  return (
    <div className="versions" role="group" aria-label="Versions of this turn">
      <button className="icon-button small" aria-label="Earlier version" disabled={shown === 0} onClick={() => onShow(id, shown - 1, count)}><Icon name="chevron" className="back" /></button>
      <span role="status">{shown + 1}/{count}</span>
      <button className="icon-button small" aria-label="Later version" disabled={shown === count - 1} onClick={() => onShow(id, shown + 1, count)}><Icon name="chevron" /></button>
      {shown < count - 1 && <span>The conversation goes on from the latest one.</span>}
    </div>
  );
}

interface OneProps<Kind = Message> {
  message: Kind;
  messages: readonly Message[];
  asked: ReadonlySet<string>;
  streaming: boolean;
  onRetry?: (() => void) | undefined;
  own?: Own | undefined;
  score?: Score;
  onJudge?: ((messageId: string, score: Score) => Promise<void>) | undefined;
  timing?: string | undefined;
}

function One({ message, messages, asked, streaming, onRetry, own, score = 0, onJudge, timing }: OneProps) {
  switch (message.role) {
    case "user":
      return <Asked id={message.id} text={plainText(message.content)} files={attachmentsOf(message.content)} own={own} onRetry={onRetry} />;
    case "reasoning":
      return <Reasoning text={message.content} thinking={streaming} />;
    case "assistant":
      return <Assistant message={message} messages={messages} asked={asked} streaming={streaming} onRetry={onRetry} own={own} score={score} onJudge={onJudge} timing={timing} />;
    case "activity":
      return <Activity message={message} />;
    default:
      return null;
  }
}

function Assistant({ message, messages, asked, streaming, onRetry, own, score = 0, onJudge, timing }: OneProps<AssistantMessage>) {
  const renderToolCall = useRenderToolCall();
  const text = plainText(message.content);
  return (
    <>
      {text && (
        <div className={`message assistant ${streaming ? "streaming" : ""}`} data-role="assistant">
          <Markdown text={text} />
          {!streaming && (
            <div className="message-actions">
              <Copy text={text} label="Copy answer" />
              <CopyAs label="Copy answer as" forms={[["Markdown", () => text], ["JSON", () => JSON.stringify(message, null, 2)]]} />
              {onRetry && (
                <button className="icon-button small" aria-label="Try again" title="Try again" onClick={onRetry}><Icon name="retry" /></button>
              )}
              {own && (
                <button className="icon-button small" aria-label="Branch from here" title="Go on from here in a new conversation" onClick={() => own.onBranch(message.id)}><Icon name="branch" /></button>
              )}
              {onJudge && ([1, -1] as const).map((value) => (
                <button key={value} className="icon-button small" aria-label={value > 0 ? "Good answer" : "Bad answer"} title={value > 0 ? "Good answer" : "Bad answer"} aria-pressed={score === value}
                  onClick={() => void onJudge(message.id, score === value ? 0 : value).catch(() => undefined)}><Icon name={value > 0 ? "thumbUp" : "thumbDown"} /></button>
              ))}
              {timing && <span className="timing">{timing}</span>}
            </div>
          )}
        </div>
      )}
      {message.toolCalls?.filter((call) => !asked.has(call.id)).map((toolCall) => {
        const toolMessage = messages.find((other): other is ToolMessage => other.role === "tool" && other.toolCallId === toolCall.id);
        return <div key={toolCall.id} className="message" data-tool={toolCall.function.name}>{renderToolCall({ toolCall, ...(toolMessage ? { toolMessage } : {}) } as Parameters<typeof renderToolCall>[0])}</div>;
      })}
    </>
  );
}

const COMPACTED = "agent_server.compaction";

const Activity = memo(function Activity({ message }: { message: ActivityMessage }) {
  if (message.activityType === COMPACTED) return <Compacted content={message.content} />;
  const { toolCallId, toolName, ...content } = message.content;
  const words = typeof toolName === "string" ? titleOf(toolName) : message.activityType.replaceAll(/[_-]+/g, " ");
  const rest = toolName === undefined && toolCallId !== undefined ? { toolCallId, ...content } : content;
  return (
    <section className="activity" aria-label={`Progress: ${words}`}>
      <p className="part">{words}</p>
      <dl className="arguments">
        {Object.entries(rest).map(([name, value]) => (
          <div key={name} style={{ display: "contents" }}>
            <dt>{name}</dt>
            <dd>{typeof value === "string" ? value : JSON.stringify(value)}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
});

/** From here on the model is told less of the conversation than stands above. */
function Compacted({ content }: Pick<ActivityMessage, "content">) {
  const { messages, summary } = content as { messages?: number; summary?: string | null };
  const words = `The conversation outgrew the model: it is told ${summary ? "a summary of" : "nothing of"} the first ${messages ?? ""} messages from here on.`;
  if (!summary) return <p className="compacted" role="note">{words}</p>;
  return <details className="compacted"><summary>{words}</summary><p>{summary}</p></details>;
}

function Waiting({ text }: { text: string }) {
  return <div className="waiting" role="status"><i /><i /><i /><span>{text}</span></div>;
}

/** Nothing of the answer to the last message is to be seen yet. */
function isWaiting(last: Message | undefined): boolean {
  return last?.role === "user" || last?.role === "tool";
}

/** The text of a message's content, which is a string or a list of parts. */
export function plainText(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((part: { type?: string; text?: string }) => (part.type === "text" ? (part.text ?? "") : "")).join("");
}
