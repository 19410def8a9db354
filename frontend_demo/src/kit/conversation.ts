/** One thread of one agent: restoring it, sending, stopping, trying again. */

import { randomUUID, type AbstractAgent, type RunAgentInput } from "@ag-ui/client";
import { useAgent, useCopilotKit } from "@copilotkit/react-core/v2/headless";
import { useCallback, useEffect, useRef, useState } from "react";

export interface Conversation {
  agent: AbstractAgent;
  /** The runtime has answered and knows this agent. */
  ready: boolean;
  /** The thread's history has been asked for and has arrived (or there was none). */
  restored: boolean;
  /** A run is going on, including one that a reload joined. */
  running: boolean;
  send: (text: string) => void;
  stop: () => void;
  retry: () => void;
}

export function useConversation(agentId: string, threadId: string, reconnections: number): Conversation {
  const { copilotkit } = useCopilotKit();
  const { agent, isReady } = useAgent({ agentId });
  const [restored, setRestored] = useState("");
  const [refusals, setRefusals] = useState(0);
  const stopping = useRef(false);

  // CopilotKit forgets what a run waited for when the answer to it is refused; the thread still knows, so it is asked again
  useEffect(() => {
    let refused = false;
    const failed = ({ input }: { input: RunAgentInput }) => void (refused = Boolean(input.resume?.length));
    const subscription = agent.subscribe({
      onRunInitialized: () => void (refused = false),
      onRunFailed: failed,
      onRunErrorEvent: failed,
      onRunFinalized: () => {
        if (refused) setRefusals((count) => count + 1);
      },
    });
    return () => subscription.unsubscribe();
  }, [agent]);

  useEffect(() => {
    agent.threadId = threadId;
    agent.pendingInterrupts = []; // the thread says what it waits for; one left over would refuse the connection
    if (!isReady) return;
    let current = true;
    stopping.current = false;
    setRestored("");
    void copilotkit.connectAgent({ agent }).finally(() => current && setRestored(threadId));
    return () => {
      current = false;
      void agent.detachActiveRun().catch(() => undefined);
    };
  }, [copilotkit, agent, isReady, threadId, reconnections, refusals]);

  // a stop that was pressed before the run had been sent reached nobody, so it is said again once the run has begun
  useEffect(() => {
    const over = () => void (stopping.current = false);
    const subscription = agent.subscribe({
      onRunStartedEvent: () => void (stopping.current && copilotkit.stopAgent({ agent })),
      onRunErrorEvent: over,
      onRunFailed: over,
      onRunFinalized: over,
    });
    return () => subscription.unsubscribe();
  }, [copilotkit, agent]);

  const run = useCallback(() => {
    stopping.current = false;
    void copilotkit.runAgent({ agent });
  }, [copilotkit, agent]);

  const send = useCallback(
    (text: string) => {
      agent.addMessage({ id: randomUUID(), role: "user", content: text });
      run();
    },
    [agent, run],
  );

  const retry = useCallback(() => {
    const last = agent.messages.findLastIndex((message) => message.role === "user");
    if (last < 0) return;
    agent.setMessages(agent.messages.slice(0, last + 1));
    run();
  }, [agent, run]);

  const stop = useCallback(() => {
    stopping.current = true;
    copilotkit.stopAgent({ agent });
  }, [copilotkit, agent]);

  return { agent, ready: isReady, restored: restored === threadId, running: agent.isRunning, send, stop, retry };
}
