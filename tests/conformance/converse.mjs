// Holds conversations with a running AG-UI server as a real client, and reports what happened.
//
// In, one JSON object per line:
//   { url, client?: "1.0.0" | "0.0.59", headers?, threadId?, state?, forwardedProps?, context?,
//     tools?: [{ name, description, parameters }],   tools of the client
//     results?: { toolName: value },                 what they answer (strings as they are, the rest as JSON)
//     payload?: any,                                 how interrupts are resolved
//     turns: ["user text", ...] }
// A turn runs until the server asks for nothing more (at most `rounds`, 8). Out, one line each:
//   { messages, state, problems: [console lines], runs: [{ error, events: [types], counts, outcome, usage, metadata,
//     requests }] }
// `problems` holds every warning and error that the client printed; a rejected event is a run's `error`.
import { CLIENTS, jsonLines, listening } from "./clients.mjs";

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const uuid = () => crypto.randomUUID();

function unanswered(messages) {
  const answered = new Set(messages.filter((m) => m.role === "tool").map((m) => m.toolCallId));
  return messages.flatMap((m) => m.toolCalls ?? []).filter((call) => !answered.has(call.id));
}

async function runOnce(agent, entry, resume) {
  const run = { error: null, events: [], counts: {}, outcome: null, usage: null, metadata: null, failed: null };
  const subscriber = {
    onEvent: ({ event }) => {
      run.events.push(event.type);
      run.counts[event.type] = (run.counts[event.type] ?? 0) + 1;
      if (event.type === "RUN_FINISHED") Object.assign(run, pick(event, ["outcome", "usage", "metadata"]));
      if (event.type === "RUN_ERROR") run.failed = pick(event, ["message", "code", "metadata"]);
    },
  };
  const { tools = [], context = [], forwardedProps = {} } = entry;
  const parameters = { tools, context, forwardedProps, ...(resume && { resume }) };
  const { result, lines } = await listening(() =>
    agent.runAgent(parameters, subscriber).then(
      () => null,
      (reason) => String(reason?.stack ?? reason),
    ),
  );
  run.error = result;
  return { run, lines };
}

const pick = (source, names) => Object.fromEntries(names.map((name) => [name, source[name] ?? null]));

async function turn(agent, entry, text, report) {
  agent.addMessage({ id: uuid(), role: "user", content: text });
  let resume;
  for (let round = 0; round < (entry.rounds ?? 8); round++) {
    const { run, lines } = await runOnce(agent, entry, resume);
    report.runs.push(run);
    report.problems.push(...lines.filter(({ level }) => level === "warn" || level === "error"));
    if (run.error) return;
    const interrupts = agent.pendingInterrupts ?? [];
    resume = interrupts.length
      ? interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: entry.payload }))
      : undefined;
    const calls = unanswered(agent.messages).filter((call) => call.function.name in (entry.results ?? {}));
    for (const call of calls) {
      const content = asText(entry.results[call.function.name]);
      agent.addMessage({ id: uuid(), role: "tool", toolCallId: call.id, content });
    }
    if (!resume && calls.length === 0) return;
  }
}

for await (const entry of jsonLines(process.stdin)) {
  const { HttpAgent } = CLIENTS[entry.client ?? "1.0.0"];
  const agent = new HttpAgent({
    url: entry.url,
    headers: entry.headers ?? {},
    threadId: entry.threadId ?? uuid(),
    ...(entry.state !== undefined && { initialState: entry.state }),
  });
  const report = { runs: [], problems: [] };
  for (const text of entry.turns) await turn(agent, entry, text, report);
  process.stdout.write(JSON.stringify({ messages: agent.messages, state: agent.state, ...report }) + "\n");
}
