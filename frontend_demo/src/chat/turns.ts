/** Turns of a conversation, and taking one away on the server. */

import type { Message } from "@ag-ui/core";
import { ask } from "../kit/core";

/** The ids of a message and of what answered it, up to the next message of a person. */
export function turnOf(messages: readonly Pick<Message, "id" | "role">[], id: string): string[] {
  const first = messages.findIndex((message) => message.id === id);
  if (first < 0) return [];
  const next = messages.findIndex((message, index) => index > first && message.role === "user");
  return messages.slice(first, next < 0 ? undefined : next).map((message) => message.id);
}

interface Removal {
  id: string;
  kind: string;
  messages: { id: string }[];
}

const thread = (id: string): string => `agui/threads/${encodeURIComponent(id)}`;

/** Takes messages out of a thread, the last first; resolves to what brings them back. Those that the server never
 * stored are not asked for. */
export async function takeAway(threadId: string, ids: readonly string[]): Promise<() => Promise<void>> {
  const kept = ((await (await ask(`${thread(threadId)}/messages`)).json()) as { messages: { id: string }[] }).messages;
  const stored = ids.filter((id) => kept.some((message) => message.id === id));
  for (const id of stored.toReversed()) await ask(`${thread(threadId)}/messages/${encodeURIComponent(id)}`, { method: "DELETE" });
  return () => bringBack(threadId, stored);
}

async function bringBack(threadId: string, ids: readonly string[]): Promise<void> {
  const { removed } = (await (await ask(`${thread(threadId)}/removed`)).json()) as { removed: Removal[] };
  for (const id of ids) {
    const removal = removed.find(({ kind, messages }) => kind === "deleted" && messages.some((message) => message.id === id));
    if (removal) await ask(`${thread(threadId)}/removed/${encodeURIComponent(removal.id)}/restore`, { method: "POST" });
  }
}
