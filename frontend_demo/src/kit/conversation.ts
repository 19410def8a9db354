/** One thread of one agent: restoring it, sending, stopping, trying again. */

import { HttpAgent, randomUUID, type AbstractAgent, type Message, type RunAgentInput, type UserMessage } from "@ag-ui/client";
import { useAgent, useCopilotKit } from "@copilotkit/react-core/v2/headless";
import { useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import { authorization, url } from "./core";
import { patience, reconnecting } from "./reconnect";

/** The network failed, rather than the server: the browsers' words for it. */
export const isLost = (error: Error): boolean => /failed to fetch|network ?error|load failed/i.test(error.message);

export interface Conversation {
  agent: AbstractAgent;
  /** The runtime has answered and knows this agent. */
  ready: boolean;
  /** The thread's history has been asked for and has arrived (or there was none). */
  restored: boolean;
  /** A run is going on, including one that a reload joined. */
  running: boolean;
  /** The line broke in the middle of a run, and is being taken up again. */
  reconnecting: boolean;
  /** The last messages of answers that were stopped. */
  stopped: ReadonlySet<string>;
  /** Notes that the conversation's last answer was stopped, as its run says. */
  markStopped: () => void;
  send: (content: UserMessage["content"]) => void;
  /** Says several messages at once, as a prompt of an MCP server has them. */
  sendAll: (messages: readonly Message[]) => void;
  stop: () => void;
  retry: () => void;
  /** Asks once more from this message of the person's, in these words; what followed it goes. */
  edit: (id: string, content: UserMessage["content"]) => void;
  /** The thread as the server has it, once more. */
  refresh: () => void;
}

/** A person's message that did not reach the server, as far as is known. */
interface Unsent {
  threadId: string;
  message: UserMessage;
}

/** Events of a run after one that is known, as AG-UI's own SSE. */
function resume(runId: string, after: number, signal: AbortSignal | null): Promise<Response> {
  const headers = { ...authorization(), accept: "text/event-stream", "last-event-id": String(after) };
  return fetch(url(`agui/runs/${encodeURIComponent(runId)}/events`), { headers, signal });
}

/** isNew: the server cannot know this thread, so its history is asked for only once something was said. */
export function useConversation(agentId: string, threadId: string, isNew: boolean, reconnections: number): Conversation {
  const { copilotkit } = useCopilotKit();
  const { agent, isReady } = useAgent({ agentId });
  const [restored, setRestored] = useState("");
  const [refusals, setRefusals] = useState(0);
  const [broken, setBroken] = useState(false);
  const [stopped, setStopped] = useState<ReadonlySet<string>>(new Set());
  const stopping = useRef(false);
  const unsent = useRef<Unsent | null>(null);
  const spoken = useRef(false);

  useLayoutEffect(() => {
    if (agent instanceof HttpAgent) agent.fetch = reconnecting({ fetch: (input, init) => fetch(input, init), resume, wait: patience, onChange: setBroken });
  }, [agent]);

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
    if (isNew && !spoken.current) {
      setRestored(threadId);
      return;
    }
    setRestored("");
    void copilotkit.connectAgent({ agent }).finally(() => {
      if (!current) return;
      setRestored(threadId);
      sendUnsent.current();
    });
    return () => {
      current = false;
      void agent.detachActiveRun().catch(() => undefined);
    };
  }, [copilotkit, agent, isReady, threadId, isNew, reconnections, refusals]);

  const markStopped = useCallback(() => {
    const last = agent.messages.at(-1);
    if (last) setStopped((now) => (now.has(last.id) ? now : new Set(now).add(last.id)));
  }, [agent]);
  // a stop that was pressed before the run had been sent reached nobody, so it is said again once the run has begun
  useEffect(() => {
    const over = () => {
      if (stopping.current) markStopped();
      stopping.current = false;
    };
    const subscription = agent.subscribe({
      onRunStartedEvent: () => void (stopping.current && copilotkit.stopAgent({ agent })),
      onRunErrorEvent: over,
      onRunFailed: ({ error }) => {
        over();
        const asked = isLost(error) && agent.messages.findLast((message) => message.role === "user");
        if (asked) unsent.current = { threadId: agent.threadId, message: asked };
      },
      onRunFinalized: over,
    });
    return () => subscription.unsubscribe();
  }, [copilotkit, agent, markStopped]);

  // other tabs of this browser that show the thread are told of the runs that this one begins, which they join, and of
  // what it takes away
  const mine = useRef(false);
  const tell = useRef((): void => undefined);
  useEffect(() => {
    const others = new BroadcastChannel("agent-server.threads");
    tell.current = () => others.postMessage(threadId);
    others.onmessage = ({ data }: MessageEvent<unknown>) => {
      if (data !== threadId || agent.isRunning) return;
      agent.setMessages([]); // as in `refresh`
      setRefusals((count) => count + 1);
    };
    const subscription = agent.subscribe({
      onRunStartedEvent: () => {
        if (mine.current) tell.current();
        mine.current = false;
      },
    });
    return () => {
      subscription.unsubscribe();
      tell.current = () => undefined;
      others.close();
    };
  }, [agent, threadId]);

  const run = useCallback(() => {
    stopping.current = false;
    unsent.current = null;
    mine.current = true;
    spoken.current = true;
    void copilotkit.runAgent({ agent });
  }, [copilotkit, agent]);

  const sendAll = useCallback(
    (messages: readonly Message[]) => {
      for (const message of messages) agent.addMessage(message);
      run();
    },
    [agent, run],
  );
  const send = useCallback((content: UserMessage["content"]) => sendAll([{ id: randomUUID(), role: "user", content }]), [sendAll]);

  const retry = useCallback(() => {
    const last = agent.messages.findLastIndex((message) => message.role === "user");
    if (last < 0) return;
    agent.setMessages(agent.messages.slice(0, last + 1));
    run();
  }, [agent, run]);

  const edit = useCallback(
    (id: string, content: UserMessage["content"]) => {
      const at = agent.messages.findIndex((message) => message.id === id);
      if (at < 0) return;
      // under its own id: the thread then knows that these are other words for the same message
      agent.setMessages([...agent.messages.slice(0, at), { id, role: "user", content } satisfies Message]);
      run();
    },
    [agent, run],
  );
  // what a lost network kept from the server is asked once it is back: CopilotKit then has a new agent, that knows only
  // what the server knows
  const sendUnsent = useRef(() => undefined as void);
  sendUnsent.current = () => {
    const { current } = unsent;
    unsent.current = null;
    if (current?.threadId !== threadId) return;
    const { message } = current;
    const known = agent.messages.find(({ id }) => id === message.id);
    if (known === undefined) {
      agent.addMessage(message);
      run();
    } else if (known === agent.messages.at(-1) || JSON.stringify(known.content) !== JSON.stringify(message.content)) edit(message.id, message.content);
  };
  const refresh = useCallback(() => {
    tell.current();
    agent.setMessages([]); // a snapshot adds to what is there, behind it, and takes nothing away
    setRefusals((count) => count + 1);
  }, [agent]);

  const stop = useCallback(() => {
    stopping.current = true;
    copilotkit.stopAgent({ agent });
  }, [copilotkit, agent]);

  return { agent, ready: isReady, restored: restored === threadId, running: agent.isRunning, reconnecting: broken, stopped, markStopped, send, sendAll, stop, retry, edit, refresh };
}
