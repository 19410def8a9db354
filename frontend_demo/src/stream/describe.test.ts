import { describe, expect, it } from "vitest";
import { chunkWords, hue, preview } from "./describe";

const chunk = (delta: object, finish_reason: string | null = null): string => JSON.stringify({ choices: [{ index: 0, delta, finish_reason }] });

describe("a row of the stream", () => {
  it.each([
    [chunk({ content: "a\nb" }), ["content", "“a⏎b”"]],
    [chunk({ reasoning: "x", reasoning_content: "x" }), ["reasoning", "“x”"]],
    [chunk({ tool_calls: [{ index: 0, id: "c", function: { name: "add", arguments: "" } }] }), ["tool_call", "add"]],
    [chunk({ tool_calls: [{ index: 0, function: { arguments: '{"a"' } }] }), ["arguments", '“{"a"”']],
    [chunk({ role: "assistant", content: "" }), ["role", "assistant"]],
    [chunk({}, "length"), ["finish_reason", "length"]],
    ['{"error":{"message":"lost"}}', ["error", "lost"]],
    ["[DONE]", ["[DONE]", ""]],
    ["not json", ["", "not json"]],
  ])("says what the chunk %s carries", (data, words) => {
    expect(chunkWords(data)).toEqual(words);
  });

  it("says what an event carries, in one short line", () => {
    expect(preview({ type: "TEXT_MESSAGE_CONTENT", delta: "x".repeat(500) }).length).toBeLessThan(90);
    expect(preview({ type: "TOOL_CALL_START", toolCallName: "add" })).toBe("add");
    expect(preview({ type: "RUN_FINISHED", outcome: { type: "interrupt" }, usage: [{ outputTokens: 3 }] })).toBe("interrupt, 3 tokens");
    expect(preview({ type: "STATE_DELTA", delta: [{ op: "add" }] })).toBe('[{"op":"add"}]');
    expect(preview({ type: "TEXT_MESSAGE_END" })).toBe("");
  });

  it("colours by what the event is about", () => {
    expect(["RUN_ERROR", "RUN_STARTED", "REASONING_END", "TOOL_CALL_ARGS", "CUSTOM", "MESSAGES_SNAPSHOT"].map(hue)).toEqual(["error", "run", "reasoning", "tool", "state", "state"]);
  });
});
