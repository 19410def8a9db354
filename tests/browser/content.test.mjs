// What an answer holds besides words, and how a conversation is taken along: code, formulas, copies, exports.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { becomes, browser, converse, matches, openDemo, picture, server, withServer } from "./harness.mjs";

withServer();

function feature(name, work, options) {
  test(name, { timeout: 60_000 }, async () => {
    const page = await openDemo(browser, server.url, options);
    try {
      await work(page);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
    }
  });
}

const assistant = (page) => page.locator('[data-role="assistant"]');
const pasted = (page) => page.evaluate(() => navigator.clipboard.readText());
const choose = async (page, menu, choice) => {
  await page.getByRole("button", { name: menu }).click();
  await page.getByRole("menuitem", { name: choice }).click();
};

for (const colorScheme of ["light", "dark"]) {
  feature(`code has its language's name, colours and a button to copy it, in ${colorScheme}`, async (page) => {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    const fetched = () => page.evaluate(() => performance.getEntriesByType("resource").filter(({ name }) => name.includes("Highlighted")).length);
    assert.equal(await fetched(), 0, "what colours code is not fetched before there is any");
    await converse(page, "Show me code");
    const block = page.locator(".code-block").first();
    await becomes(() => page.locator(".code-head span").allInnerTexts(), ["Python", "Brainfuck"]);
    await becomes(() => block.locator(".hljs-keyword").allInnerTexts(), ["def", "return"]);
    const colours = await block.evaluate((node) => [".hljs-keyword", ".hljs-comment", "code"].map((each) => getComputedStyle(node.querySelector(each)).color));
    assert.equal(new Set(colours).size, 3, `three colours: ${colours}`);
    await block.getByRole("button", { name: "Copy code" }).click();
    await becomes(() => pasted(page), "def area(radius):  # of a circle\n    return 3.14 * radius**2");
    await becomes(() => page.locator(".code-block").last().locator("code").innerText(), "++>", "an unknown language stays plain");
    await picture(page, `code-${colorScheme}`);
  }, { colorScheme });
}

feature("formulas are set, and prices are not", async (page) => {
  await converse(page, "Show me a formula");
  await becomes(() => page.locator("math").count(), 3);
  await becomes(() => page.locator('math[display="block"] mfrac').count(), 1);
  await matches(() => assistant(page).innerText(), /from \$5 to \$10, and/);
  await picture(page, "formula");
});

feature("an answer is copied as Markdown and as JSON", async (page) => {
  await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await converse(page, "What can you do?");
  await choose(page, "Copy answer as", "Markdown");
  await matches(() => pasted(page), /^I can do a few things:\n\n1\. Look up the \*\*weather\*\*/);
  await choose(page, /Copy answer as|Copied/, "JSON");
  await matches(() => pasted(page), /"role": "assistant"/);
  assert.match(JSON.parse(await pasted(page)).content, /\*\*weather\*\*/);
});

feature("a conversation is exported as Markdown, as JSON and as an event log that the page plays", async (page) => {
  await page.getByRole("textbox", { name: "Message" }).press("Tab");
  assert.equal(await page.getByRole("button", { name: "Export the conversation" }).count(), 0, "there is nothing to export yet");
  await converse(page, "What is the weather in Oslo?");
  await converse(page, "hello");
  const saved = async (choice) => {
    const [download] = await Promise.all([page.waitForEvent("download"), choose(page, "Export the conversation", choice)]);
    return { name: download.suggestedFilename(), path: await download.path(), text: readFileSync(await download.path(), "utf8") };
  };
  await page.getByRole("button", { name: "Export the conversation" }).click();
  await picture(page, "export");
  await page.keyboard.press("Escape");
  const markdown = await saved(/Markdown/);
  assert.match(markdown.name, /^what-is-the-weather-in-oslo\.md$/);
  assert.match(markdown.text, /\*\*You\*\*\n\nWhat is the weather in Oslo\?[^]*Tool `get_weather`[^]*"location":\s*"Oslo"[^]*Hello! How can I help\?/);
  const json = JSON.parse((await saved(/JSON/)).text);
  assert.deepEqual(json.messages.filter(({ role }) => role === "user").map(({ content }) => content), ["What is the weather in Oslo?", "hello"]);
  const log = await saved(/Event log/);
  const types = log.text.trim().split("\n").map((line) => JSON.parse(line).event.type);
  assert.equal(types.filter((type) => type === "RUN_STARTED").length, 2);
  assert.equal(types.filter((type) => type === "RUN_FINISHED").length, 2);
  await page.goto(`${server.url}/?replay=`);
  await page.locator('input[type="file"]').setInputFiles(log.path);
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
  await page.locator('[data-tool="get_weather"]').waitFor();
});
