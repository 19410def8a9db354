// Holds conversations with a running AG-UI server through assistant-ui's runtime, as a chat built on it does.
//
// In, one JSON object per line:
//   { url, client?: "1.0.0" | "0.0.59", threadId, tools?: [{ name, description, parameters }],
//     results?: { toolName: value },   what the page's tools answer
//     payload?: any,                   how interrupts are resolved
//     turns: ["user text", ...] }
// Out: { parts: [one list per message: { role, status, kind, text?, name?, args?, result?, isError? }], state, problems,
//        runs: [{ events, error }] }
import { AssistantRuntimeProvider } from "@assistant-ui/react";
import { useAgUiInterrupts, useAgUiRuntime, useAgUiSubmitInterruptResponses } from "@assistant-ui/react-ag-ui";
import { createElement } from "react";
import { create } from "react-test-renderer";
import { CLIENTS, jsonLines, listening } from "./clients.mjs";

/** A tool of the page's, as assistant-ui registers it. */
const pageTool = (entry, { name, description, parameters }) => [
  name,
  { description, parameters, execute: async () => entry.results[name] },
];

function part(message, each) {
  const common = { role: message.role, status: message.status?.type ?? null };
  if (each.type === "tool-call") {
    const { toolName: name, args, result = null, isError = false } = each;
    return { ...common, kind: "call", name, args, result, isError };
  }
  return { ...common, kind: each.type, text: each.text ?? null };
}

/** What a page holds in its hands: the runtime, the questions, and the way to answer them. */
function mount(agent, onError) {
  const held = {};
  function Page() {
    held.interrupts = useAgUiInterrupts();
    held.answer = useAgUiSubmitInterruptResponses();
    return null;
  }
  function App() {
    held.runtime = useAgUiRuntime({ agent, onError });
    return createElement(AssistantRuntimeProvider, { runtime: held.runtime }, createElement(Page));
  }
  held.root = create(createElement(App));
  return held;
}

/** Wait until the page shows no run any more, not even one that follows a tool of the page's. */
async function settled(held, results) {
  let still = 0;
  while (still < 5) {
    await new Promise((done) => setTimeout(done, 4));
    const { isRunning, messages } = held.runtime.thread.getState();
    const calls = (messages.at(-1)?.content ?? []).filter((each) => each.type === "tool-call");
    const works = calls.some((each) => each.toolName in results && each.result === undefined);
    still = isRunning || works ? 0 : still + 1;
  }
}

async function converse(entry) {
  const { HttpAgent } = CLIENTS[entry.client ?? "1.0.0"];
  const agent = new HttpAgent({ url: entry.url, threadId: entry.threadId });
  const runs = [];
  agent.subscribe({
    onRunInitialized: () => void runs.push({ events: [], error: null }),
    onEvent: ({ event }) => void runs.at(-1).events.push(event),
  });
  const held = mount(agent, (error) => (runs.at(-1).error = String(error?.stack ?? error)));
  while (!held.runtime) await new Promise((done) => setTimeout(done, 1));
  const tools = Object.fromEntries((entry.tools ?? []).map((each) => pageTool(entry, each)));
  held.runtime.registerModelContextProvider({ getModelContext: () => ({ tools }) });
  for (const text of entry.turns) {
    held.runtime.thread.append(text);
    await settled(held, entry.results ?? {});
    for (let round = 0; held.interrupts.length > 0 && round < 8; round++) {
      await held.answer(held.interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: entry.payload })));
      await settled(held, entry.results ?? {});
    }
  }
  const { messages, state } = held.runtime.thread.getState();
  held.root.unmount();
  return { parts: messages.map((message) => message.content.map((each) => part(message, each))), state, runs };
}

for await (const entry of jsonLines(process.stdin)) {
  const { result, lines } = await listening(() => converse(entry));
  const problems = lines.filter(({ level, text }) => ["warn", "error"].includes(level) && !text.startsWith("react-test-renderer"));
  process.stdout.write(JSON.stringify({ ...result, problems }) + "\n");
}
