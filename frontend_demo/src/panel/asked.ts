/** What a run was asked, for those that ask the same again. */

import type { Message, RunAgentInput } from "@ag-ui/core";
import type { Recording } from "../stream/record";

export type Asked = Pick<RunAgentInput, "messages" | "tools" | "context" | "state" | "forwardedProps">;

/** What the run was asked: as the page sent it, or, of a run that it did not send, by its thread's `messages` and what
 * the page would send now. Null where the thread no longer has the run's messages. */
export function askedBy({ input, rows }: Recording, messages: readonly Message[], now: Omit<Asked, "messages">): Asked | null {
  const asked = input ?? { ...now, messages: messagesBefore(rows, messages), state: stateOf(rows) ?? now.state };
  const open = unanswered(asked.messages);
  return open.length ? { ...asked, messages: [...open] } : null;
}

function messagesBefore(rows: Recording["rows"], messages: readonly Message[]): Message[] {
  const own = new Set(rows.flatMap(({ event }) => [event.messageId, event.parentMessageId]));
  const first = messages.findIndex(({ id, role }) => role !== "user" && own.has(id));
  return messages.slice(0, Math.max(first, 0));
}

const stateOf = (rows: Recording["rows"]): unknown => rows.find(({ event }) => event.type === "STATE_SNAPSHOT")?.event.snapshot;

/** Without a call at the end that a person has yet to answer: asked anew, the model calls again. */
function unanswered(messages: readonly Message[]): readonly Message[] {
  const answered = new Set(messages.flatMap((message) => (message.role === "tool" ? [message.toolCallId] : [])));
  const open = messages.findIndex((message) => message.role === "assistant" && message.toolCalls?.some(({ id }) => !answered.has(id)));
  const kept = open < 0 ? messages : messages.slice(0, open);
  return kept.slice(0, kept.findLastIndex(({ role }) => role !== "reasoning" && role !== "activity") + 1);
}
