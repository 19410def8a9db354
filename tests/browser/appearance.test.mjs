// Every feature of the demo as it looks: light and dark, wide and on a phone. Nothing overflows, axe finds nothing,
// and with SCREENSHOTS=folder each view is kept as a picture for people to look at.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { LOST, PHONE, SCREENS, axeSource, browser, converse, openDemo, openPage, picture, say, server, settled, startServer, withServer } from "./harness.mjs";

withServer();

const axe = readFileSync(axeSource, "utf8");

/** One run of views under each of the conditions. `work` gets the page, `look`, and what a phone needs besides. */
function views(name, work, options) {
  for (const { size, viewport, colorScheme } of SCREENS) {
    test(`${name}, at ${size} pixels in ${colorScheme}`, { timeout: 90_000 }, async () => {
      const page = await openDemo(browser, server.url, { viewport, colorScheme, ...options });
      const phone = viewport === PHONE;
      try {
        await work(page, {
          phone,
          look: (view) => look(page, `${size}-${colorScheme}-${view}`),
          inspect: async (tab) => {
            if (phone) await page.getByRole("button", { name: "Inspector", exact: true }).click();
            await page.getByRole("tab", { name: new RegExp(`^${tab}`) }).click();
          },
          leave: async () => phone && page.locator(".tabs").getByRole("button", { name: "Close the inspector" }).click(),
        });
        assert.deepEqual(page.faults, []);
      } finally {
        await page.leave();
      }
    });
  }
}

views("a conversation, a plan, an approval, the inspector and the threads", async (page, { phone, look, inspect, leave }) => {
  await look("empty");
  await converse(page, "What is the weather in Oslo?");
  await converse(page, "What can you do?");
  await look("conversation");
  await say(page, "Plan a trip");
  await page.getByRole("button", { name: "Confirm plan" }).waitFor();
  await look("plan");
  await page.getByRole("button", { name: "Decline" }).click();
  await page.getByRole("log").getByText('"accepted":false').waitFor();
  await settled(page);
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await look("approval");
  await inspect("Stream");
  await page.locator(".wire-row button").nth(4).click();
  await look("stream");
  for (const tab of ["State", "Document", "Model"]) {
    await page.getByRole("tab", { name: new RegExp(`^${tab}`) }).click();
    await look(tab.toLowerCase());
  }
  await leave();
  if (phone) {
    await page.getByRole("button", { name: "Conversations", exact: true }).click();
    await page.getByRole("navigation", { name: "Conversations" }).waitFor();
    await look("threads");
  }
});

views("a question, a state, a document and what the page's own tools do", async (page, { phone, look, inspect, leave }) => {
  await page.getByLabel("Agent").selectOption("cook");
  await say(page, "Let me choose a colour");
  const form = page.getByRole("region", { name: "The model waits for you" });
  await form.getByLabel("colour").waitFor();
  await look("question");
  await form.getByLabel("colour").selectOption("green");
  await page.getByRole("button", { name: "Answer" }).click();
  await settled(page);
  await converse(page, "Show progress");
  await look("progress");
  await converse(page, "Please add salt");
  await inspect("State");
  await page.getByRole("textbox", { name: "Shared state as JSON" }).waitFor();
  await look("state-filled");
  await page.getByRole("textbox", { name: "Shared state as JSON" }).fill("{ not json");
  await look("state-refused");
  await leave();
  await page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();
  await page.getByLabel("Agent").selectOption("demo");
  await say(page, "Slowly write a document about owls");
  await page.getByRole("region", { name: "Document" }).first().getByText(/words/).waitFor();
  await look("document-card");
  if (phone) await inspect("Document");
  await page.locator(".document h1", { hasText: "Owls" }).waitFor();
  await look("document-writing");
  await leave();
  await settled(page);
  await converse(page, "Make the background teal");
  await look("background");
});

views("a stream that is paused and stopped, a fault, a replay", async (page, { look, inspect, leave }) => {
  await say(page, "Very slowly, please: what is 12*7?");
  await page.locator('[data-tool="calculate"] dt', { hasText: "expression" }).waitFor();
  await look("call-arriving");
  await settled(page);
  await page.locator('[data-tool="calculate"] summary').click();
  await look("call-result");
  await say(page, "A long answer please");
  await page.getByRole("log").getByText("Sentence 2 of").waitFor();
  await inspect("Stream");
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
  await look("paused");
  await leave();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await settled(page);
  await look("stopped");
  await say(page, "Please break");
  await page.getByRole("alert").getByText("The engine was lost in mid-answer.").waitFor();
  await settled(page);
  await look("fault");
  await page.getByRole("alert").getByRole("button", { name: "Dismiss" }).click();
  await inspect("Stream");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save the event log" }).click()]);
  await page.goto(`${server.url}/?replay=`);
  await page.locator('input[type="file"]').waitFor({ state: "attached" });
  await look("replay-empty");
  await page.locator('input[type="file"]').setInputFiles(await download.path());
  await page.locator(".notice").getByText("The engine was lost in mid-answer.").waitFor();
  await page.getByRole("button", { name: "Again", exact: true }).waitFor();
  await look("replay");
});

views("settings, menus, a message that is changed, what was denied, code, a table and a formula", async (page, { look }) => {
  await page.getByRole("button", { name: /^Settings of the conversation/ }).click();
  await page.getByRole("dialog", { name: "Settings of this conversation" }).waitFor();
  await look("settings");
  await page.keyboard.press("Escape");
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Deny" }).click();
  await settled(page);
  await look("denied");
  await page.getByRole("button", { name: "Export the conversation" }).click();
  await page.getByRole("menu").waitFor();
  await look("menu");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Change message" }).first().click();
  await look("changing");
  await page.keyboard.press("Escape");
  for (const what of ["code", "a table", "a formula"]) await converse(page, `Show me ${what}`);
  await page.locator(".katex, math").first().waitFor();
  await look("written");
});

for (const { size, viewport, colorScheme } of SCREENS) {
  test(`a locked server and one that is gone, at ${size} pixels in ${colorScheme}`, { timeout: 90_000 }, async () => {
    const locked = await startServer("--key", "open-sesame");
    const page = await openPage(browser, locked.url, { viewport, colorScheme, expected: [/401/, ...LOST] });
    try {
      await page.getByLabel("API key", { exact: true }).fill("open-sesame");
      await look(page, `${size}-${colorScheme}-key`);
      await page.getByRole("button", { name: "Continue" }).click();
      await converse(page, "hello");
      await locked.stop("SIGKILL");
      await page.getByPlaceholder("No answer from the server, retrying").waitFor({ timeout: 20_000 });
      await look(page, `${size}-${colorScheme}-gone`);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
      await locked.stop("SIGKILL");
    }
  });
}

async function look(page, name) {
  await page.waitForTimeout(350); // short motions end first: axe measures colours as they are painted
  await picture(page, name);
  const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(wider <= 0, `${name}: the page is ${wider} pixels too wide`);
  await page.evaluate(axe); // not as a script tag: the page's policy forbids foreign ones
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const words = found.violations.map((each) => `${each.id}: ${each.help}\n${each.nodes.map((node) => `  ${node.html.slice(0, 160)}\n  ${node.failureSummary}`).slice(0, 4).join("\n")}`);
  assert.deepEqual(words, [], `${name}:\n${words.join("\n")}`);
}
