/** The list of conversations, fetched again whenever a run ends. */

import type { AbstractAgent } from "@ag-ui/client";
import { useCallback, useEffect, useState } from "react";
import type { Toasts } from "../ui/toasts";
import { deleteThread, listThreads, renameThread, type ThreadEntry } from "./api";

export interface ThreadList {
  list: ThreadEntry[] | null;
  rename: (id: string, name: string) => void;
  remove: (id: string) => void;
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
  const remove = useCallback((id: string) => {
    setList((now) => now?.filter((thread) => thread.id !== id) ?? null);
    attempt("The conversation was not deleted", deleteThread(id, agentId));
  }, [agentId, attempt]);
  return { list, rename, remove };
}
