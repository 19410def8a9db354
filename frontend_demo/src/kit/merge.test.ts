import { expect, test } from "vitest";
import { LONG_RUN, mergeDeltas, pauseAfter } from "./merge";

const frame = (id: number, event: object): string => `id: ${id}\ndata: ${JSON.stringify(event)}\n\n`;
const piece = (id: number, delta: string, messageId = "m"): string => frame(id, { type: "TEXT_MESSAGE_CONTENT", messageId, delta });

test("pieces of one message that follow each other become one event with the last number", () => {
  const start = frame(1, { type: "TEXT_MESSAGE_START", messageId: "m", role: "assistant" });
  const end = frame(6, { type: "TEXT_MESSAGE_END", messageId: "m" });
  expect(mergeDeltas(start + piece(2, "a\n") + piece(3, "b") + piece(4, "c", "other") + ": comment\n\n" + piece(5, "d", "other") + end)).toBe(
    start + piece(3, "a\nb") + piece(4, "c", "other") + ": comment\n\n" + piece(5, "d", "other") + end,
  );
});

test("events of other kinds, and those that cannot be read, stay as they are", () => {
  const frames = frame(1, { type: "CUSTOM", name: "x", value: 1 }) + 'id: 2\ndata: {"type":"TEXT_MESSAGE_CONTENT",\n\n' + frame(3, { type: "TEXT_MESSAGE_CONTENT", messageId: "m" });
  expect(mergeDeltas(frames)).toBe(frames);
});

test("however many pieces a read has, the client gets one event for it", () => {
  for (const count of [100, 10_000]) expect(mergeDeltas(Array.from({ length: count }, (_, id) => piece(id, "x")).join("")).match(/data:/g)).toHaveLength(1);
  expect([0, LONG_RUN - 1].map(pauseAfter)).toEqual([0, 0]);
  expect(pauseAfter(2_000_000)).toBe(100);
});
