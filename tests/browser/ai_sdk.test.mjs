// A page with the AI SDK's useChat (npm: @ai-sdk/react), on another origin than the server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { servePage } from "./built_page.mjs";
import { becomes, matches, openPage, picture, startBrowser, startServer } from "./harness.mjs";

let server;
let browser;
let files;

before(async () => {
  files = await servePage("ai_sdk");
  server = await startServer("--origin", files.origin);
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  files?.close();
  await server?.stop();
});

let chats = 0;

function check(name, work, { agent = "default", expected } = {}) {
  test(name, { timeout: 60_000 }, async () => {
    const chat = `chat-${++chats}`;
    const page = await openPage(browser, `${files.origin}/?${new URLSearchParams({ server: server.url, chat, agent })}`, { expected });
    try {
      await work(page, chat);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
    }
  });
}

async function say(page, text) {
  await page.getByLabel("Message").fill(text);
  await page.keyboard.press("Enter");
}

const status = (page) => page.locator("output").textContent();
const parts = (page, kind) => page.locator(`[data-role=assistant] [data-part=${kind}]`).allTextContents();
const answer = async (page) => (await parts(page, "text")).join("").trim();

check("text with reasoning", async (page) => {
  await say(page, "hello");
  await becomes(() => answer(page), "Hello! How can I help?");
  assert.match((await parts(page, "reasoning")).join(""), /A greeting\./);
  await becomes(() => status(page), "ready");
  await picture(page, "ai-sdk-chat");
});

check("a second question in the same chat", async (page) => {
  await say(page, "hello");
  await becomes(() => status(page).then(async (now) => [now, await answer(page)]), ["ready", "Hello! How can I help?"]);
  await say(page, "Please remember that I like tea");
  await matches(() => answer(page), /I keep it in mind\./);
  assert.equal(await page.locator("[data-role=assistant]").count(), 2);
});

check("a tool that is allowed runs, and the answer continues in the same message", async (page) => {
  await say(page, "Send an email to Anna");
  await page.getByRole("button", { name: "Allow" }).click();
  await matches(() => answer(page), /The tool said/);
  assert.match((await parts(page, "tool")).join(""), /send_email output-available .*anna@example\.com/);
  assert.equal(await page.locator("[data-role=assistant]").count(), 1);
  await becomes(() => status(page), "ready");
  await picture(page, "ai-sdk-allowed");
}, { agent: "demo" });

check("a tool that is denied does not run", async (page) => {
  await say(page, "Send an email to Anna");
  await page.getByRole("button", { name: "Deny" }).click();
  await matches(async () => (await parts(page, "tool")).join(""), /send_email output-denied/);
  await becomes(() => status(page), "ready");
}, { agent: "demo" });

check("stop keeps what was said", async (page) => {
  await say(page, "a very slow and long answer");
  await matches(() => answer(page), /Sentence/);
  await page.getByRole("button", { name: "Stop" }).click();
  await becomes(() => status(page), "ready");
  assert.match(await answer(page), /^Sentence/);
});

check("a page that is reloaded in the middle reads the whole answer on", async (page, chat) => {
  await say(page, "a long answer");
  await matches(() => answer(page), /Sentence 2 /);
  await page.reload();
  await matches(() => answer(page), /^Sentence 1 of .*Sentence 4 /);
  assert.equal(await page.locator("[data-role=assistant]").count(), 1);
  const stopped = await fetch(`${server.url}/ai-sdk/default/${chat}/stop`, { method: "POST" });
  assert.deepEqual(await stopped.json(), { stopped: true });
  await becomes(() => status(page), "ready");
});

check("an engine that fails in the middle is the page's error", async (page) => {
  await say(page, "break");
  await matches(() => page.getByRole("alert").textContent(), /The engine was lost in mid-answer\./);
  assert.match(await answer(page), /^This will/);
});

check("a refusal is the page's error", async (page) => {
  await say(page, "hello");
  await matches(() => page.locator("main").innerText(), /There is no agent of that name\./);
}, { agent: "unknown", expected: [/404/] });
