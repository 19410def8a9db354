// A CopilotKit application that is not ours, on another origin, pointed at /copilotkit with a bearer token.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { becomes, matches, openPage, picture, startBrowser, startServer } from "./harness.mjs";
import { servePage } from "./built_page.mjs";

const KEY = "a-secret";

let server;
let browser;
let files;
let origin;

before(async () => {
  files = await servePage("newcomer");
  origin = files.origin;
  server = await startServer("--key", KEY, "--origin", origin, "--graph");
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  files?.close();
  await server?.stop();
});

let threads = 0;

function check(name, work, options = {}) {
  test(name, { timeout: 60_000 }, async () => {
    const given = { runtime: `${server.url}/copilotkit`, token: KEY, thread: `newcomer-${++threads}`, agent: "demo", ...options.query };
    const page = await openPage(browser, `${origin}/?${new URLSearchParams(given)}`, options);
    try {
      await connected(page);
      await work(page, given);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
    }
  });
}

/** The chat has its agent and the thread. It may connect twice on mount: it takes no words before, and drops a run begun in between. */
async function connected(page) {
  await page.getByTestId("connected").waitFor({ state: "attached" });
  await page.getByTestId("copilot-chat-textarea").waitFor();
}

async function say(page, text) {
  await page.getByTestId("copilot-chat-textarea").fill(text);
  await page.keyboard.press("Enter");
}

const answer = (page, text) => page.locator('[data-testid="copilot-message-list"]').getByText(text).last().waitFor();

check("chat, with reasoning", async (page) => {
  await say(page, "hello");
  await answer(page, "Hello! How can I help?");
  await page.getByText(/Thought for/).waitFor();
  await picture(page, "newcomer-chat");
});

check("the single endpoint serves the same chat", async (page) => {
  await say(page, "hello");
  await answer(page, "Hello! How can I help?");
}, { query: { single: "" } });

check("a frontend tool runs in the page and its result returns to the model", async (page) => {
  await say(page, "Make the background teal");
  await page.getByTestId("background").filter({ hasText: "teal" }).waitFor();
  await answer(page, "The tool said ok");
});

check("human in the loop", async (page) => {
  await say(page, "Plan a trip");
  await page.getByRole("button", { name: "Looks good" }).click();
  await answer(page, /The tool said .*"accepted":true/);
});

check("an interrupt is asked, and the run resumes with the answer", async (page) => {
  await say(page, "Send an email");
  await page.getByTestId("interrupt").getByText("Send this email?").waitFor();
  await page.getByRole("button", { name: "Yes" }).click();
  await answer(page, /The tool said .*"status":"sent"/);
  assert.equal(await page.getByTestId("interrupt").count(), 0);
});

check("an interrupt may be cancelled", async (page) => {
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Never mind" }).click();
  await answer(page, /The tool said/);
  assert.equal(await page.getByText(/"status":"sent"/).count(), 0);
});

check("a backend tool is rendered with its arguments and its result", async (page) => {
  await say(page, "What is the weather?");
  await page.getByTestId("weather").getByText(/complete Oslo .*"city":"Oslo"/).waitFor();
});

check("shared state goes both ways", async (page) => {
  const state = async () => JSON.parse(await page.getByTestId("state").innerText());
  await say(page, "Please add salt");
  await answer(page, "The tool said salt added");
  assert.deepEqual((await state()).ingredients, ["water", "salt"]);
  await page.getByRole("button", { name: "Make it a stew" }).click();
  await say(page, "Please add salt");
  await page.waitForFunction(() => document.querySelector('[data-testid="state"]').innerText.includes('["beans","salt"]'));
}, { query: { agent: "cook" } });

check("activity is rendered", async (page) => {
  await say(page, "Show progress");
  await page.getByTestId("activity").first().waitFor();
  await matches(() => page.getByTestId("activity").first().innerText(), /tool_progress/);
}, { query: { agent: "cook" } });

const GRAPH = { query: { agent: "traveller" } };

check("a LangGraph graph talks, and its tools are rendered", async (page) => {
  await say(page, "hello graph");
  await answer(page, "You said hello graph");
  await page.getByText(/Thought for/).waitFor();
  await say(page, 'call weather {"place": "Oslo"}');
  await answer(page, "It says: Sun in Oslo");
  await say(page, 'call weather {"place": "Atlantis"}');
  await answer(page, /It says: .*There is no such place/);
  await picture(page, "newcomer-graph");
}, GRAPH);

check("a page's tool runs for a LangGraph graph, and the graph reads its result", async (page) => {
  await say(page, 'call change_background {"background": "teal"}');
  await page.getByTestId("background").filter({ hasText: "teal" }).waitFor();
  await answer(page, "It says: ok");
}, GRAPH);

check("a LangGraph graph's interrupt is asked, also after a reload, and answered", async (page) => {
  await say(page, 'call reserve {"place": "Oslo"}');
  await page.getByTestId("interrupt").getByText("Reserve Oslo?").waitFor();
  await page.reload();
  await connected(page);
  await page.getByTestId("interrupt").getByText("Reserve Oslo?").waitFor();
  await page.getByRole("button", { name: "Yes" }).click();
  await answer(page, "It says: Reserved Oslo");
  assert.equal(await page.getByTestId("interrupt").count(), 0);
  assert.match(await page.getByTestId("state").innerText(), /"log"/);
}, GRAPH);

/** Asks until the conversation is longer than its agent keeps. */
async function untilForgotten(page) {
  const long = "word ".repeat(150);
  for (const [asked, told] of [["can you do", "Look up the"], ["remember", "I keep it in mind."]]) {
    await say(page, `${asked} ${long}`);
    await answer(page, told);
  }
}

check("an activity that the page does not know leaves its chat alone", async (page) => {
  await untilForgotten(page);
  await say(page, "hello");
  await answer(page, "Hello! How can I help?");
  assert.equal(await page.getByText(/agent_server/).count(), 0);
  assert.equal(await page.getByTestId("error").innerText(), "");
}, { query: { agent: "forgetful", plain: "" } });

check("a page may show that a conversation was shortened", async (page) => {
  await untilForgotten(page);
  await page.getByTestId("compaction").getByText(/left out/).first().waitFor();
  await picture(page, "newcomer-compaction");
}, { query: { agent: "forgetful" } });

check("stop keeps what arrived, and the next question is answered", async (page) => {
  await say(page, "A long answer please");
  await page.getByText(/Sentence 2 of/).waitFor();
  await page.getByTestId("copilot-send-button").click();
  await page.waitForTimeout(400);
  const held = await page.getByTestId("copilot-message-list").innerText();
  await page.waitForTimeout(400);
  assert.equal(await page.getByTestId("copilot-message-list").innerText(), held);
  await say(page, "hello");
  await answer(page, "Hello! How can I help?");
  assert.equal(await page.getByTestId("error").innerText(), "");
});

check("a reload brings the history back, once", async (page) => {
  await say(page, "hello");
  await answer(page, "Hello! How can I help?");
  await page.reload();
  await answer(page, "Hello! How can I help?");
  await page.waitForTimeout(300);
  await becomes(() => page.getByTestId("copilot-user-message").count(), 1);
  await becomes(() => page.getByText("Hello! How can I help?").count(), 1);
});

check("a reload in mid-answer joins the run", async (page) => {
  await say(page, "A long answer please");
  await page.getByText(/Sentence 2 of/).waitFor();
  await page.reload();
  await page.getByText(/Sentence 5 of/).waitFor();
  assert.equal((await page.getByTestId("copilot-message-list").innerText()).match(/Sentence 2 of/g).length, 1);
});

check("a run that breaks reaches onError with the server's sentence", async (page) => {
  await say(page, "Please break");
  await page.getByTestId("error").filter({ hasText: "The engine was lost in mid-answer." }).waitFor();
});

test("without the token the application is refused, in words that it can read", async () => {
  const page = await openPage(browser, `${origin}/?${new URLSearchParams({ runtime: `${server.url}/copilotkit` })}`, {
    expected: [/401/, /Failed to load runtime info/, /Agent default not found/, /CopilotKit/],
  });
  await page.waitForFunction(() => /401/.test(document.querySelector('[data-testid="error"]')?.innerText ?? ""));
  await page.leave();
});
