// The demo's features, each used as a person would use it, against the real server with a scripted model.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { becomes, browser, converse, matches, openDemo, picture, say, sendButton, server, settled, withServer } from "./harness.mjs";

withServer();

/** One feature in a fresh page, which must end without a console error or a foreign request. */
function feature(name, work, options) {
  test(name, { timeout: 60_000 }, async () => {
    const page = await openDemo(browser, server.url + (options?.at ?? "/"), options);
    try {
      await work(page);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
    }
  });
}

const assistant = (page) => page.locator('[data-role="assistant"]');
const rows = (page, type) => page.locator(`.wire-row[data-type="${type}"]`);

feature("the empty page says what runs here and offers things to ask", async (page) => {
  await page.getByRole("heading", { name: "A model is running on this machine." }).waitFor();
  await becomes(() => page.getByRole("list", { name: "Suggestions" }).getByRole("button").count(), 8);
  await matches(() => page.getByTitle("What is loaded").innerText(), /agent-server-demo/);
  await picture(page, "empty");
});

feature("text arrives as markdown, reasoning folds once it has been thought", async (page) => {
  await page.getByRole("button", { name: /What can you do/ }).click();
  await settled(page);
  await becomes(() => assistant(page).locator("ol > li").count(), 2);
  assert.equal(await assistant(page).locator("strong").innerText(), "weather");
  assert.equal((await assistant(page).locator("pre code").innerText()).trim(), "print(3)");
  const reasoning = page.locator("details.reasoning");
  assert.equal(await reasoning.getAttribute("open"), null);
  await reasoning.locator("summary").click();
  await page.getByRole("log").getByText("A question about me.").waitFor();
  await picture(page, "markdown");
});

feature("a server tool's call fills in while it streams and ends as a card with its result", async (page) => {
  await say(page, "Slowly, please: what is 12*7?");
  await page.locator('[data-tool="calculate"] dt', { hasText: "expression" }).waitFor();
  await settled(page);
  const card = page.locator('[data-tool="calculate"] details');
  assert.equal(await card.getAttribute("open"), null, "a finished call folds");
  await card.locator("summary").click();
  await matches(() => card.locator(".result").innerText(), /84/);
  await converse(page, "What is the weather in Oslo?");
  await matches(() => page.getByRole("region", { name: "Weather in Oslo" }).innerText(), /-?\d+°/);
  await picture(page, "tools");
});

feature("a tool of the page changes the page, and the model hears of it", async (page) => {
  await converse(page, "Make the background teal");
  await page.waitForFunction(() => getComputedStyle(document.querySelector(".app")).backgroundColor === "rgb(0, 128, 128)");
  await matches(() => assistant(page).last().innerText(), /success/);
  await picture(page, "background");
});

feature("a plan is edited, extended and confirmed, and the model gets what was left of it", async (page) => {
  await say(page, "Plan a trip to Rome");
  await page.getByRole("button", { name: "Confirm plan" }).waitFor();
  await picture(page, "plan");
  await page.getByRole("checkbox", { name: "Include step 2" }).uncheck();
  await page.getByRole("textbox", { name: "Step 1" }).fill("Book a sleeper train");
  await page.getByRole("button", { name: "Add a step" }).click();
  await page.getByRole("textbox", { name: "Step 4" }).fill("Eat ice cream");
  await page.getByRole("button", { name: "Confirm plan" }).click();
  await matches(() => assistant(page).last().innerText(), /"accepted":true/);
  await settled(page);
  const heard = await assistant(page).last().innerText();
  assert.match(heard, /sleeper/);
  assert.match(heard, /"description":"Find a hotel","status":"disabled"/);
  assert.match(heard, /ice cream/);
  await page.getByText("Confirmed").waitFor();
});

feature("a declined plan reaches the model as declined", async (page) => {
  await say(page, "Plan a trip to Rome");
  await page.getByRole("button", { name: "Decline" }).click();
  await assistant(page).getByText('"accepted":false').waitFor();
  await settled(page);
  await page.getByText("Declined").waitFor();
});

feature("an email waits for approval and goes out as it was edited", async (page) => {
  await say(page, "Send an email");
  const form = page.getByRole("region", { name: "The model waits for you" });
  await form.getByLabel("to").fill("bob@example.com");
  await picture(page, "approval");
  await form.getByRole("button", { name: "Approve with changes" }).click();
  await form.waitFor({ state: "detached" });
  await settled(page);
  await matches(() => assistant(page).last().innerText(), /"to":"bob@example\.com"/);
  await becomes(() => page.locator('[data-tool="send_email"]').count(), 1);
});

feature("a denied email is not sent", async (page) => {
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Deny" }).click();
  await settled(page);
  assert.doesNotMatch(await assistant(page).last().innerText(), /"status":"sent"/);
});

feature("an approval survives a reload", async (page) => {
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.reload();
  await page.getByRole("button", { name: "Approve" }).click();
  await settled(page);
  await matches(() => assistant(page).last().innerText(), /"status":"sent"/);
});

feature("an approval that waits holds its own conversation alone", async (page) => {
  await say(page, "Send an email");
  await page.getByRole("button", { name: "Approve" }).waitFor();
  await page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();
  await converse(page, "hello");
  await assistant(page).getByText("Hello! How can I help?").waitFor();
  await page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: /^Send an email/ }).first().click();
  await page.getByRole("button", { name: "Approve" }).click();
  await settled(page);
  await matches(() => assistant(page).last().innerText(), /"status":"sent"/);
});

feature("a plan that waits holds its own conversation alone", async (page) => {
  await say(page, "Plan a trip to Rome");
  await page.getByRole("button", { name: "Confirm plan" }).waitFor();
  await page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();
  await converse(page, "hello");
  await assistant(page).getByText("Hello! How can I help?").waitFor();
  await page.getByRole("navigation", { name: "Conversations" }).getByRole("button", { name: /^Plan a trip/ }).first().click();
  await page.getByRole("button", { name: "Confirm plan" }).click();
  await assistant(page).getByText('"accepted":true').waitFor();
});

feature("an agent's question is answered with a form made from its schema", async (page) => {
  await page.getByLabel("Agent").selectOption("cook");
  await say(page, "Let me choose a colour");
  const form = page.getByRole("region", { name: "The model waits for you" });
  assert.equal(await form.getByRole("button", { name: "Answer" }).isDisabled(), true);
  await form.getByText("Still to be filled in: colour").waitFor();
  await form.getByLabel("colour").selectOption("green");
  await form.getByRole("button", { name: "Answer" }).click();
  await settled(page);
  await matches(() => assistant(page).last().innerText(), /The person chose green/);
  await picture(page, "question");
});

feature("an answer that the agent cannot take is refused, and the question stays", async (page) => {
  await page.getByLabel("Agent").selectOption("cook");
  await say(page, "Let me choose a colour");
  const form = page.getByRole("region", { name: "The model waits for you" });
  await form.getByLabel("colour").selectOption("red");
  await form.getByLabel("shade").fill("much too long");
  await form.getByRole("button", { name: "Answer" }).click();
  await form.getByText("does not fit the interrupt's responseSchema").waitFor();
  assert.equal(await form.getByLabel("colour").locator("option:checked").innerText(), "red", "what was filled in is kept");
  assert.equal(await form.getByLabel("shade").inputValue(), "much too long");
  await form.getByLabel("shade").fill("dark");
  await form.getByRole("button", { name: "Answer" }).click();
  await settled(page);
  await matches(() => assistant(page).last().innerText(), /The person chose red/);
});

feature("shared state: the agent's changes show, and a person's edits reach the agent", async (page) => {
  await page.getByLabel("Agent").selectOption("cook");
  await converse(page, "Please add salt");
  await page.getByRole("tab", { name: /State/ }).click();
  const editor = page.getByRole("textbox", { name: "Shared state as JSON" });
  assert.deepEqual(JSON.parse(await editor.inputValue()).ingredients, ["water", "salt"]);
  await editor.fill("{ not json");
  assert.equal(await page.getByRole("button", { name: "Apply" }).isDisabled(), true);
  await editor.fill(JSON.stringify({ title: "Stew", ingredients: ["beans"] }));
  await page.getByRole("button", { name: "Apply" }).click();
  await converse(page, "Please add salt");
  assert.deepEqual(JSON.parse(await editor.inputValue()), { title: "Stew", ingredients: ["beans", "salt"] });
  await picture(page, "state");
});

feature("a document appears word by word in its pane and can be edited", async (page) => {
  await say(page, "Slowly write a document about owls");
  await page.getByText("The model is writing").waitFor();
  await page.locator(".document h1", { hasText: "Owls" }).waitFor();
  await settled(page);
  await becomes(() => page.locator(".document li").count(), 2);
  await picture(page, "document");
  await page.getByRole("button", { name: "Edit" }).click();
  await page.getByRole("textbox", { name: "Document as markdown" }).fill("# Bats");
  await page.getByRole("button", { name: "Save" }).click();
  await page.locator(".document h1", { hasText: "Bats" }).waitFor();
  await page.getByRole("tab", { name: /State/ }).click();
  await matches(() => page.getByRole("textbox", { name: "Shared state as JSON" }).inputValue(), /# Bats/);
});

feature("progress of a tool shows as activity", async (page) => {
  await page.getByLabel("Agent").selectOption("cook");
  await converse(page, "Show progress");
  await matches(() => page.locator('[data-tool="count_slowly"]').innerText(), /Count slowly/);
});

feature("the stream panel shows every event beside its chunk, and what an event became", async (page) => {
  await converse(page, "hello");
  await page.getByRole("button", { name: "Fold", exact: true }).click();
  const events = rows(page, "TEXT_MESSAGE_CONTENT");
  assert.ok((await events.count()) > 3);
  await matches(() => events.first().innerText(), /content/, "the chunk stands beside the event");
  await matches(() => rows(page, "RUN_FINISHED").innerText(), /finish_reason\s+stop/);
  await events.first().getByRole("button").first().click();
  const detail = events.first().locator(".wire-detail");
  const event = JSON.parse(await detail.locator("pre").first().innerText());
  const chunk = JSON.parse((await detail.locator("pre").last().innerText()).replace(/^data: /, ""));
  assert.equal(chunk.object, "chat.completion.chunk");
  assert.equal(chunk.choices[0].delta.content, event.delta);
  const meters = await page.locator(".meters").innerText();
  assert.match(meters, /First token\s+\d+ms/);
  assert.match(meters, /Speed\s+[\d.]+tok\/s/);
  await picture(page, "stream");
});

feature("pause holds the running generation, resume lets it go on, the slider reaches it", async (page) => {
  await say(page, "A long answer please");
  await assistant(page).getByText("Sentence 1 of").waitFor();
  await page.getByRole("button", { name: "Pause" }).click();
  await page.getByRole("button", { name: "Resume" }).waitFor();
  await page.waitForTimeout(300);
  const held = await assistant(page).innerText();
  await page.waitForTimeout(500);
  assert.equal(await assistant(page).innerText(), held, "nothing arrives while it is paused");
  await page.getByRole("button", { name: "Resume" }).click();
  await page.waitForFunction((before) => document.querySelector('[data-role="assistant"]').innerText.length > before, held.length);
  const modified = page.waitForResponse((response) => response.url().endsWith("/modify"));
  await page.getByRole("slider", { name: "Temperature" }).fill("1.2");
  const answer = await modified;
  assert.ok(answer.ok(), `modify answered ${answer.status()}`);
  assert.deepEqual(answer.request().postDataJSON(), { temperature: 1.2 });
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await settled(page);
});

feature("stop ends the run on the server before its answer ends, and the answer so far stays", async (page) => {
  await say(page, "A long answer please");
  await assistant(page).getByText("Sentence 1 of").waitFor();
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  const running = async () => !/num_requests_running(\{[^}]*\})? 0(\.0)?\b/.test(await (await fetch(`${server.url}/metrics`)).text());
  while (await running());
  await settled(page);
  assert.equal(await assistant(page).getByText("Sentence 399 of").count(), 0, "it was stopped before its end");
  await matches(() => assistant(page).innerText(), /Sentence 1 of/);
  await converse(page, "hello");
  await matches(() => assistant(page).last().innerText(), /Hello!/);
});

feature("try again asks the same question once more", async (page) => {
  await converse(page, "hello");
  await page.getByRole("button", { name: "Try again" }).click();
  await settled(page);
  await becomes(() => page.locator('[data-role="user"]').count(), 1);
  await becomes(() => assistant(page).count(), 1);
});

feature("a run that breaks is said in a toast, what arrived stays, and trying again works", async (page) => {
  await say(page, "Please break");
  await page.getByRole("alert").getByText("The engine was lost in mid-answer.").waitFor();
  await settled(page);
  await matches(() => assistant(page).innerText(), /This will not/);
  await picture(page, "error");
  // The next run breaks as well, so its own toast may come before a look at the page has missed this one.
  await page.evaluate(() => {
    const notice = document.querySelector(".notice");
    const observed = (gone) => new MutationObserver(() => notice.isConnected || gone());
    window.noticeGone = new Promise((gone) => observed(gone).observe(document.body, { childList: true, subtree: true }));
  });
  await page.locator(".notice").getByRole("button", { name: "Try again" }).click();
  await page.evaluate(() => window.noticeGone);
});

feature("threads survive a reload, and can be opened, renamed and deleted", async (page) => {
  await converse(page, "hello");
  await page.reload();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
  await becomes(() => page.locator('[data-role="user"]').count(), 1);
  await page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();
  await converse(page, "What can you do?");
  const list = page.getByRole("navigation", { name: "Conversations" });
  await list.getByRole("button", { name: /^hello/ }).first().click();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
  await list.getByRole("listitem").filter({ hasText: "What can you do?" }).first().hover();
  await list.getByRole("button", { name: "Rename What can you do?" }).first().click();
  await page.getByRole("textbox", { name: "Name of the conversation" }).fill("Abilities");
  await page.keyboard.press("Enter");
  await list.getByText("Abilities").waitFor();
  await list.getByRole("listitem").filter({ hasText: "Abilities" }).hover();
  await list.getByRole("button", { name: "Delete Abilities" }).click();
  await list.getByText("Abilities").waitFor({ state: "detached" });
  await page.reload();
  await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
  assert.equal(await list.getByText("Abilities").count(), 0);
});

feature("a reload in mid-answer goes on where it was", async (page) => {
  await say(page, "A long answer please");
  await page.getByRole("log").getByText("Sentence 3 of a long answer").waitFor();
  await page.reload();
  await page.getByRole("log").getByText("Sentence 6 of a long answer").waitFor();
  const text = await assistant(page).innerText();
  assert.equal(text.match(/Sentence 2 of/g).length, 1, "nothing is doubled");
  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await sendButton(page).waitFor();
});

feature("everything can be reached by keyboard", async (page) => {
  await page.getByRole("textbox", { name: "Message" }).press("Tab");
  await page.locator("body").press("/");
  assert.equal(await page.evaluate(() => document.activeElement.id), "message");
  await page.keyboard.type("A long answer please");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Stop", exact: true }).waitFor();
  await page.keyboard.press("Escape"); // at once: a stop may reach the server before its run does
  await settled(page);
  await page.getByRole("tab", { name: /Stream/ }).focus();
  await page.keyboard.press("ArrowRight");
  assert.equal(await page.getByRole("tab", { name: /State/ }).getAttribute("aria-selected"), "true");
  await page.keyboard.press("ArrowLeft");
  await page.locator(".wire-row button").first().focus();
  await page.keyboard.press("Enter");
  await page.locator(".wire-detail").waitFor();
});

feature("a saved event log is watched again with ?replay=", async (page) => {
  await converse(page, "What is the weather in Oslo?");
  const [text] = (await assistant(page).last().innerText()).split("\n"); // the time it took stands below it
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Save the event log" }).click()]);
  const log = await download.path();
  assert.equal(JSON.parse(readFileSync(log, "utf8").split("\n")[0]).event.type, "RUN_STARTED");
  await page.goto(`${server.url}/?replay=`);
  await page.locator('input[type="file"]').setInputFiles(log);
  await page.getByText("What is the weather in Oslo?").waitFor();
  await page.getByText(text).waitFor();
  await page.getByRole("button", { name: "Again", exact: true }).waitFor();
  await matches(() => rows(page, "RUN_FINISHED").innerText(), /finish_reason/, "the other wire is there, too");
  await picture(page, "replay");
  await page.getByRole("button", { name: "Again", exact: true }).click();
  await page.getByRole("button", { name: "Pause" }).waitFor();
});
