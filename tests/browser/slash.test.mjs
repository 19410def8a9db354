// Prompts of an MCP server as commands, and its resources beside a message.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { becomes, openDemo, picture, say, settled, startBrowser, startServer } from "./harness.mjs";

let server;
let browser;
before(async () => {
  server = await startServer("--notes");
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

const box = (page) => page.getByRole("textbox", { name: "Message" });
const list = (page) => page.getByRole("listbox", { name: "Prompts and resources" });
const mine = (page) => page.locator('[data-role="user"]');

/** The list, once the MCP server has started and is listed. */
async function openList(page, words = "/") {
  for (let attempt = 0; attempt < 100; attempt++) {
    await box(page).fill(words);
    if (await list(page).waitFor({ timeout: 1_000 }).then(() => true, () => false)) return;
    await box(page).fill("");
  }
  assert.fail("the list did not open");
}

test("a prompt with arguments is filled in and sent from the keyboard", { timeout: 120_000 }, async () => {
  const page = await openDemo(browser, server.url);
  await openList(page, "/pl");
  assert.deepEqual(await list(page).getByRole("option").allInnerTexts().then((all) => all.map((one) => one.split("\n")[0])), ["/plan"]);
  await picture(page, "slash-list");
  await page.keyboard.press("Enter");
  await page.getByRole("textbox", { name: "day" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Use", exact: true }).isDisabled(), true, "what is required is missing");
  await page.keyboard.type("Monday");
  await picture(page, "slash-form");
  await page.keyboard.press("Enter");
  await becomes(() => mine(page).count(), 1);
  assert.match(await mine(page).innerText(), /Hello\. What is to be done on Monday\?/);
  await page.locator('[data-role="assistant"]').waitFor();
  await settled(page);
  assert.equal(await box(page).inputValue(), "");
  assert.deepEqual(page.faults, []);
  await page.leave();
});

test("a resource is added to a message, and what matches nothing is sent as it is", { timeout: 120_000 }, async () => {
  const page = await openDemo(browser, server.url);
  await openList(page, "/today");
  await page.keyboard.press("Enter");
  await page.getByRole("list", { name: "Pasted text" }).getByRole("listitem").waitFor();
  await say(page, "hello");
  await settled(page);
  assert.match(await mine(page).first().innerText(), /hello\s+Buy milk\./);
  await say(page, "/usr/bin");
  await becomes(() => mine(page).count(), 2);
  assert.match(await mine(page).last().innerText(), /^\/usr\/bin/);
  await settled(page);
  assert.deepEqual(page.faults, []);
  await page.leave();
});
