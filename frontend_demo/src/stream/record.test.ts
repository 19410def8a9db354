import { describe, expect, it } from "vitest";
import type { AgEvent } from "./describe";
import { addChunk, addEvent, empty, fromLog, meters, toLog, type Recording } from "./record";

function record(events: [number, AgEvent][], began = 100): Recording {
  const recording = empty("r1", began);
  events.forEach(([at, event], index) => addEvent(recording, index + 1, event, began + at));
  return recording;
}

const START: AgEvent = { type: "RUN_STARTED", threadId: "t", runId: "r1" };
const piece = (delta: string, tokens?: number): AgEvent => ({
  type: "TEXT_MESSAGE_CONTENT",
  messageId: "m",
  delta,
  ...(tokens ? { metadata: { tokens: Array.from({ length: tokens }, () => [1, "x", null]) } } : {}),
});

describe("a recording", () => {
  it("drops what it already has and knows when it is over", () => {
    const recording = record([[0, START], [10, piece("a")]]);
    addEvent(recording, 2, piece("again"), 200);
    expect(recording.rows).toHaveLength(2);
    expect(recording.over).toBe(false);
    addEvent(recording, 3, { type: "RUN_ERROR", message: "x" }, 210);
    expect(recording.over).toBe(true);
  });

  it("puts chunks beside their event, and what follows the end beside the last one", () => {
    const recording = record([[0, START], [10, piece("a")]]);
    addChunk(recording, 1, "one");
    addChunk(recording, 9, "[DONE]");
    expect(recording.rows.map((row) => row.chunks)).toEqual([["one"], ["[DONE]"]]);
  });

  it("measures the first token from the request and the speed between first and last", () => {
    const found = meters(record([[20, START], [120, piece("a")], [220, piece("b")], [320, piece("c")]]));
    expect(found).toMatchObject({ firstToken: 120, tokensPerSecond: 10, tokens: 3, exact: false });
  });

  it("counts the tokens of a coalesced piece, and believes the server's count at the end", () => {
    const events: [number, AgEvent][] = [[0, START], [100, piece("a", 4)], [1100, piece("b", 7)]];
    expect(meters(record(events))).toMatchObject({ tokens: 11, tokensPerSecond: 10 });
    const end: AgEvent = { type: "RUN_FINISHED", threadId: "t", runId: "r1", usage: [{ outputTokens: 20 }, { outputTokens: 1 }] };
    expect(meters(record([...events, [1200, end]]))).toMatchObject({ tokens: 21, exact: true });
  });

  it("has no speed and no first token before anything arrived", () => {
    expect(meters(record([[0, START]]))).toMatchObject({ firstToken: null, tokensPerSecond: null, tokens: 0 });
  });

  it("takes the server's own measure at the end, and has no first token of its own where it joined late", () => {
    const end: AgEvent = { type: "RUN_FINISHED", threadId: "t", runId: "r1", usage: [{ outputTokens: 11 }], metadata: { timings: { firstToken: 0.25, total: 0.75 } } };
    const recording = record([[0, START], [1, piece("a")]]);
    recording.joined = true;
    expect(meters(recording).firstToken).toBeNull();
    addEvent(recording, 3, end, 200);
    expect(meters(recording)).toMatchObject({ firstToken: 250, tokensPerSecond: 20 });
  });
});

describe("an event log", () => {
  it("comes back as it was saved, with its pace and its question", () => {
    const recording = record([[0, START], [40, piece("line\nbreak")], [90, { type: "RUN_FINISHED", threadId: "t", runId: "r1" }]]);
    recording.before = [{ id: "u", role: "user", content: "Hi" }];
    const log = fromLog(toLog(recording));
    expect(log.map(({ at }) => at)).toEqual([0, 40, 90]);
    expect(log[1]?.event).toEqual(piece("line\nbreak"));
    expect(log[0]?.event.input).toMatchObject({ runId: "r1", messages: [{ role: "user" }] });
  });

  it("may be a saved stream, or bare events with or without times", () => {
    const stream = `id: 1\ndata: ${JSON.stringify(START)}\n\n: keep-alive\n\ndata: ${JSON.stringify(piece("a"))}\n\ndata: [DONE]\n\n`;
    expect(fromLog(stream).map(({ event }) => event.type)).toEqual(["RUN_STARTED", "TEXT_MESSAGE_CONTENT"]);
    const timed = [{ ...START, timestamp: 1000 }, { ...piece("a"), timestamp: 1030 }].map((event) => JSON.stringify(event)).join("\r\n");
    expect(fromLog(timed).map(({ at }) => at)).toEqual([0, 30]);
    expect(fromLog(JSON.stringify(START))[0]?.at).toBeNull();
  });

  it("says which line is no event", () => {
    expect(() => fromLog(`${JSON.stringify(START)}\nnonsense`)).toThrow("Line 2 is not an AG-UI event.");
    expect(() => fromLog("\n\n")).toThrow("The log is empty.");
  });
});
