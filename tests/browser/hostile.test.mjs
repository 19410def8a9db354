// Answers that cost a careless renderer more than their length: the page stays usable while they come.
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDictated } from "./dictated.mjs";
import { becomes, browser, openDemo, say, server, settled, withServer } from "./harness.mjs";
import { HOSTILE } from "./hostile_texts.mjs";

withServer();

async function answered(text, options, work) {
  const line = await openDictated(server.url);
  Object.assign(line.answer, { text, ...options });
  // the server knows nothing of a run that was dictated
  const page = await openDemo(browser, line.url, { expected: [/404/] });
  try {
    await say(page, "Go");
    await work(page);
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
    line.close();
  }
}

const prose = '[data-role="assistant"] .prose';

for (const name of ["display math never closed", "quotations", "nested links", "a wide table", "short paragraphs", "nested emphasis"]) {
  for (const size of [20_000, 200_000]) {
    test(`${name}, ${size} characters: bounded elements, all of the text`, { timeout: 120_000 }, () =>
      answered(HOSTILE[name](size), { pieces: 1 }, async (page) => {
        await settled(page);
        await page.locator(prose).waitFor();
        const [elements, depth, words] = await page.locator(prose).evaluate((node) => {
          let deepest = 0;
          for (let each of node.querySelectorAll("*")) {
            let steps = 0;
            for (; each !== node; each = each.parentElement) steps++;
            deepest = Math.max(deepest, steps);
          }
          return [node.querySelectorAll("*").length, deepest, node.textContent.length];
        });
        assert.ok(elements < 40_000 + size / 200, `${elements} elements`);
        assert.ok(depth < 60, `${depth} levels`);
        if (name !== "short paragraphs" && name !== "nested emphasis") assert.ok(words >= size * 0.9, `${words} characters`);
      }));
  }
}

test("a person types while two megabytes of brackets and formulas stream in", { timeout: 180_000 }, () => {
  const text = `${HOSTILE["display math never closed"](700_000)}\n\n${HOSTILE["short paragraphs"](700_000)}${HOSTILE["links never closed"](700_000)}`;
  return answered(text, { pieces: 2_000, every: 5 }, async (page) => {
    await page.locator(prose).waitFor();
    const box = page.getByRole("textbox", { name: "Message" });
    await box.pressSequentially("Next question", { delay: 40 });
    assert.equal(await box.inputValue(), "Next question");
    assert.equal(await page.getByRole("button", { name: "Stop", exact: true }).count(), 1, "the answer is still coming");
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await settled(page);
    await becomes(() => box.inputValue(), "Next question");
  });
});
