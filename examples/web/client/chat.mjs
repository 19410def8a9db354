// A conversation in the terminal with nothing but @ag-ui/client.
//   npm install && npm start          (AGENT_URL, default http://localhost:8000/agui/demo; AGENT_KEY where one is needed)
import { HttpAgent, randomUUID } from "@ag-ui/client";
import { createInterface } from "node:readline/promises";

const terminal = createInterface({ input: process.stdin, output: process.stdout });
const agent = new HttpAgent({
  url: process.env.AGENT_URL ?? "http://localhost:8000/agui/demo",
  headers: process.env.AGENT_KEY ? { Authorization: `Bearer ${process.env.AGENT_KEY}` } : {},
});
const grey = (text) => `\x1b[90m${text}\x1b[0m`;
const write = (text) => process.stdout.write(text);

// One tool that runs here: its result goes back to the model with the next run.
const tools = [
  {
    name: "get_time",
    description: "The time on this computer",
    parameters: { type: "object", properties: { timezone: { type: "string" } }, required: [] },
  },
];
const handlers = { get_time: () => new Date().toTimeString().slice(0, 5) };

const show = {
  onReasoningMessageContentEvent: ({ event }) => write(grey(event.delta)),
  onReasoningMessageEndEvent: () => write("\n"),
  onTextMessageContentEvent: ({ event }) => write(event.delta),
  onToolCallStartEvent: ({ event }) => write(grey(`\n${event.toolCallName} `)),
  onToolCallArgsEvent: ({ event }) => write(grey(event.delta)),
  onToolCallResultEvent: ({ event }) => write(grey(` → ${event.content}\n`)),
  onRunErrorEvent: ({ event }) => write(`\n! ${event.message}\n`),
};

/** Runs until the model has nothing more to ask: of a tool of ours, or of the person. */
async function answer(parameters = {}) {
  let finished = {};
  await agent.runAgent({ tools, ...parameters }, { ...show, onRunFinishedEvent: ({ event }) => { finished = event.outcome ?? {}; } });
  for (const id of finished.pendingToolCallIds ?? []) {
    const call = agent.messages.flatMap((message) => message.toolCalls ?? []).find((each) => each.id === id);
    agent.addMessage({ id: randomUUID(), role: "tool", toolCallId: id, content: handlers[call.function.name]?.() ?? "Error: no such tool" });
  }
  if (finished.pendingToolCallIds?.length) return answer();
  if (!finished.interrupts) return;
  const resume = [];
  for (const { id, message } of finished.interrupts) {
    const approved = /^y/i.test(await terminal.question(`${message} [y/N] `));
    resume.push({ interruptId: id, status: "resolved", payload: { approved } });
  }
  return answer({ resume });
}

for (let text; (text = await terminal.question("\n> ").catch(() => "")); ) {
  agent.addMessage({ id: randomUUID(), role: "user", content: text });
  await answer().catch((error) => write(`! ${error.message}\n`));
}
terminal.close();
