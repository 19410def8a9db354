// What the inspector does beside showing events: folds, finds, filters, a timeline, and the run as code that runs.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { becomes, browser, converse, matches, openDemo, picture, root, say, server, settled, withServer } from "./harness.mjs";

withServer();

const LIMITS = { timeout: 90_000 };
const rows = (page, type) => page.locator(`.wires > .wire-row[data-type="${type}"]`);
const types = (page) => page.locator(".wires > .wire-row").evaluateAll((all) => all.map((each) => each.dataset.type));
const kind = (page, name) => page.getByRole("group", { name: "Kinds of events" }).getByRole("button", { name });

test("pieces fold, words and kinds are found, and the timeline leads to its events", LIMITS, async () => {
  const page = await openDemo(browser, server.url);
  try {
    await converse(page, "What is 12*7?");
    const text = rows(page, "TEXT_MESSAGE_CONTENT");
    await matches(() => text.innerText(), /×\d+\s*“The tool said .*84.*content\s+×\d+\s*“The tool said/s);
    await text.getByRole("button").click();
    assert.ok((await text.locator(".pieces .wire-row").count()) > 2);
    await text.locator(".pieces button").first().click();
    await matches(() => text.locator(".wire-detail pre").first().innerText(), /"delta": "The/);
    await picture(page, "pieces");
    await text.locator(":scope > button").click();

    const search = page.getByRole("searchbox", { name: "Search events" });
    await search.fill("tool said");
    await becomes(() => types(page), ["TEXT_MESSAGE_CONTENT"]);
    await search.fill("finish_reason\":\"stop");
    await becomes(() => types(page), ["RUN_FINISHED"]);
    await search.fill("nowhere");
    await page.getByText("No event is like that").waitFor();
    await page.getByRole("button", { name: "Show all", exact: true }).click();
    for (const name of [/^Run/, /^Text/, /^State/]) await kind(page, name).click();
    await becomes(() => types(page), ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]);
    await picture(page, "filtered");

    const timeline = page.getByRole("group", { name: "Timeline of the run" });
    await timeline.getByRole("button", { name: /^Call calculate, \d+ ms to/ }).waitFor();
    await timeline.getByRole("button", { name: /^Text, / }).focus();
    await page.keyboard.press("Enter");
    await rows(page, "TEXT_MESSAGE_START").locator(".wire-detail").waitFor(); // what was filtered out is there again
    await kind(page, /^Run/).and(page.locator('[aria-pressed="true"]')).waitFor();

    await converse(page, "hello");
    await page.getByLabel("Run", { exact: true }).selectOption({ index: 0 });
    await timeline.getByRole("button", { name: /^Call calculate, \d+ ms to/ }).waitFor(); // this page saw when it was
    await page.reload();
    await page.getByLabel("Run", { exact: true }).selectOption({ index: 0 });
    await timeline.getByRole("button", { name: "Call calculate", exact: true }).waitFor();
    await matches(() => rows(page, "RUN_STARTED").innerText(), /^1\s/, "numbers, where times are not known");
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
  }
});

test("the run on the screen is copied as code that asks the same again", LIMITS, async () => {
  const page = await openDemo(browser, server.url);
  const folder = mkdtempSync(path.join(root, "frontend_demo/node_modules/.copied-"));
  const copied = async (name) => {
    await page.evaluate(() => navigator.clipboard.writeText(""));
    await page.getByRole("button", { name: "Copy this run as code" }).click();
    await page.getByRole("menuitem", { name, exact: true }).click();
    await becomes(async () => (await page.evaluate(() => navigator.clipboard.readText())) !== "", true);
    await page.getByRole("button", { name: "Copied" }).waitFor({ state: "detached" });
    return page.evaluate(() => navigator.clipboard.readText());
  };
  const run = (command, name, text) => {
    const file = path.join(folder, name);
    writeFileSync(file, text);
    return execFileSync(command, [file], { encoding: "utf8", timeout: 60_000, stdio: ["ignore", "pipe", "ignore"] });
  };
  const python = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
  try {
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByRole("button", { name: /^Settings of the conversation/ }).click();
    await page.getByLabel("System prompt").fill("It's a \"quote\".");
    await page.getByRole("dialog").getByLabel(/^Temperature/).fill("0.3");
    await page.getByRole("button", { name: "Use", exact: true }).click();
    await converse(page, "Make the background teal");
    await becomes(() => page.getByLabel("Run", { exact: true }).locator("option").count(), 2);
    const first = () => page.getByLabel("Run", { exact: true }).selectOption({ index: 0 });
    await first();
    await rows(page, "TOOL_CALL_END").waitFor(); // the model called the page's tool, and calls it again
    assert.match(run("bash", "run.sh", await copied("curl")), /"toolCallName":"change_background"/);
    assert.match(run(process.execPath, "run.mjs", await copied("@ag-ui/client")), /"name": "change_background"/);
    const openai = await copied("OpenAI");
    assert.match(openai, /"role": "system", "content": "It's a \\"quote\\"\."/);
    assert.match(openai, /temperature=0\.3/);
    assert.match(run(python, "run.py", openai), /name='change_background'/);
    assert.match(await copied("CopilotKit"), /properties=\{\{"temperature":0\.3\}\}[^]*agentId="demo"/);
    await page.reload(); // then it is known from the thread alone
    await first();
    await rows(page, "TOOL_CALL_END").waitFor();
    assert.match(run("bash", "run.sh", await copied("curl")), /"toolCallName":"change_background"/);
    await say(page, "Send an email");
    await page.getByRole("button", { name: "Deny" }).click();
    await settled(page);
    await rows(page, "RUN_FINISHED").waitFor();
    assert.match(run("bash", "run.sh", await copied("curl")), /"type":"RUN_FINISHED"/);
    assert.deepEqual(page.faults, []);
  } finally {
    rmSync(folder, { recursive: true });
    await page.leave();
  }
});
