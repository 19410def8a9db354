// What a person sets for one conversation: sent with each of its runs, taken by the server, kept with the thread.
import assert from "node:assert/strict";
import { test } from "node:test";
import { becomes, browser, converse, matches, openDemo, picture, server, settled, withServer } from "./harness.mjs";

withServer();

const form = (page) => page.getByRole("dialog", { name: "Settings of this conversation" });
const open = (page) => page.getByRole("button", { name: /^Settings of the conversation/ }).click();

/** The body of the run that `work` begins. */
async function sent(page, work) {
  const [request] = await Promise.all([page.waitForRequest((each) => /\/agent\/\w+\/run$/.test(each.url())), work()]);
  const { forwardedProps, messages } = request.postDataJSON();
  return { forwardedProps, messages };
}

test("settings travel with each run, stay with their thread over a reload, and are reset", { timeout: 90_000 }, async () => {
  const page = await openDemo(browser, server.url);
  try {
    await open(page);
    await form(page).getByLabel("System prompt").fill("Speak like a pirate.");
    await form(page).getByLabel(/^Temperature/).fill("0.3");
    await form(page).getByLabel(/^Top p/).fill("0.9");
    await form(page).getByLabel(/^Most tokens/).fill("5");
    await form(page).getByLabel("Thinking").selectOption("false");
    await picture(page, "settings");
    await form(page).getByRole("button", { name: "Use" }).click();
    const first = await sent(page, () => converse(page, "hello"));
    assert.deepEqual(first.forwardedProps, { temperature: 0.3, top_p: 0.9, max_tokens: 5, enable_thinking: false });
    assert.deepEqual(first.messages.map(({ role, content }) => [role, content]), [["system", "Speak like a pirate."], ["user", "hello"]]);
    await page.locator(".wire-row[data-type=\"RUN_FINISHED\"]").getByText(/finish_reason\s*length|length/).first().waitFor();
    await becomes(() => page.getByText("Speak like a pirate.").count(), 0, "the system prompt is no message of the conversation");
    await page.getByRole("button", { name: "Settings of the conversation, 5 set" }).waitFor();

    const id = new URLSearchParams(new URL(page.url()).hash.slice(1)).get("thread");
    const kept = async () => (await (await fetch(`${server.url}/agui/threads/${id}`)).json()).thread;
    await becomes(async () => (await kept()).metadata.settings, { system: "Speak like a pirate.", ...first.forwardedProps });
    assert.equal((await kept()).name, "hello");
    await page.reload();
    await page.getByRole("button", { name: "Settings of the conversation, 5 set" }).waitFor();
    const again = await sent(page, () => converse(page, "hello"));
    assert.deepEqual(again.forwardedProps, first.forwardedProps);
    assert.equal(again.messages[0].content, "Speak like a pirate.");

    await page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();
    assert.deepEqual((await sent(page, () => converse(page, "hello"))).forwardedProps, {}, "another conversation has its own");
    await page.goBack();
    await page.getByRole("button", { name: "Settings of the conversation, 5 set" }).click();
    await form(page).getByRole("button", { name: "Reset" }).click();
    const reset = await sent(page, () => converse(page, "hello"));
    assert.deepEqual(reset.forwardedProps, {});
    assert.ok(!reset.messages.some(({ role }) => role === "system"));
    await page.reload();
    await page.locator('[data-role="assistant"]').last().waitFor();
    const after = await sent(page, () => converse(page, "hello"));
    assert.ok(!after.messages.some(({ role }) => role === "system"), "the server has forgotten it, too");
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
  }
});

test("the form takes nothing that the server would refuse, and closes with Escape", { timeout: 60_000 }, async () => {
  const page = await openDemo(browser, server.url);
  try {
    await open(page);
    await form(page).getByLabel(/^Temperature/).fill("9");
    await form(page).getByRole("button", { name: "Use" }).click();
    assert.equal(await form(page).getByLabel(/^Temperature/).evaluate((field) => field.validity.rangeOverflow), true);
    await form(page).waitFor();
    await page.keyboard.press("Escape");
    await form(page).waitFor({ state: "detached" });
    await converse(page, "hello");
    await settled(page);
    await matches(() => page.locator(".foot .figures").innerText(), /^\d+ tokens\/s · [\d,]+ of 4,096 tokens$/);
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
  }
});
