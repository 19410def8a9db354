import { expect, test } from "vitest";
import { beginningOf, isLong, refusal, sizeOf } from "./long";

const words = async (text: string): Promise<number> => text.split(" ").length;

test("what is long by its characters or its lines is folded to a beginning that ends at a word", () => {
  expect(isLong("word ".repeat(100))).toBe(false);
  expect(isLong("word ".repeat(500))).toBe(true);
  expect(isLong("x\n".repeat(50))).toBe(true);
  expect(beginningOf("word ".repeat(500)).endsWith(" word")).toBe(true);
  expect(beginningOf("x\n".repeat(50)).split("\n")).toHaveLength(12);
});

test("sizes are said as people say them", () => {
  expect(["é".repeat(10), "x".repeat(50_000), "x".repeat(1_234_567)].map(sizeOf)).toEqual(["20 bytes", "50 kB", "1.2 MB"]);
});

test("a short text is not counted, a long one that fits is sent, and one that does not is refused in words", async () => {
  const never = () => Promise.reject(new Error("counted"));
  expect(await refusal("Hello", "", 4096, never)).toBeNull();
  expect(await refusal("x".repeat(99_999), "", 0, never)).toBeNull();
  expect(await refusal("longer words than tokens", "", 10, words)).toBeNull();
  expect(await refusal("a b c d e f g h i j k l", "", 10, words)).toEqual({ full: false, text: "This message has 12 tokens. The model holds 10 tokens: shorten it, or send it in parts." });
  expect(await refusal("a b c d e f", "g h i j k l", 10, words)).toEqual({
    full: true,
    text: "The model holds 10 tokens. This message has 6 and the conversation before it 6: delete earlier turns, or begin a new conversation.",
  });
});
