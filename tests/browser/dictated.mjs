// A line to the server on which a test dictates what the next run answers, for texts that no model would write.
import http from "node:http";

const frame = (event, sequence, name = "") => `${name && `event: ${name}\n`}id: ${sequence}\ndata: ${JSON.stringify(event)}\n\n`;

function eventsOf({ threadId, runId }, { text, pieces, kind }) {
  const [type, messageId] = [kind === "reasoning" ? "REASONING_MESSAGE" : "TEXT_MESSAGE", `answer-${runId}`];
  const size = Math.ceil(text.length / pieces) || 1;
  const deltas = Array.from({ length: Math.ceil(text.length / size) }, (_, index) => text.slice(index * size, (index + 1) * size));
  const role = kind === "reasoning" ? "reasoning" : "assistant";
  return [
    { type: "RUN_STARTED", threadId, runId },
    { type: `${type}_START`, messageId, role },
    ...deltas.map((delta) => ({ type: `${type}_CONTENT`, messageId, delta })),
    { type: `${type}_END`, messageId },
    { type: "RUN_FINISHED", threadId, runId },
  ];
}

const chunkOf = (event) => ({ choices: [{ index: 0, delta: { content: event.delta ?? "" }, finish_reason: null }] });

async function send(response, frames, every) {
  response.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-store" });
  for (const one of frames) {
    if (response.destroyed) return;
    if (!response.write(one)) await new Promise((resolve) => response.once("drain", resolve).once("close", resolve));
    if (every) await new Promise((resolve) => setTimeout(resolve, every));
  }
  response.end();
}

/** Everything goes to the server but runs: these answer `answer.text` in so many `pieces`, `every` milliseconds one. */
export async function openDictated(target) {
  const runs = new Map();
  const answer = { text: "", pieces: 1, every: 0, kind: "text" };
  const gate = http.createServer((request, response) => {
    const run = /^\/copilotkit\/agent\/[^/]+\/run$/.test(request.url) && request.method === "POST";
    const watched = /^\/demo\/runs\/([^/]+)\/wires/.exec(request.url)?.[1];
    if (!run && !runs.has(watched)) {
      const onward = http.request(target + request.url, { method: request.method, headers: { ...request.headers, host: new URL(target).host } }, (from) => {
        response.writeHead(from.statusCode, from.headers);
        from.pipe(response);
      });
      onward.on("error", () => response.destroy());
      response.on("close", () => onward.destroy());
      return request.pipe(onward);
    }
    if (watched) {
      const frames = runs.get(watched).flatMap((event, index) => [frame(event, index + 1, "agui"), ...(event.delta ? [frame(chunkOf(event), index + 1, "openai")] : [])]);
      return send(response, frames, answer.every / 2);
    }
    let body = "";
    request.on("data", (data) => (body += data)).on("end", () => {
      const input = JSON.parse(body);
      const events = eventsOf(input, answer);
      runs.set(encodeURIComponent(input.runId), events);
      void send(response, events.map((event, index) => frame(event, index + 1)), answer.every);
    });
  });
  await new Promise((resolve) => gate.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${gate.address().port}`, answer, close: () => { gate.closeAllConnections(); gate.close(); } };
}
