/** The list of conversations, fetched again whenever a run ends. */

import type { AbstractAgent } from "@ag-ui/client";
import { useCallback, useEffect, useRef, useState } from "react";
import { NOTICE_MS, type Toasts } from "../ui/toasts";
import { archiveThread, deleteThread, listThreads, renameThread, type ThreadEntry } from "./api";

export interface ThreadList {
  list: ThreadEntry[] | null;
  refresh: () => void;
  rename: (id: string, name: string) => void;
  /** Takes a conversation away; for some seconds it can be had back, and `onUndo` is called when it was. */
  remove: (thread: ThreadEntry, onUndo: () => void) => void;
}

export function useThreadList(agentId: string, agent: AbstractAgent, reached: boolean, notify: Toasts["show"]): ThreadList {
  const [list, setList] = useState<ThreadEntry[] | null>(null);

  const refresh = useCallback(() => {
    listThreads(agentId).then(setList, () => undefined); // the banner already says that the server is away
  }, [agentId]);

  useEffect(() => {
    if (reached) refresh();
  }, [reached, refresh]);
  useEffect(() => {
    const subscription = agent.subscribe({ onRunStartedEvent: refresh, onRunFinalized: refresh });
    return () => subscription.unsubscribe();
  }, [agent, refresh]);

  const attempt = useCallback(
    (title: string, work: Promise<void>) => void work.catch((error: Error) => notify({ kind: "error", title, text: error.message })).finally(refresh),
    [notify, refresh],
  );
  const rename = useCallback((id: string, name: string) => {
    setList((now) => now?.map((thread) => (thread.id === id ? { ...thread, name } : thread)) ?? null);
    attempt("The conversation was not renamed", renameThread(id, agentId, name));
  }, [agentId, attempt]);
  const bury = useBurial(agentId);
  const remove = useCallback((thread: ThreadEntry, onUndo: () => void) => {
    setList((now) => now?.filter((other) => other.id !== thread.id) ?? null);
    attempt("The conversation was not deleted", archiveThread(thread.id, agentId, true));
    const rescue = bury(thread.id);
    const undo = () => {
      rescue();
      attempt("The conversation was not brought back", archiveThread(thread.id, agentId, false));
      onUndo();
    };
    notify({ kind: "notice", title: "Conversation deleted", text: thread.name || "New conversation", action: { label: "Undo", run: undo } });
  }, [agentId, attempt, bury, notify]);
  return { list, refresh, rename, remove };
}

/** Deletes a thread once its undo is over, or when the page is left before that; returns how to rescue one. */
function useBurial(agentId: string): (id: string) => () => void {
  const waiting = useRef(new Map<string, () => void>());
  useEffect(() => {
    const all = () => waiting.current.forEach((now) => now());
    window.addEventListener("pagehide", all);
    return () => window.removeEventListener("pagehide", all);
  }, []);
  return useCallback((id: string) => {
    const rescue = () => {
      clearTimeout(timer);
      waiting.current.delete(id);
    };
    const bury = () => {
      rescue();
      void deleteThread(id, agentId).catch(() => undefined); // archived all the same: it is in no list
    };
    const timer = setTimeout(bury, NOTICE_MS);
    waiting.current.set(id, bury);
    return rescue;
  }, [agentId]);
}
