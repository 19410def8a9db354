// What a stranger does within a minute: clicks twice, loses the line, pastes a book, deletes the wrong thing.
import assert from "node:assert/strict";
import { test } from "node:test";
import { becomes, browser, converse, LOST, matches, openDemo, openLine, picture, say, sendButton, server, settled, withServer } from "./harness.mjs";

withServer();

function feature(name, work, options = {}) {
  test(name, { timeout: 90_000 }, async () => {
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
const asked = (page) => page.locator('[data-role="user"]');
const threads = (page) => page.getByRole("navigation", { name: "Conversations" });
const box = (page) => page.getByRole("textbox", { name: "Message" });
const newConversation = (page) => page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();

/** Pastes as a person does: one event with the text. */
async function paste(page, text) {
  await box(page).focus();
  await page.evaluate((words) => {
    const data = new DataTransfer();
    data.setData("text/plain", words);
    document.activeElement.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  }, text);
}

const prose = (bytes) => "All work and no play makes a dull day. ".repeat(Math.ceil(bytes / 39)).slice(0, bytes).trim();

feature("a double click on Send sends, and does not stop", async (page) => {
  await box(page).fill("hello");
  await sendButton(page).dblclick();
  await assistant(page).getByText("Hello! How can I help?").waitFor();
  await settled(page);
});

test("a line that is cut in mid-answer is taken up again, with nothing lost and nothing doubled", { timeout: 90_000 }, async () => {
  const line = await openLine(server.url);
  const page = await openDemo(browser, line.url, { expected: LOST });
  try {
    await say(page, "A long answer please");
    await assistant(page).getByText("Sentence 2 of").waitFor();
    line.cut();
    await page.getByRole("status").getByText("Reconnecting").waitFor();
    await picture(page, "reconnecting");
    line.mend();
    await page.getByText("Reconnecting").waitFor({ state: "detached" });
    await assistant(page).getByText("Sentence 9 of").waitFor({ timeout: 30_000 });
    const numbers = (await assistant(page).innerText()).match(/Sentence \d+ of/g).slice(0, 9);
    assert.deepEqual(numbers, Array.from({ length: 9 }, (_, at) => `Sentence ${at + 1} of`));
    assert.equal(await page.getByRole("alert").count(), 0);
    await page.getByRole("button", { name: "Fold", exact: true }).click();
    const events = await page.locator('.wire-row[data-type="TEXT_MESSAGE_CONTENT"]').count();
    assert.ok(events > 9, `the panel went on, too: ${events} events`);
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await settled(page);
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
    line.close();
  }
});

feature("a long paste is folded in the composer and in the conversation, and the thread goes on", async (page) => {
  await box(page).fill("hello");
  await paste(page, prose(5_000));
  await page.getByRole("list", { name: "Pasted text" }).getByText("Pasted text, 5 kB").waitFor();
  assert.equal(await box(page).inputValue(), "hello", "the words of one's own stay apart");
  await picture(page, "pasted");
  await sendButton(page).click();
  await assistant(page).first().waitFor();
  await settled(page);
  const message = asked(page).first();
  assert.ok((await message.innerText()).length < 1_000);
  await picture(page, "folded");
  await message.getByRole("button", { name: "Show all 5 kB" }).click();
  assert.ok((await message.innerText()).length > 4_900);
  await message.getByRole("button", { name: "Show less" }).click();
  await converse(page, "What can you do?");
  await assistant(page).getByText("I can do a few things").waitFor();
});

feature("50 kB are refused before they are sent, stay in the composer, and harm nothing", async (page) => {
  await converse(page, "hello");
  await paste(page, prose(50_000));
  await sendButton(page).click();
  await page.getByRole("alert").getByText(/This message has [\d,]+ tokens\. The model holds 4,096 tokens/).waitFor();
  await picture(page, "too-long");
  await becomes(() => asked(page).count(), 1);
  await page.getByRole("button", { name: "Remove the pasted text of 50 kB" }).click();
  await converse(page, "What can you do?");
  await assistant(page).getByText("I can do a few things").waitFor();
  assert.equal(await page.getByRole("alert").count(), 0);
});

feature("a conversation that grew too long is refused, and is usable once a turn is deleted", async (page) => {
  await page.getByLabel("Agent", { exact: true }).selectOption("default"); // the demonstration's makes room by itself
  await paste(page, `hello ${prose(4_000)}`);
  await sendButton(page).click();
  await assistant(page).first().waitFor();
  await settled(page);
  await paste(page, `hello again ${prose(4_000)}`);
  await sendButton(page).click();
  await page.getByRole("alert").getByText(/delete earlier turns, or begin a new conversation/).waitFor();
  await asked(page).first().hover();
  await page.getByRole("button", { name: "Delete message" }).first().click();
  await page.getByRole("status").getByText("Turn deleted").waitFor();
  await asked(page).first().waitFor({ state: "detached" });
  await page.getByPlaceholder("Ask something").waitFor();
  await sendButton(page).click();
  await assistant(page).getByText("Hello! How can I help?").waitFor();
});

feature("a message is asked again in other words, and the thread keeps those", async (page) => {
  await converse(page, "hello");
  await asked(page).first().hover();
  await page.getByRole("button", { name: "Change message" }).click();
  await page.getByRole("textbox", { name: "Your message in other words" }).fill("What can you do?");
  await page.getByRole("button", { name: "Send again" }).click();
  await assistant(page).getByText("I can do a few things").waitFor();
  await settled(page);
  await page.reload();
  await assistant(page).getByText("I can do a few things").waitFor();
  await becomes(() => asked(page).allInnerTexts(), ["What can you do?"]);
  await becomes(() => assistant(page).count(), 1);
});

feature("the keyboard has a place after each thing that goes away", async (page) => {
  const label = () => page.evaluate(() => document.activeElement.getAttribute("aria-label") ?? document.activeElement.id ?? document.activeElement.className);
  await converse(page, "hello");
  await page.getByRole("button", { name: "Change message" }).focus();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Escape");
  await becomes(label, "Change message");
  await page.keyboard.press("Enter");
  await page.getByRole("textbox", { name: "Your message in other words" }).fill("What can you do?");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.press("Enter");
  await becomes(() => asked(page).allInnerTexts(), ["What can you do?"], "Enter sends, as in the composer");
  await becomes(label, "message");
  await settled(page);
  const rename = threads(page).locator('[data-current="true"]').getByRole("button", { name: /^Rename/ });
  const field = page.getByRole("textbox", { name: "Name of the conversation" });
  await rename.focus();
  await page.keyboard.press("Enter");
  await field.fill("Nothing of this is kept");
  await page.keyboard.press("Escape");
  await field.waitFor({ state: "detached" });
  await page.waitForFunction(() => document.activeElement.closest('[data-current="true"]'));
  assert.equal(await threads(page).getByText("Nothing of this is kept").count(), 0);
  await rename.focus();
  await page.keyboard.press("Enter");
  await field.fill("Keys");
  const [request] = await Promise.all([page.waitForRequest((each) => each.method() === "PATCH"), page.keyboard.press("Enter")]);
  assert.deepEqual(request.postDataJSON().name, "Keys");
  await page.waitForFunction(() => document.activeElement.innerText.startsWith("Keys"));
  await threads(page).getByRole("button", { name: "Delete Keys" }).press("Enter");
  await becomes(label, "message");
  await page.getByRole("button", { name: "Undo" }).click();
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Deny" }).press("Enter");
  await becomes(label, "message");
  await settled(page);
});

feature("trying again is offered for the last question, and not while something waits", async (page) => {
  await converse(page, "hello");
  const again = page.getByRole("log").getByRole("button", { name: "Try again" });
  await becomes(() => again.count(), 1);
  await say(page, "Plan a trip to Rome");
  await page.getByRole("button", { name: "Confirm plan" }).waitFor();
  await becomes(() => again.count(), 0);
  await page.getByRole("button", { name: "Decline" }).click();
  await settled(page);
  await say(page, "Very slowly, please: what is 12*7?");
  await page.locator('[data-tool="calculate"]').waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await settled(page);
  await page.locator(".asked").last().getByRole("button", { name: "Try again" }).waitFor(); // no answer came that could offer it
  await becomes(() => again.count(), 1);
});

feature("each line is written from the side where its script begins", async (page) => {
  await box(page).fill(`مرحبا\n${"words ".repeat(12)}`);
  await page.keyboard.press("Enter");
  const lines = await asked(page).evaluate((node) => {
    const frame = node.getBoundingClientRect();
    const range = document.createRange();
    range.setStart(node.firstChild, 0);
    range.setEnd(node.firstChild, 4);
    const arabic = range.getBoundingClientRect();
    return { right: frame.right - arabic.right, left: arabic.left - frame.left };
  });
  assert.ok(lines.right < lines.left, JSON.stringify(lines));
  await settled(page);
});

feature("a conversation is branched from an answer, and both go on by themselves", async (page) => {
  await converse(page, "hello");
  await converse(page, "What can you do?");
  const before = page.url();
  await page.getByRole("button", { name: "Branch from here" }).first().click();
  await assistant(page).getByText("I can do a few things").waitFor({ state: "detached" });
  await assistant(page).getByText("Hello! How can I help?").waitFor();
  await threads(page).getByText("hello (branch)").first().waitFor();
  await converse(page, "Show me a table");
  await becomes(() => asked(page).allInnerTexts(), ["hello", "Show me a table"]);
  await page.reload();
  await becomes(() => asked(page).allInnerTexts(), ["hello", "Show me a table"]);
  await page.goto(before);
  await page.reload();
  await becomes(() => asked(page).allInnerTexts(), ["hello", "What can you do?"]);
});

feature("a turn is deleted with its answer, and can be had back", async (page) => {
  await converse(page, "hello");
  await converse(page, "What can you do?");
  await asked(page).first().hover();
  await page.getByRole("button", { name: "Delete message" }).first().click();
  await page.getByRole("status").getByText("Turn deleted").waitFor();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor({ state: "detached" });
  await becomes(() => asked(page).allInnerTexts(), ["What can you do?"]);
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
  await becomes(() => asked(page).allInnerTexts(), ["hello", "What can you do?"]);
});

feature("a reopened conversation shows its last run, and each earlier one", async (page) => {
  await converse(page, "hello");
  await converse(page, "What can you do?");
  await newConversation(page);
  await page.getByText("Nothing has run yet").waitFor();
  await threads(page).getByRole("button", { name: /^hello/ }).first().click();
  await page.locator('.wire-row[data-type="RUN_FINISHED"]').waitFor();
  const runs = page.getByLabel("Run", { exact: true });
  await matches(() => runs.locator("option:checked").innerText(), /^2 of 2, .*finished$/);
  await runs.selectOption({ index: 0 });
  await page.locator(".wire-row .payload", { hasText: "Hello" }).first().waitFor();
  assert.equal(await page.locator(".wire-row .payload", { hasText: "I can" }).count(), 0);
});

feature("a deleted conversation can be had back, and is gone for good after that", async (page) => {
  await converse(page, "hello");
  const remove = async () => {
    await threads(page).getByRole("listitem").filter({ hasText: "hello" }).first().hover();
    await threads(page).getByRole("button", { name: "Delete hello" }).first().click();
    const toast = page.getByRole("status").filter({ hasText: "Conversation deleted" });
    await toast.waitFor();
    const [frame, close] = [await toast.boundingBox(), await toast.getByRole("button", { name: "Dismiss" }).boundingBox()];
    assert.ok(frame.x + frame.width - (close.x + close.width) < 20, "its buttons stand at its end");
    assert.notEqual(await toast.locator("strong").evaluate((node) => getComputedStyle(node).color), "rgb(176, 41, 28)", "nothing failed");
  };
  await threads(page).getByText("hello").first().waitFor();
  const before = await threads(page).getByRole("listitem").filter({ hasText: "hello" }).count();
  await remove();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Undo" }).click();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
  await page.waitForFunction((wanted) => [...document.querySelectorAll(".thread")].filter((each) => each.innerText.startsWith("hello")).length === wanted, before);
  const id = new URLSearchParams(new URL(page.url()).hash.slice(1)).get("thread");
  const status = async () => (await fetch(`${server.url}/agui/threads/${id}`)).status;
  await remove();
  assert.equal(await status(), 200, "it can still be had back");
  await page.goto("about:blank");
  while ((await status()) !== 404) await new Promise((resolve) => setTimeout(resolve, 20));
});

feature("a conversation is found by a word of its name", async (page) => {
  await converse(page, "What is the weather in Oslo?");
  await newConversation(page);
  await converse(page, "What can you do?");
  await threads(page).getByRole("searchbox").fill("oslo");
  await threads(page).getByText("What can you do?").first().waitFor({ state: "detached" });
  await threads(page).getByText("What is the weather in Oslo?").first().waitFor();
  await threads(page).getByRole("searchbox").fill("nowhere");
  await page.getByText("No conversation has these words in its name.").waitFor();
});

feature("each agent is offered what it can do, and each offer reaches the tool that it names", async (page) => {
  const offers = page.getByRole("list", { name: "Suggestions" }).getByRole("button");
  const titles = () => offers.locator("b").allInnerTexts();
  await page.getByRole("button", { name: /Weather in Oslo/ }).waitFor();
  await page.getByLabel("Agent").selectOption("default");
  // the list goes while the new conversation is asked for, and comes back with the other agent's offers
  await page.getByRole("button", { name: /Weather in Oslo/ }).waitFor({ state: "detached" });
  await becomes(titles, ["Plan a trip to Rome", "Make the background teal", "What can you do?", "Load a real model"]);
  await offers.filter({ hasText: "Make the background teal" }).click();
  await page.waitForFunction(() => getComputedStyle(document.querySelector(".app")).backgroundColor === "rgb(0, 128, 128)");
  await settled(page);
  await page.getByLabel("Agent").selectOption("cook");
  await page.getByRole("button", { name: /Add ingredient/ }).click();
  await becomes(() => box(page).inputValue(), "Add ingredient, name: ");
  await picture(page, "offers");
  await box(page).fill("Please add salt");
  await page.keyboard.press("Enter");
  await page.locator('[data-tool="add_ingredient"]').waitFor();
  await settled(page);
  await offers.filter({ hasText: "See the shared state" }).click();
  await matches(() => page.getByRole("textbox", { name: "Shared state as JSON" }).inputValue(), /salt/);
});

feature("a wide table scrolls and keeps its words whole; boxes have names", async (page) => {
  await converse(page, "Show me a table");
  const table = page.getByRole("region", { name: "Table" });
  assert.ok(await table.evaluate((node) => node.scrollWidth > node.clientWidth), "it scrolls");
  const broken = await table.evaluate((node) => [...node.querySelectorAll("td")].filter((cell) => {
    const range = document.createRange();
    range.selectNodeContents(cell);
    return !cell.innerText.includes(" ") && range.getClientRects().length > 1;
  }).map((cell) => cell.innerText));
  assert.deepEqual(broken, []);
  await page.getByRole("checkbox", { name: "Not done" }).waitFor();
  await page.getByRole("checkbox", { name: "Done", exact: true }).waitFor();
}, { viewport: { width: 390, height: 844 } });

feature("a keyboard reaches the composer at once, and the page has a heading", async (page) => {
  assert.equal(await page.evaluate(() => document.querySelector("a[href], button, input, select, textarea, [tabindex]").textContent), "Skip to the message");
  await page.getByRole("link", { name: "Skip to the message" }).focus();
  await picture(page, "skip");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "message");
  await becomes(() => page.getByRole("heading", { level: 1 }).count(), 1);
  await converse(page, "hello");
  await becomes(() => page.getByRole("heading", { level: 1 }).count(), 1);
});

feature("a call that was denied does not look done", async (page) => {
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Deny" }).click();
  await settled(page);
  const card = page.locator('[data-tool="send_email"]');
  await matches(() => card.innerText(), /Denied/);
  assert.doesNotMatch(await card.innerText(), /Done/);
  await picture(page, "denied");
});

feature("the empty page says how the model is, and how to reach it from one's own code", async (page) => {
  await page.getByRole("status").getByText("agent-server-demo is ready, 4,096 tokens of context").waitFor();
  const top = await page.getByRole("heading", { level: 2, name: "A model is running" }).boundingBox();
  const frame = await page.getByRole("region", { name: "Conversation history" }).boundingBox();
  assert.ok(top.y >= frame.y, "it is read from its top");
  const clients = page.getByRole("region", { name: "Use it from your code" });
  const code = () => clients.locator("code").innerText();
  await matches(code, new RegExp(`runtimeUrl="${server.url}/copilotkit"[^]*agentId="demo"`));
  await clients.getByRole("tab", { name: "CopilotKit" }).press("ArrowRight");
  await matches(code, new RegExp(`new HttpAgent\\(\\{ url: "${server.url}/agui/demo"`));
  await clients.getByRole("tab", { name: "OpenAI" }).click();
  await matches(code, new RegExp(`base_url="${server.url}/v1"[^]*model="agent-server-demo"`));
  await clients.getByRole("tab", { name: "curl" }).click();
  await matches(code, /curl -N/);
  const [, address, body] = /curl -N (\S+) [^]*-d '(.*)'$/.exec(await code());
  const answer = await fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body });
  assert.match(await answer.text(), /data: \[DONE\]/, "what one copies works");
});

feature("what is said in another tab appears, while it is being answered", async (page) => {
  await converse(page, "hello");
  const other = await page.context().newPage();
  await other.goto(page.url());
  await assistant(other).getByText("Hello! How can I help?").waitFor();
  await say(page, "A long answer please");
  await asked(other).getByText("A long answer please").waitFor();
  await assistant(other).getByText("Sentence 2 of").waitFor();
  assert.equal(await page.getByRole("button", { name: "Stop", exact: true }).count(), 1, "it is not over yet");
  await becomes(() => asked(other).allInnerTexts(), ["hello", "A long answer please"]);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await settled(page);
  await settled(other);
  await asked(page).first().hover();
  await page.getByRole("button", { name: "Delete message" }).first().click();
  await becomes(() => asked(other).allInnerTexts(), ["A long answer please"], "what is taken away in one is gone in the other");
  await page.getByRole("button", { name: "Undo" }).click();
  await becomes(() => asked(other).allInnerTexts(), ["hello", "A long answer please"]);
});

feature("an answer that was stopped says so, also after a reload", async (page) => {
  await say(page, "A long answer please");
  await assistant(page).getByText("Sentence 2 of").waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await page.getByRole("log").getByText("Stopped", { exact: true }).waitFor();
  await picture(page, "stopped");
  await page.reload();
  await page.getByRole("log").getByText("Stopped", { exact: true }).waitFor();
  await converse(page, "hello");
  await becomes(() => page.getByRole("log").getByText("Stopped", { exact: true }).count(), 1);
});

feature("a conversation that is full offers a new one, which keeps what was written", async (page) => {
  await page.getByLabel("Agent", { exact: true }).selectOption("default");
  for (const turn of ["one", "two"]) await converse(page, `remember ${turn} ${"word ".repeat(1_200)}`);
  await say(page, `remember three ${"word ".repeat(1_900)}`);
  const refused = page.getByRole("alert");
  await refused.getByText(/The model holds 4,096 tokens/).waitFor();
  await picture(page, "full");
  await refused.getByRole("button", { name: "New conversation" }).click();
  await becomes(() => asked(page).count(), 0);
  assert.match(await box(page).inputValue(), /^remember three/);
  await sendButton(page).click();
  await assistant(page).getByText("I keep it in mind.").waitFor();
});

feature("the demonstration's agent makes room in a conversation that is full", async (page) => {
  for (const turn of ["one", "two", "three"]) await converse(page, `remember ${turn} ${"word ".repeat(1_200)}`);
  await page.getByRole("note").getByText(/The conversation outgrew the model/).first().waitFor();
  await picture(page, "compacted");
  await converse(page, "hello");
  await assistant(page).getByText("Hello! How can I help?").waitFor();
});

feature("the counter of tokens stays where it is while a run goes on, and says one turn's", async (page) => {
  const figures = () => page.locator(".figures").innerText();
  const tokens = async () => Number((/([\d,]+) of 4,096/.exec(await figures())?.[1] ?? "0").replace(",", ""));
  await converse(page, "Slowly, please: what is 12*7?");
  const calculated = await tokens();
  assert.ok(calculated > 0, await figures());
  await say(page, "A long answer please");
  await assistant(page).getByText("Sentence 2 of").waitFor();
  assert.equal(await tokens(), calculated);
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await settled(page);
  assert.equal(await tokens(), calculated);
  await converse(page, "hello");
  assert.ok((await tokens()) > calculated, "a run of two turns is not counted twice");
});

feature("earlier versions of an answer are kept, looked at, and left by what is said next", async (page) => {
  await converse(page, "hello");
  await page.getByRole("button", { name: "Try again" }).click();
  await settled(page);
  const versions = page.getByRole("group", { name: "Versions of this turn" });
  await versions.getByText("2/2").waitFor();
  await asked(page).first().hover();
  await page.getByRole("button", { name: "Change message" }).click();
  await page.getByRole("textbox", { name: "Your message in other words" }).fill("What can you do?");
  await page.getByRole("button", { name: "Send again" }).click();
  await assistant(page).getByText("I can do a few things").waitFor();
  await settled(page);
  await versions.getByText("3/3").waitFor();
  await versions.getByRole("button", { name: "Earlier version" }).click();
  await becomes(() => asked(page).innerText(), "hello");
  await assistant(page).getByText("Hello! How can I help?").waitFor();
  await versions.getByText("The conversation goes on from the latest one.").waitFor();
  await picture(page, "versions");
  await page.reload();
  await versions.getByText("3/3").waitFor();
  await converse(page, "hello");
  await becomes(() => asked(page).allInnerTexts(), ["What can you do?", "hello"]);
});

feature("an answer is judged, and the judgement is kept", async (page) => {
  await converse(page, "hello");
  await page.getByRole("button", { name: "Good answer" }).click();
  await page.locator('[aria-label="Good answer"][aria-pressed="true"]').waitFor();
  await page.reload();
  await page.locator('[aria-label="Good answer"][aria-pressed="true"]').waitFor();
  await page.getByText(/\d\.\d s/).first().waitFor();
});

feature("a keyboard reaches every command by its name", async (page) => {
  await page.keyboard.press("Control+k");
  const palette = page.getByRole("dialog", { name: "Commands" });
  await palette.getByText("Stop the answer").waitFor();
  await picture(page, "palette");
  await page.keyboard.type("dark");
  await page.keyboard.press("Enter");
  await becomes(() => page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await palette.waitFor({ state: "detached" });
  await page.keyboard.press("Control+k");
  await page.keyboard.type("show the model");
  await page.keyboard.press("Enter");
  await page.getByRole("tab", { name: "Model", selected: true }).waitFor();
  await page.keyboard.press("Control+k");
  await page.keyboard.press("Escape");
  await palette.waitFor({ state: "detached" });
});
