// Holds conversations with a running AG-UI server through TanStack AI's client, as `useChat` does.
//
// In, one JSON object per line: { url, tools?: { name: result }, cut?, steps: [{ say } | { approve } | { answer }], each
// with the number of requests that were sent once it is done }. `cut`: the first answer breaks off after so many events.
// Out: { messages: [[role, parts]], interrupts, requests: [{ headers, resume }], errors }.
import { toolDefinition } from "@tanstack/ai";
import { ChatClient, fetchServerSentEvents } from "@tanstack/ai-client";
import { jsonLines } from "./clients.mjs";

const SECONDS = 30;

function broken(response, events) {
  const reader = response.body.getReader();
  let seen = 0;
  const body = new ReadableStream({
    async pull(controller) {
      const { value, done } = await reader.read();
      if (done) return controller.close();
      controller.enqueue(value);
      seen += new TextDecoder().decode(value).split("\n\n").length - 1;
      if (seen >= events) {
        await reader.cancel();
        controller.error(new TypeError("terminated"));
      }
    },
  });
  return new Response(body, { status: response.status, headers: response.headers });
}

const shown = {
  text: (part) => part.content,
  thinking: (part) => part.content,
  "tool-call": (part) => [part.name, part.state, part.input ?? null],
  "tool-result": (part) => part.content,
};

async function converse({ url, tools, cut, steps }) {
  const requests = [];
  const errors = [];
  const fetchClient = async (address, init) => {
    const body = init?.body ? JSON.parse(init.body) : {};
    requests.push({ method: init?.method, last: init?.headers?.["Last-Event-ID"] ?? null, resume: body.resume ?? null });
    const response = await fetch(address, init);
    return cut && requests.length === 1 ? broken(response, cut) : response;
  };
  const client = new ChatClient({
    connection: fetchServerSentEvents(url, { fetchClient }),
    tools: Object.entries(tools ?? {}).map(([name, result]) =>
      toolDefinition({ name, description: name, inputSchema: { type: "object" } }).client(async () => result),
    ),
    onError: (error) => errors.push(error.message),
  });
  for (const step of steps) {
    if (step.say !== undefined) client.sendMessage(step.say);
    if (step.approve !== undefined) {
      const part = client.getMessages().flatMap((each) => each.parts).find((each) => each.state === "approval-requested");
      client.addToolApprovalResponse({ id: part.approval.id, approved: step.approve });
    }
    if (step.answer !== undefined) client.getInterrupts()[0].resolveInterrupt(step.answer);
    const until = Date.now() + SECONDS * 1000;
    while ((requests.length < step.requests || client.getIsLoading()) && Date.now() < until)
      await new Promise((resolve) => setTimeout(resolve, 10));
  }
  const messages = client.getMessages().map(({ role, parts }) => [role, parts.map((part) => [part.type, shown[part.type](part)])]);
  const interrupts = client.getInterrupts().map(({ kind, canResolve, message }) => ({ kind, canResolve, message }));
  client.dispose?.();
  return { messages, interrupts, requests, errors };
}

for await (const entry of jsonLines(process.stdin)) {
  process.stdout.write(JSON.stringify(await converse(entry)) + "\n");
}
process.exit(0);
