import { expect, test } from "vitest";
import { mayHoldMath, withDollars } from "./math";

test.each([
  ["The area is \\(\\pi r^2\\).", "The area is $$\\pi r^2$$."],
  ["So \\[ a = b \\] holds", "So \n$$\na = b\n$$\n holds"],
  ["Let $x_1$ be $y$.", "Let $$x_1$$ be $$y$$."],
  ["$$\nx\n$$", "$$\nx\n$$"],
])("%j is a formula", (text, wanted) => {
  expect(withDollars(text)).toBe(wanted);
  expect(mayHoldMath(text)).toBe(true);
});

test.each([
  "It costs $5 and $10.",
  "Between $1,000 and $2,000",
  "`$x$` and \n```sh\necho $HOME $PATH\n```",
  "```\n\\(open",
  "a \\$5 b \\$6",
  "A path\\[0] (like this)",
])("%j is none", (text) => {
  expect(withDollars(text)).toBe(text);
  expect(mayHoldMath(text)).toBe(false);
});
