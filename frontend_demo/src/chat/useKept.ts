/** What the server keeps beside a thread's messages: earlier versions of its answers, and a person's word on them. */

import type { Message } from "@ag-ui/core";
import { useCallback, useEffect, useState } from "react";
import { ask } from "../kit/core";

export type Score = -1 | 0 | 1;

/** What once followed a message of the person's, oldest first; it begins with that message where its words were others. */
export type Versions = ReadonlyMap<string, readonly (readonly Message[])[]>;

export interface Kept {
  versions: Versions;
  scores: ReadonlyMap<string, Score>;
  judge: (messageId: string, score: Score) => Promise<void>;
}

interface Removal {
  kind: string;
  afterId: string | null;
  removedAt: number;
  messages: Message[];
}

const NO_VERSIONS: Versions = new Map();
const NO_SCORES: ReadonlyMap<string, Score> = new Map();
const path = (threadId: string, part: string): string => `agui/threads/${encodeURIComponent(threadId)}/${part}`;
const read = async <T,>(threadId: string, part: string): Promise<T> => (await (await ask(path(threadId, part))).json()) as T;

/** settled: the thread is there and no run goes on in it; read again whenever that becomes true. */
export function useKept(threadId: string, settled: boolean, known: boolean): Kept {
  const [versions, setVersions] = useState(NO_VERSIONS);
  const [scores, setScores] = useState(NO_SCORES);
  useEffect(() => {
    setVersions(NO_VERSIONS);
    setScores(NO_SCORES);
  }, [threadId]);
  useEffect(() => {
    if (!settled || !known) return;
    let current = true;
    Promise.all([read<{ removed: Removal[] }>(threadId, "removed"), read<{ feedback: { messageId: string; score: Score }[] }>(threadId, "feedback")])
      .then(([{ removed }, { feedback }]) => {
        if (!current) return;
        setVersions(versionsOf(removed));
        setScores(new Map(feedback.map(({ messageId, score }) => [messageId, score])));
      })
      .catch(() => undefined); // a thread that the server does not keep has neither
    return () => {
      current = false;
    };
  }, [threadId, settled, known]);
  const judge = useCallback(async (messageId: string, score: Score) => {
    await ask(path(threadId, "feedback"), { method: "POST", body: JSON.stringify({ messageId, score }) });
    setScores((now) => new Map(now).set(messageId, score));
  }, [threadId]);
  return { versions, scores, judge };
}

/** By the message whose answer they were: one that was asked again, or one that had other words. */
export function versionsOf(removed: readonly Removal[]): Versions {
  const found = new Map<string, Message[][]>();
  for (const { kind, afterId, messages } of removed.toSorted((one, other) => one.removedAt - other.removedAt)) {
    const key = kind === "regenerated" ? afterId : kind === "edited" ? messages[0]?.id : null;
    if (key && messages.length) found.set(key, [...(found.get(key) ?? []), messages]);
  }
  return found;
}

export interface Pager {
  /** The message of the person's that was answered more than once. */
  id: string;
  shown: number;
  count: number;
}

/** The messages with the chosen versions in place of what follows their question, and where each can be chosen: behind
 * the last message of its turn. chosen: indexes of earlier versions by their question; without one, the present one. */
export function withVersions(messages: readonly Message[], versions: Versions, chosen: ReadonlyMap<string, number>): { messages: readonly Message[]; pagers: ReadonlyMap<string, Pager> } {
  let list = [...messages];
  const pagers = new Map<string, Pager>();
  let open: Pager | null = null;
  for (let at = 0; at < list.length; at++) {
    const message = list[at] as Message;
    if (message.role === "user") {
      const earlier = versions.get(message.id);
      const index = chosen.get(message.id);
      const version = index === undefined ? undefined : earlier?.[index];
      if (version) list = [...list.slice(0, at), ...(version[0]?.id === message.id ? version : [message, ...version])];
      open = earlier ? { id: message.id, shown: version ? (index ?? 0) : earlier.length, count: earlier.length + 1 } : null;
    }
    if (open && list[at + 1]?.role !== "reasoning" && (at + 1 === list.length || list[at + 1]?.role === "user")) pagers.set((list[at] as Message).id, open);
  }
  return { messages: list, pagers };
}
