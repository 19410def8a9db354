// Serves recorded event streams to a real HttpAgent over HTTP and says what it made of each.
//
// In, one JSON object per line:
//   { id, client?: "1.0.0" | "0.0.59", stream: [event, ...] }           served as SSE
//   { id, client?, body: base64, contentType }                          served as it is
//   optional: messages, state (what the client holds before the run)
// Out, one line each:
//   { id, verdict: "accepts" | "rejects", error, messages, state, console, interrupts, events }
import http from "node:http";
import { CLIENTS, jsonLines, listening } from "./clients.mjs";

const bodies = new Map();
const server = http.createServer((request, response) => {
  request.resume().on("end", () => {
    const { contentType, body } = bodies.get(request.url.slice(1));
    response.writeHead(200, { "Content-Type": contentType, "Content-Length": body.length });
    response.end(body);
  });
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const base = `http://127.0.0.1:${server.address().port}/`;

function served({ stream, body, contentType }) {
  if (body !== undefined) return { contentType, body: Buffer.from(body, "base64") };
  const text = stream.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("");
  return { contentType: "text/event-stream", body: Buffer.from(text) };
}

async function replay(entry, index) {
  bodies.set(String(index), served(entry));
  const { HttpAgent } = CLIENTS[entry.client ?? "1.0.0"];
  const agent = new HttpAgent({
    url: base + index,
    initialMessages: entry.messages ?? [],
    ...(entry.state !== undefined && { initialState: entry.state }),
  });
  const events = [];
  const { result: error, lines } = await listening(() =>
    agent.runAgent({}, { onEvent: ({ event }) => void events.push(event.type) }).then(
      () => null,
      (reason) => String(reason?.message ?? reason),
    ),
  );
  bodies.delete(String(index));
  return {
    id: entry.id,
    verdict: error === null ? "accepts" : "rejects",
    error,
    messages: finite(agent.messages),
    state: finite(agent.state),
    interrupts: agent.pendingInterrupts ?? [],
    console: lines,
    events,
  };
}

// A patch that copies a document into itself leaves the client with a state that has no end.
function finite(value) {
  try {
    JSON.stringify(value);
    return value;
  } catch {
    return "circular";
  }
}

let index = 0;
for await (const entry of jsonLines(process.stdin)) {
  process.stdout.write(JSON.stringify(await replay(entry, index++)) + "\n");
}
server.closeAllConnections();
server.close();
