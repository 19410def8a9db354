import { expect, test } from "vitest";
import type { AgEvent } from "./describe";
import { countsOf, fold, sought, textOf, unfolded } from "./fold";
import { addChunk, addEvent, empty, type Recording } from "./record";
import { timelineOf } from "./timeline";

function record(events: [number, AgEvent][], joined = false): Recording {
  const recording = { ...empty("r"), joined };
  events.forEach(([at, event], index) => addEvent(recording, index + 1, event, at + 100));
  return recording;
}

const text = (delta: string, messageId = "m"): AgEvent => ({ type: "TEXT_MESSAGE_CONTENT", messageId, delta });
const RUN: [number, AgEvent][] = [
  [0, { type: "RUN_STARTED" }],
  [100, { type: "TOOL_CALL_START", toolCallId: "c", toolCallName: "search" }],
  [150, { type: "TOOL_CALL_ARGS", toolCallId: "c", delta: "{}" }],
  [200, { type: "TOOL_CALL_END", toolCallId: "c" }],
  [600, { type: "TOOL_CALL_RESULT", toolCallId: "c", messageId: "t", content: "found" }],
  [700, { type: "TEXT_MESSAGE_START", messageId: "m" }],
  [710, text("de")],
  [720, text("parture")],
  [730, text("other", "n")],
  [990, { type: "TEXT_MESSAGE_END", messageId: "m" }],
  [1000, { type: "RUN_FINISHED" }],
];

test("pieces of one message in a row stand as one, those of another begin anew", () => {
  const groups = fold(record(RUN).rows);
  expect(groups.filter((group) => group.length > 1).map(textOf)).toEqual(["departure"]);
  expect(groups.flat()).toEqual(record(RUN).rows);
  expect(unfolded(record(RUN).rows)).toHaveLength(RUN.length);
});

test("words are found across pieces, in payloads and in chunks of the other wire", () => {
  const recording = record(RUN);
  addChunk(recording, 11, '{"finish_reason":"stop"}');
  const find = (words: string) => sought(fold(recording.rows), { text: words, without: new Set() }).map(([{ event }]) => event.type);
  expect(find("Departure")).toEqual(["TEXT_MESSAGE_CONTENT"]);
  expect(find("FOUND")).toEqual(["TOOL_CALL_RESULT"]);
  expect(find("finish_reason")).toEqual(["RUN_FINISHED"]);
  expect(find("nowhere")).toEqual([]);
});

test("kinds are counted, and those that are left out are gone", () => {
  const { rows } = record(RUN);
  expect(countsOf(rows)).toEqual([["run", 2], ["tool", 4], ["text", 5]]);
  expect(sought(fold(rows), { text: "", without: new Set(["tool", "text"]) }).map(([{ event }]) => event.type)).toEqual(["RUN_STARTED", "RUN_FINISHED"]);
});

test("a call, its tool at work and the text are spans of the run's time", () => {
  const { spans, duration } = timelineOf(record(RUN));
  expect(duration).toBe(1000);
  expect(spans.map(({ label, from, to, sequence }) => [label, from, to, sequence])).toEqual([
    ["Call search", 0.1, 0.2, 2],
    ["Tool at work", 0.2, 0.6, 4],
    ["Text", 0.7, 0.99, 6],
  ]);
});

test("of a run that was read afterwards the order alone is known", () => {
  const { spans, duration } = timelineOf(record(RUN, true));
  expect(duration).toBeNull();
  expect(spans.map(({ from }) => from)).toEqual([0.1, 0.3, 0.5]);
});

test("a call that waits for the page has no tool at work", () => {
  expect(timelineOf(record(RUN.slice(0, 4))).spans.map(({ label }) => label)).toEqual(["Call search"]);
});
