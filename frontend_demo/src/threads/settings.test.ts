import type { Message } from "@ag-ui/core";
import { expect, test } from "vitest";
import { instructed, optionsOf } from "./settings";

const asked: Message = { id: "1", role: "user", content: "Hi" };

test("the system prompt is the first message, once, and goes when it is emptied", () => {
  const first = instructed([asked], "t", { system: "Be brief." });
  expect(first).toEqual([{ id: "instructions-t", role: "system", content: "Be brief." }, asked]);
  expect(instructed(first, "t", { system: "Be long." }).map(({ content }) => content)).toEqual(["Be long.", "Hi"]);
  expect(instructed(first, "t", {})).toEqual([asked]);
});

test("everything but the system prompt is an option of the run", () => {
  expect(optionsOf({ system: "x", temperature: 0, top_p: 0.5, max_tokens: 9, enable_thinking: false })).toEqual({ temperature: 0, top_p: 0.5, max_tokens: 9, enable_thinking: false });
});
