import { expect, test } from "vitest";
import { reconnecting, type Line } from "./reconnect";

const frame = (id: number, event: object): string => `id: ${id}\ndata: ${JSON.stringify(event)}\n\n`;
const STARTED = frame(1, { type: "RUN_STARTED", runId: "r1" });
const WORD = frame(2, { type: "TEXT_MESSAGE_CONTENT", delta: "Grüße" });
const MORE = frame(3, { type: "TEXT_MESSAGE_CONTENT", delta: "!" });
const FINISHED = frame(4, { type: "RUN_FINISHED", runId: "r1" });

/** An answer of these bytes, which then ends as it should or breaks. */
function answer(bytes: Uint8Array, breaks: boolean): Response {
  let sent = false;
  const pull = (controller: ReadableStreamDefaultController<Uint8Array>) => {
    if (sent) return breaks ? controller.error(new TypeError("network error")) : controller.close();
    sent = true;
    controller.enqueue(bytes);
  };
  return new Response(new ReadableStream({ pull }), { headers: { "content-type": "text/event-stream" } });
}

const bytes = (text: string): Uint8Array => new TextEncoder().encode(text);

/** What a reader gets of `first`, with these answers to its attempts to go on; and what it asked for. */
async function read(first: Response, attempts: (Response | Error)[]): Promise<{ text: Promise<string>; asked: unknown[]; said: boolean[] }> {
  const asked: unknown[] = [];
  const said: boolean[] = [];
  const line: Line = {
    fetch: async () => first,
    resume: async (runId, after) => {
      asked.push([runId, after]);
      const next = attempts.shift();
      if (next instanceof Error || next === undefined) throw next ?? new Error("asked too often");
      return next;
    },
    wait: async () => attempts.length > 0,
    onChange: (now) => said.push(now),
  };
  const response = await reconnecting(line)("run", {});
  return { text: response.text(), asked, said };
}

test("a stream that ends with its run is passed on as it is", async () => {
  const { text, asked } = await read(answer(bytes(STARTED + FINISHED), false), []);
  expect(await text).toBe(STARTED + FINISHED);
  expect(asked).toEqual([]);
});

test("a cut at any byte loses nothing, doubles nothing, and is said", async () => {
  const complete = bytes(STARTED + WORD + MORE + FINISHED);
  const ends = [bytes(STARTED), bytes(STARTED + WORD), bytes(STARTED + WORD + MORE)].map((part) => part.length);
  for (let at = bytes(STARTED).length; at < complete.length - bytes(FINISHED).length; at++) {
    const arrived = ends.filter((end) => end <= at).length;
    const rest = [STARTED, WORD, MORE, FINISHED].slice(arrived).join("");
    for (const breaks of [true, false]) {
      const { text, asked, said } = await read(answer(complete.slice(0, at), breaks), [new TypeError("still cut"), answer(bytes(rest), false)]);
      expect(await text).toBe(STARTED + WORD + MORE + FINISHED);
      expect(asked).toEqual([["r1", arrived], ["r1", arrived]]);
      expect(said).toEqual([true, false]);
    }
  }
});

test("a second cut is mended like the first", async () => {
  const { text, asked } = await read(answer(bytes(STARTED), true), [answer(bytes(WORD), true), answer(bytes(MORE + FINISHED), false)]);
  expect(await text).toBe(STARTED + WORD + MORE + FINISHED);
  expect(asked).toEqual([["r1", 1], ["r1", 2]]);
});

test("when the server has forgotten the run, or stays away, the break is an error as before", async () => {
  const forgotten = await read(answer(bytes(STARTED), true), [new Response("{}", { status: 404 })]);
  await expect(forgotten.text).rejects.toThrow("network error");
  const away = await read(answer(bytes(STARTED), true), [new TypeError("refused")]);
  await expect(away.text).rejects.toThrow("network error");
  expect(away.said).toEqual([true, false]);
});
