/** One conversation and everything around it. */

import { useCopilotKit, useInterrupt } from "@copilotkit/react-core/v2/headless";
import { randomUUID, type AbstractAgent, type Interrupt, type Message, type Tool } from "@ag-ui/client";
import { lazy, Suspense, useCallback, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { contentOf, reworded, type Attachment, type Takes } from "./chat/attachments";
import { Connect, Health } from "./chat/Connect";
import { Conversation } from "./chat/Conversation";
import { Foot } from "./chat/Foot";
import { refusal, type Refusal } from "./chat/long";
import { plainText } from "./chat/Messages";
import { suggestionsFor, type ToolInfo } from "./chat/suggestions";
import { takeAway, turnOf } from "./chat/turns";
import { useKept } from "./chat/useKept";
import { waitsFor } from "./chat/waiting";
import { useConversation } from "./kit/conversation";
import { apiKey, ask, url } from "./kit/core";
import type { AgentInfo, Server } from "./kit/info";
import { askedBy } from "./panel/asked";
import { Contents } from "./panel/Contents";
import { Inspector, type Tab } from "./panel/Inspector";
import { late } from "./panel/late";
import { usePastRuns } from "./panel/pastRuns";
import { usePredicted } from "./panel/usePredicted";
import { meters, secondsOf, type Recording } from "./stream/record";
import { StreamStore, useStream, type View } from "./stream/store";
import { branchThread, type ThreadEntry } from "./threads/api";
import { chooseAgent, namesThread, readPlace, writePlace, type Place } from "./threads/place";
import { Threads } from "./threads/Threads";
import { optionsOf } from "./threads/settings";
import { useSettings } from "./threads/useSettings";
import { useThreadList } from "./threads/useThreadList";
import type { Drafts } from "./tools/Approval";
import { PAGE_TOOLS, usePageTools } from "./tools/register";
import { focusComposer } from "./ui/keys";
import { usePaletteKey, type Command } from "./ui/paletteKey";
import { textOn, useTheme } from "./ui/theme";
import type { Toasts } from "./ui/toasts";
import { TopBar } from "./ui/TopBar";

interface Props {
  server: Server;
  failure: Refusal | null;
  setFailure: (failure: Refusal | null) => void;
  notify: Toasts["show"];
  /** The person goes on: what was said about earlier failures goes away. */
  forgive: () => void;
}

const Approval = late(() => import("./tools/Approval").then((module) => module.Approval));
const Palette = lazy(() => import("./ui/Palette"));

const WIDE = "(min-width: 1181px)";
const MEDIUM = "(min-width: 861px)";

export function Workspace({ server, failure, setFailure, notify, forgive }: Props) {
  const { copilotkit, executingToolCallIds } = useCopilotKit();
  const [place, setPlace] = usePlace();
  const [madeHere] = useState(() => (namesThread(location.hash) ? "" : place.threadId));
  const [theme, toggleTheme] = useTheme();
  const [threadsOpen, setThreadsOpen] = useState(() => matchMedia(WIDE).matches);
  const [inspectorOpen, setInspectorOpen] = useState(() => matchMedia(MEDIUM).matches);
  const [tab, setTab] = useState<Tab>("stream");
  const [fresh, setFresh] = useState<ReadonlySet<Tab>>(new Set());
  const [store] = useState(() => new StreamStore());

  const agentId = chooseAgent(place.agentId, Object.keys(copilotkit.agents));
  const thread = useConversation(agentId, place.threadId, place.threadId === madeHere, server.returns);
  const { agent } = thread;
  const view = useStream(store);

  const open = useCallback((next: Tab) => {
    setTab(next);
    setInspectorOpen(true);
    setFresh((now) => new Set([...now].filter((name) => name !== next)));
  }, []);
  const openDocument = useCallback(() => open("document"), [open]);
  const documentBegins = useCallback(() => (matchMedia(MEDIUM).matches ? open("document") : setFresh((now) => new Set(now).add("document"))), [open]);
  const paint = useCallback((background: string) => {
    document.documentElement.style.setProperty("--page-background", background);
    document.documentElement.style.setProperty("--page-text", textOn(background));
  }, []);
  usePageTools({ paint, openDocument });
  const predicted = usePredicted(agent, documentBegins);
  const threads = useThreadList(agentId, agent, server.reach === "reached", notify);

  const settings = useSettings(place.threadId, agent, thread.restored, notify);

  const tools = useRef<Tool[]>([]); // as they were last sent: with a run, or with what asks for the thread
  const restored = useRef(thread.restored);
  restored.current = thread.restored;
  useEffect(() => {
    const subscription = agent.subscribe({
      onRunInitialized: ({ input }) => {
        setFailure(null);
        store.asked(input);
        tools.current = input.tools;
      },
      onRunStartedEvent: ({ event }) => store.follow(event.runId, [...agent.messages], restored.current ? null : () => agent.isRunning),
      onStateChanged: ({ state }) => {
        if (Object.keys((state as object | null) ?? {}).length) setFresh((now) => new Set(now).add("state"));
      },
    });
    return () => subscription.unsubscribe();
  }, [agent, store, setFailure]);

  const [interrupt, asked] = useApproval(agentId, agent);
  const { markStopped } = thread;
  const settled = thread.restored && !thread.running;
  const answered = agent.messages.some(({ role }) => role !== "user" && role !== "system"); // the server has the thread
  const past = usePastRuns(place.threadId, settled, answered, store);

  const kept = useKept(place.threadId, settled, answered);
  const timings = useTimings(view);
  const stoppedLast = past.runs.at(-1)?.status === "cancelled";
  useEffect(() => {
    if (stoppedLast && !agent.isRunning) markStopped();
  }, [agent, past.runs, stoppedLast, markStopped]);

  const go = (next: Place) => {
    forgive();
    store.clear();
    setPlace(next);
    if (!matchMedia(WIDE).matches) setThreadsOpen(false);
  };
  const begin = () => go({ agentId: place.agentId, threadId: randomUUID() });
  /** Null when `text` fits behind these messages, else why it does not. An agent that compacts makes room for it. */
  const refused = (text: string, before: readonly Message[]) =>
    refusal(text, compacts(server.info?.agents[agentId]) ? "" : textOf(before), server.info?.server?.contextLength ?? 0, countTokens)
      .catch((error: Error): Refusal => ({ text: error.message, full: false }));
  const send = async (text: string, files: readonly Attachment[]) => {
    const reason = await refused(text, agent.messages);
    if (reason !== null) return reason;
    await Promise.all([settings.ready(), edited.current]);
    forgive();
    history.replaceState(null, "", writePlace({ agentId, threadId: place.threadId }));
    thread.send(contentOf(text, files));
    return null;
  };
  const prompt = async (messages: readonly Message[]) => {
    await Promise.all([settings.ready(), edited.current]);
    forgive();
    history.replaceState(null, "", writePlace({ agentId, threadId: place.threadId }));
    thread.sendAll(messages);
  };
  const editMessage = async (id: string, words: string) => {
    const reason = await refused(words, agent.messages.slice(0, agent.messages.findIndex((message) => message.id === id)));
    if (reason !== null) return reason;
    await Promise.all([settings.ready(), edited.current]);
    forgive();
    thread.edit(id, reworded(agent.messages.find((message) => message.id === id), words));
    return null;
  };
  // the server edits no history under a run, so what is asked meanwhile waits for the edit
  const edited = useRef(Promise.resolve());
  const editHistory = (title: string, work: () => Promise<void>) => {
    edited.current = work().catch((error: Error) => notify({ kind: "error", title, text: error.message }));
  };
  const deleteTurn = (id: string) => {
    forgive();
    editHistory("The turn was not deleted", async () => {
      const bringBack = await takeAway(place.threadId, turnOf(agent.messages, id));
      const undo = () => editHistory("The turn was not brought back", () => bringBack().then(thread.refresh));
      thread.refresh();
      notify({ kind: "notice", title: "Turn deleted", text: "The model no longer sees it.", action: { label: "Undo", run: undo } });
    });
  };
  const branch = (messageId: string) => {
    branchThread(place.threadId, messageId)
      .then((threadId) => {
        go({ agentId, threadId });
        threads.refresh();
      })
      .catch((error: Error) => notify({ kind: "error", title: "The conversation was not branched", text: error.message }));
  };
  const remove = (entry: ThreadEntry) => {
    const shown = entry.id === place.threadId;
    threads.remove(entry, () => shown && go({ agentId, threadId: entry.id }));
    if (shown) go({ agentId, threadId: randomUUID() });
  };
  const retry = () => {
    forgive();
    void Promise.all([settings.ready(), edited.current]).then(thread.retry);
  };

  const { runId } = view.recording;
  const controls = useMemo(() => ({
    temperature: settings.values.temperature ?? null,
    onTemperature: (value: number) => {
      settings.change({ ...settings.values, temperature: value });
      if (agent.isRunning && runId) void act(runId, "modify", { temperature: value }).catch((error: Error) => notify({ kind: "error", title: "The temperature was not changed", text: error.message }));
    },
    onPause: (paused: boolean) => act(runId, paused ? "pause" : "resume").catch((error: Error) => {
      notify({ kind: "error", title: "Not possible now", text: error.message });
      throw error;
    }),
    copies: (recording: Recording) => {
      const now = { tools: tools.current, context: [], state: agent.state as unknown, forwardedProps: optionsOf(settings.values) };
      const asked = askedBy(recording, agent.messages, now);
      const target = { url: url("."), agent: agentId, locked: server.reach === "locked" || apiKey() !== null };
      if (!asked) return null;
      const languages = import("./panel/runAs"); // fetched before somebody copies: browsers let one copy right behind a click
      languages.catch(() => undefined);
      return ([["curl", "asCurl"], ["CopilotKit", "asCopilotKit"], ["@ag-ui/client", "asHttpAgent"], ["OpenAI", "asOpenAi"]] as const).map(([name, write]) => [name, async () => (await languages)[write](target, asked)] as const);
    },
  }), [settings, agent, agentId, runId, server.reach, notify]);

  const [palette, setPalette] = useState(false);
  usePaletteKey(() => setPalette((open) => !open));
  const commands = (): Command[] => [
    { name: "New conversation", run: begin },
    { name: "Write a message", about: "/", run: focusComposer },
    ...(thread.running ? [{ name: "Stop the answer", about: "Esc", run: thread.stop }] : []),
    ...(["stream", "state", "document", "model"] as const).map((name) => ({ name: `Show the ${name}`, about: "Inspector", run: () => open(name) })),
    ...(server.info?.server?.changeable ? [{ name: "Get a real model", about: "Change the model", run: () => open("model") }] : []),
    { name: theme === "dark" ? "Light colours" : "Dark colours", about: "Theme", run: toggleTheme },
    { name: threadsOpen ? "Hide the conversations" : "Show the conversations", run: () => setThreadsOpen(!threadsOpen) },
    { name: inspectorOpen ? "Hide the inspector" : "Show the inspector", run: () => setInspectorOpen(!inspectorOpen) },
    ...agents.filter(({ id }) => id !== agentId).map(({ id, name }) => ({ name: `Talk to ${name}`, about: "Agent", run: () => go({ agentId: id, threadId: randomUUID() }) })),
    ...(threads.list ?? []).filter(({ id }) => id !== place.threadId).map(({ id, name }) => ({ name: name || "New conversation", about: "Conversation", run: () => go({ agentId, threadId: id }) })),
  ];

  const state = { ...(agent.state as Record<string, unknown> | null), ...predicted.values };
  const edit = (next: unknown) => agent.setState(next as Record<string, unknown>);
  const model = server.info?.server;
  const told = model !== undefined && thread.ready; // then all that an empty conversation offers is known, and comes at once
  const suggestions = !told ? [] : suggestionsFor({ tools: toolsOf(server.info?.agents[agentId]), bundled: model?.bundled ?? false, changeable: model?.changeable ?? false, state });
  const agents = Object.entries(server.info?.agents ?? {}).map(([id, one]) => ({ id, name: one.name || id }));

  return (
    <div className="app" data-threads={threadsOpen ? "open" : "closed"} data-inspector={inspectorOpen ? "open" : "closed"}>
      <a className="skip" href="#message" onClick={(event) => { event.preventDefault(); document.getElementById("message")?.focus(); }}>Skip to the message</a>
      <TopBar theme={theme} onTheme={toggleTheme} threadsOpen={threadsOpen} onThreads={() => setThreadsOpen(!threadsOpen)} inspectorOpen={inspectorOpen}
        onInspector={() => setInspectorOpen(!inspectorOpen)} onModel={() => open("model")} onNew={begin}
        reach={server.reach} model={model} agents={agents} agentId={agentId} onAgent={(id) => go({ agentId: id, threadId: randomUUID() })} />
      <div className="columns">
        {threadsOpen && <button className="scrim for-threads" aria-label="Close the conversations" onClick={() => setThreadsOpen(false)} />}
        <Threads threads={threads.list} current={place.threadId} onNew={begin} onOpen={(threadId) => go({ agentId, threadId })}
          onRename={threads.rename} onDelete={remove} />
        <Conversation title={threads.list?.find((entry) => entry.id === place.threadId)?.name || "New conversation"} thread={thread} modelName={model?.model ?? null} bundled={told && model.bundled} isNew={place.threadId === madeHere} blocked={blockedBy(server, thread.ready && thread.restored) ?? (interrupt || awaitsTool(agent, executingToolCallIds) ? "Waiting for your answer" : null)}
          failure={failure} interrupt={interrupt} stopped={thread.stopped} kept={kept} timings={timings} asked={asked} suggestions={suggestions}
          waiting={waitsFor(view.recording, blockedBy(server, true))} health={<Health reach={server.reach} model={model} />} takes={takesFiles(server.info?.agents[agentId])} connect={told && <Connect reach={server.reach} model={model} agentId={agentId} />}
          foot={<Foot threadId={place.threadId} empty={agent.messages.length === 0} running={thread.running} settings={settings} thinks={thinks(server.info?.agents[agentId])} view={view} room={model?.contextLength ?? 0} notify={notify} />}
          own={{ onEdit: editMessage, onDelete: deleteTurn, onBranch: branch }} onOpen={open} onSend={send} onPrompt={prompt} onRetry={retry} onNew={begin} onDismiss={forgive} />
        {inspectorOpen && <button className="scrim for-inspector" aria-label="Close the inspector" onClick={() => setInspectorOpen(false)} />}
        {inspectorOpen && (
          <Inspector tab={tab} fresh={fresh} onTab={open} onClose={() => setInspectorOpen(false)}>
            <Contents tab={tab} view={view} controls={controls} past={past} state={state} onState={edit} running={thread.running} writing={predicted.writing} info={server.info} onServe={server.ask} />
          </Inspector>
        )}
      </div>
      {palette && <Suspense><Palette commands={commands()} onClose={() => setPalette(false)} /></Suspense>}
    </div>
  );
}

/** All that may be called here; nothing where the model has no way to call. */
function toolsOf(agent: AgentInfo | undefined): readonly ToolInfo[] {
  const told = agent?.capabilities?.tools as { supported?: boolean; items?: ToolInfo[] } | undefined;
  return told?.supported ? [...(told.items ?? []), ...PAGE_TOOLS] : [];
}

/** Whether the agent keeps long conversations within the model's context. */
function compacts(agent: AgentInfo | undefined): boolean {
  return (agent?.capabilities?.custom as { compaction?: string } | undefined)?.compaction !== undefined;
}

/** Which files the agent's model takes beside words. */
function takesFiles(agent: AgentInfo | undefined): Takes {
  const input = (agent?.capabilities?.multimodal as { input?: { image?: boolean; audio?: boolean; file?: boolean } } | undefined)?.input;
  return { image: input?.image === true, audio: input?.audio === true, document: input?.file === true };
}

/** Whether the model's reasoning can be switched, as far as the server tells. */
function thinks(agent: AgentInfo | undefined): boolean {
  return (agent?.capabilities?.reasoning as { supported?: boolean } | undefined)?.supported === true;
}

async function countTokens(prompt: string): Promise<number> {
  const response = await ask("tokenize", { method: "POST", body: JSON.stringify({ prompt }) });
  return ((await response.json()) as { count: number }).count;
}

/** What a model is told of these messages, near enough to count it. */
function textOf(messages: readonly Message[]): string {
  return messages.filter(({ role }) => role !== "reasoning" && role !== "activity").map((message) => plainText(message.content)).join("\n");
}

/** The forms for what the run waits for, and the tool calls that they are about. */
function useApproval(agentId: string, agent: AbstractAgent): [ReactNode, ReadonlySet<string>] {
  const open = useRef<readonly Interrupt[]>([]);
  const [drafts] = useState<Drafts>(() => new Map());
  const element = useInterrupt({
    agentId,
    renderInChat: false,
    render: ({ interrupt, interrupts, resolve, cancel }) => {
      open.current = interrupts.length ? interrupts : interrupt ? [interrupt] : [];
      return <>{open.current.map((one) => <Approval key={one.id} interrupt={one} messages={agent.messages} drafts={drafts} resolve={(payload) => resolve(payload, one.id)} cancel={() => cancel(one.id)} />)}</>;
    },
  });
  // the hook keeps what another conversation of this agent waits for; only this one's is shown
  const waits = element != null && open.current.some((one) => agent.pendingInterrupts.some((pending) => pending.id === one.id));
  const asked = useMemo(() => new Set(waits ? open.current.flatMap((one) => one.toolCallId ?? []) : []), [element, waits]);
  return [waits ? element : null, asked];
}

/** Whether one of the page's own tools, called in this conversation, waits for the person. */
function awaitsTool(agent: AbstractAgent, executing: ReadonlySet<string>): boolean {
  return agent.messages.some((message) => message.role === "assistant" && message.toolCalls?.some((call) => executing.has(call.id)));
}

/** How long the answers of the runs took that were seen here, by their last messages. */
function useTimings({ recording, version }: View): ReadonlyMap<string, string> {
  const [timings, setTimings] = useState<ReadonlyMap<string, string>>(new Map());
  useEffect(() => {
    const id = recording.over ? recording.rows.findLast(({ event }) => event.type === "TEXT_MESSAGE_START")?.event.messageId : undefined;
    if (typeof id !== "string" || timings.has(id)) return;
    const { tokensPerSecond } = meters(recording);
    const seconds = secondsOf(recording);
    const words = [seconds === null ? "" : `${seconds.toFixed(1)} s`, tokensPerSecond === null ? "" : `${tokensPerSecond.toFixed(0)} tokens/s`].filter(Boolean).join(" · ");
    if (words) setTimings((now) => new Map(now).set(id, words));
  }, [recording, version, timings]);
  return timings;
}

async function act(runId: string, action: string, body?: unknown): Promise<void> {
  await ask(`agui/runs/${encodeURIComponent(runId)}/${action}`, { method: "POST", body: JSON.stringify(body ?? {}) });
}

/** Why nothing can be sent just now, as the composer's placeholder; null when it can. */
export function blockedBy(server: Server, ready: boolean): string | null {
  if (server.reach === "gone") return "No answer from the server, retrying";
  if (server.reach === "locked") return "This server asks for an API key";
  const model = server.info?.server;
  if (model?.state === "failed") return model.message || "The model could not be loaded";
  if (model && model.state !== "ready" && model.state !== "degraded") return `The model is loading${model.progress ? ` (${Math.round(model.progress * 100)} %)` : ""}`;
  return ready ? null : "Connecting";
}

function usePlace(): [Place, (place: Place) => void] {
  const [place, setPlace] = useState(() => readPlace(location.hash));
  useEffect(() => {
    const follow = () => setPlace(readPlace(location.hash));
    window.addEventListener("popstate", follow);
    return () => window.removeEventListener("popstate", follow);
  }, []);
  const go = useCallback((next: Place) => {
    history.pushState(null, "", writePlace(next));
    setPlace(next);
  }, []);
  return [place, go];
}
