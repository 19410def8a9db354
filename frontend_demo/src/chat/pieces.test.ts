// @ts-expect-error the browser's tests, which read these texts too, are plain JavaScript
import { HOSTILE as texts } from "../../../tests/browser/hostile_texts.mjs";
import { expect, test } from "vitest";
import { BOUNDS, nextStep, piecesOf } from "./pieces";

const HOSTILE = texts as Record<string, (size: number) => string>;
const attacks = Object.entries(HOSTILE).flatMap(([name, generate]) => [20_000, 400_000].map((size) => [name, size, generate] as const));
const bare = (text: string): string => text.replaceAll(/[`~\s]+(?:js)?/g, "");

/** The most that one piece can cost, by its bounds: what the steps of the renderer are held to. */
const MOST = BOUNDS.piece + 20 * (BOUNDS.marks + BOUNDS.cells) + 6 * BOUNDS.cells;

test.each(attacks)("%s of %i characters is bounded in each piece and in all of them", (name, size, generate) => {
  const text = generate(size);
  const pieces = piecesOf(text);
  for (const { kind, text: part, cost } of pieces) {
    expect(part.length).toBeLessThanOrEqual({ markdown: BOUNDS.piece + BOUNDS.definitions * (BOUNDS.definition + 1) + 2, code: BOUNDS.code, plain: BOUNDS.plain }[kind]);
    expect(cost).toBeLessThanOrEqual(kind === "code" ? BOUNDS.code + 400 : MOST);
    if (kind === "markdown") expect(part.match(/[*_~[\]<>`$]/g)?.length ?? 0).toBeLessThanOrEqual(BOUNDS.marks + 4 * BOUNDS.definitions);
  }
  const formatted = pieces.filter(({ kind }) => kind !== "plain").reduce((sum, { text: part }) => sum + part.length, 0);
  expect(formatted, "formatted characters").toBeLessThanOrEqual(2 * BOUNDS.text);
  expect(pieces.length).toBeLessThanOrEqual(BOUNDS.text / 4 + text.length / (BOUNDS.plain / 2) + 1);
  if (!/definition|code/.test(name)) expect(bare(pieces.map((piece) => piece.text).join("")).length, "nothing is lost").toBeGreaterThanOrEqual(bare(text).length);
});

test.each(Object.entries(HOSTILE))("%s that grows changes no piece but the last ones", (_, generate) => {
  const text = generate(30_000);
  const [before, after] = [piecesOf(text.slice(0, 20_000)), piecesOf(text)].map((pieces) => pieces.map((piece) => piece.text)) as [string[], string[]];
  const same = before.filter((part, index) => part === after[index]).length;
  const changed = before.slice(same).reduce((sum, part) => sum + part.length, 0);
  expect(same === before.length || before.slice(same).length <= 3 || changed <= 20_000).toBe(true);
});

test("an ordinary answer is one piece, and shown at once", () => {
  const answer = "# Owls\n\nThey **hunt** at night, see [more](https://example.com).\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n1. one\n2. two\n\nSo $x$ is it.\n";
  expect(piecesOf(answer)).toMatchObject([{ kind: "markdown", text: answer }]);
});

test("a long answer is cut between paragraphs, around code, and between the items of a list", () => {
  const paragraph = `${"Words of a sentence. ".repeat(50)}\n\n`;
  const list = Array.from({ length: 200 }, (_, index) => `${index + 1}. An item with **bold** words\n`).join("");
  const pieces = piecesOf(`${paragraph.repeat(12)}\`\`\`python title\nprint(1)\n\nprint(2)\n\`\`\`\n${list}`);
  const code = pieces.findIndex(({ kind }) => kind === "code");
  expect(pieces.every(({ kind }, index) => (kind === "code" ? index === code : kind === "markdown"))).toBe(true);
  expect([code, pieces.length - code - 1].every((count) => count > 1)).toBe(true);
  expect(pieces.find(({ kind }) => kind === "code")).toMatchObject({ text: "print(1)\n\nprint(2)", language: "python" });
  expect(pieces.slice(code + 1).every(({ text }) => /^\d+\. An item/.test(text) && text.endsWith("words\n"))).toBe(true);
});

test("a definition reaches the pieces that use it", () => {
  const filler = `${"Words of a sentence. ".repeat(300)}\n\n`;
  const pieces = piecesOf(`See [the page][1].\n\n${filler}More.\n\n[1]: https://example.com\n`);
  expect(pieces.length).toBeGreaterThan(1);
  expect(pieces[0]?.text).toContain("[1]: https://example.com");
});

test("characters of two halves are not cut", () => {
  for (const { text } of piecesOf("🦉".repeat(60_000))) expect(text).not.toMatch(/^[\udc00-\udfff]|[\ud800-\udbff]$/);
});

test("a step is bounded by its work and always goes on", () => {
  const pieces = [5, 5, 50, 5, 0].map((cost) => ({ kind: "markdown" as const, text: "", language: "", cost }));
  expect([0, 2, 3, 5, 9].map((shown) => nextStep(pieces, shown, 10))).toEqual([2, 3, 5, 5, 5]);
});
