/** How a thread's answers are made: what a person set for it. Kept in the thread's metadata on the server. */

import type { Message } from "@ag-ui/core";
import { ask } from "../kit/core";

/** Under the names that they have in a run's forwardedProps, where an absent one is the model's own; `system` travels as
 * the first message. */
export interface Settings {
  system?: string;
  temperature?: number;
  top_p?: number;
  max_tokens?: number;
  enable_thinking?: boolean;
}

const KEY = "settings";
const path = (threadId: string): string => `agui/threads/${encodeURIComponent(threadId)}`;

type Metadata = Record<string, unknown>;

async function metadataOf(threadId: string): Promise<Metadata> {
  const { thread } = (await (await ask(path(threadId))).json()) as { thread: { metadata: Metadata } };
  return thread.metadata;
}

export async function loadSettings(threadId: string): Promise<Settings> {
  return ((await metadataOf(threadId))[KEY] ?? {}) as Settings;
}

/** Beside whatever else the metadata hold. */
export async function saveSettings(threadId: string, settings: Settings): Promise<void> {
  const metadata = { ...(await metadataOf(threadId)), [KEY]: settings };
  await ask(path(threadId), { method: "PATCH", body: JSON.stringify({ metadata }) });
}

export async function forgetInstructions(threadId: string): Promise<void> {
  await ask(`${path(threadId)}/messages/${encodeURIComponent(instructionsId(threadId))}`, { method: "DELETE" });
}

export const instructionsId = (threadId: string): string => `instructions-${threadId}`;

/** What travels in forwardedProps. */
export function optionsOf({ system: _, ...options }: Settings): Record<string, unknown> {
  return options;
}

/** The messages with these instructions first, in place of those that were set before. */
export function instructed(messages: readonly Message[], threadId: string, { system }: Settings): Message[] {
  const id = instructionsId(threadId);
  const others = messages.filter((message) => message.id !== id);
  return system ? [{ id, role: "system", content: system }, ...others] : others;
}
