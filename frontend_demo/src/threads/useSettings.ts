/** A thread's settings: read with the thread, applied to each of its runs, kept once the server has the thread. */

import type { AbstractAgent } from "@ag-ui/client";
import { useCopilotKit } from "@copilotkit/react-core/v2/headless";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import type { Toasts } from "../ui/toasts";
import { forgetInstructions, instructed, instructionsId, loadSettings, optionsOf, saveSettings, type Settings } from "./settings";

export interface ThreadSettings {
  values: Settings;
  change: (values: Settings) => void;
  /** Resolves once the next run of the thread will have them. */
  ready: () => Promise<void>;
}

/** restored: the thread has been asked for; it has messages by then if the server has it. */
export function useSettings(threadId: string, agent: AbstractAgent, restored: boolean, notify: Toasts["show"]): ThreadSettings {
  const { copilotkit } = useCopilotKit();
  const [values, setValues] = useState<Settings>({});
  const now = useRef<Settings>({});
  const stored = useRef(false);
  const unsaved = useRef(false);
  const loading = useRef<Promise<void>>(Promise.resolve());

  const use = useCallback((next: Settings) => {
    now.current = next;
    setValues(next);
    copilotkit.setProperties(optionsOf(next));
  }, [copilotkit]);
  const failed = useCallback((title: string) => (error: Error) => notify({ kind: "error", title, text: error.message }), [notify]);
  const save = useCallback((next: Settings) => {
    unsaved.current = false;
    saveSettings(threadId, next).catch(failed("The settings were not kept"));
  }, [threadId, failed]);

  useEffect(() => {
    use({});
    stored.current = unsaved.current = false;
  }, [threadId, use]);
  useEffect(() => {
    if (!restored || !agent.messages.length || unsaved.current) return;
    let current = true;
    stored.current = true;
    loading.current = loadSettings(threadId).then((found) => {
      if (current && !unsaved.current) use(found);
    }, failed("The settings of this conversation were not read"));
    return () => {
      current = false;
    };
  }, [agent, threadId, restored, use, failed]);
  useEffect(() => {
    let begun = false;
    const finalized = () => {
      stored.current ||= begun;
      if (begun && unsaved.current) save(now.current);
    };
    const subscription = agent.subscribe({ onRunStartedEvent: () => void (begun = true), onRunFinalized: finalized });
    return () => subscription.unsubscribe();
  }, [agent, save]);

  const change = useCallback((next: Settings) => {
    use(next);
    if (!stored.current) return void (unsaved.current = true);
    save(next);
    const told = agent.messages.some(({ id }) => id === instructionsId(threadId));
    if (!told || next.system) return;
    agent.setMessages(instructed(agent.messages, threadId, next));
    forgetInstructions(threadId).catch(failed("The system prompt was not removed"));
  }, [agent, threadId, use, save, failed]);
  const ready = useCallback(async () => {
    await loading.current;
    const messages = instructed(agent.messages, threadId, now.current);
    if (messages.length !== agent.messages.length || messages[0]?.content !== agent.messages[0]?.content) agent.setMessages(messages);
  }, [agent, threadId]);
  return useMemo(() => ({ values, change, ready }), [values, change, ready]);
}
