// Every suggestion of the empty page, driven to its end over the bundled model itself: what a visitor clicks first.
//   CARD_ROUNDS=20 node --test tests/browser/cards.test.mjs        each of them that often
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { becomes, matches, openDemo, picture, settled, startBrowser, startServer } from "./harness.mjs";

const ROUNDS = Number(process.env.CARD_ROUNDS ?? "1");
const assistant = (page) => page.locator('[data-role="assistant"]');
const said = (page) => assistant(page).last().innerText();
const region = (page) => page.getByRole("region", { name: "The model waits for you" });

let server;
let browser;
before(async () => {
  server = await startServer("--bundled");
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

/** The words of an answer that a reader would stumble over: said over and over, or with a tool's markers in it. */
function sound(text) {
  assert.ok(text.trim().length > 1, "an answer has words");
  assert.doesNotMatch(text, /<\/?(tool_call|think|tool_response)|<\|im_/, "no markers of the format");
  assert.doesNotMatch(text, /(\b[\w ]{3,40}\b)(?:\W+\1\b){2,}/i, "nothing is said over and over");
}

/** One card in a fresh conversation. `work` ends with the run over, `check` gets the last answer. */
function card(title, ending, work, check) {
  for (let round = 1; round <= ROUNDS; round++) {
    test(`${title}, ${ending}${ROUNDS > 1 ? `, ${round} of ${ROUNDS}` : ""}`, { timeout: 90_000 }, async () => {
      const page = await openDemo(browser, server.url);
      page.context().setDefaultTimeout(25_000);
      try {
        await page.getByRole("list", { name: "Suggestions" }).getByRole("button", { name: title }).click();
        await work(page);
        await settled(page);
        await assistant(page).last().waitFor();
        const text = await said(page);
        console.log(`# ${title}, ${ending}: ${text.replaceAll("\n", " ⏎ ")}`);
        if (round === 1) await picture(page, `card-${`${title} ${ending}`.replaceAll(/\W+/g, "-").toLowerCase()}`);
        sound(text);
        await check(text, page);
        assert.deepEqual(page.faults, []);
      } finally {
        await page.leave();
      }
    });
  }
}

const finished = (page) => page.locator('.wire-row[data-type="RUN_FINISHED"]').waitFor();
const email = (button, change) => async (page) => {
  const form = region(page);
  await form.getByRole("button", { name: "Deny" }).waitFor();
  await change?.(form);
  await form.getByRole("button", { name: button, exact: true }).click();
  await form.waitFor({ state: "detached" });
  await assistant(page).last().waitFor();
};
const names = (page) => page.getByRole("textbox", { name: /^Step \d+$/ }).evaluateAll((fields) => fields.map(({ value }) => value));
const plan = (button, change) => async (page) => {
  await page.getByRole("button", { name: "Confirm plan" }).waitFor();
  page.dropped = (await change?.(page)) ?? [];
  page.kept = (await names(page)).filter((name) => !page.dropped.includes(name));
  await page.getByRole("button", { name: button }).click();
  await assistant(page).last().waitFor();
};
/** An answer that lists steps lists those that were left, and no others; one that counts them counts right. */
const follows = (text, { kept, dropped }) => {
  assert.doesNotMatch(text, /\b(declined|cancelled)\b/i);
  assert.deepEqual(dropped.filter((name) => text.includes(name)), [], "no step that was unticked");
  if (/\b1\. /.test(text)) assert.deepEqual(kept.filter((name) => !text.includes(name)), [], "every step that was left");
  const told = /\b(\d+) steps?\b/.exec(text)?.[1];
  if (told) assert.equal(Number(told), kept.length, text);
};

card("Weather in Oslo", "to its end", finished, async (text, page) => {
  const shown = await page.getByRole("region", { name: "Weather in Oslo" }).innerText();
  const degrees = /(-?\d+)°/.exec(shown)[1];
  assert.match(text, /Oslo/);
  assert.match(text, new RegExp(`(?<!\\d)(${degrees}|${degrees.replace("-", "minus ")}) ?(°|degrees)`), `the answer has the ${degrees}° of the card`);
});
card("12 × 7", "to its end", finished, (text) => assert.match(text, /\b84\b/));
card("Search for threads", "to its end", finished, (text) => assert.match(text, /thread|conversation/i));
card("What can you do?", "to its end", finished, (text) => assert.match(text, /weather/i));
card("Make the background teal", "to its end", async (page) => {
  await page.waitForFunction(() => getComputedStyle(document.querySelector(".app")).backgroundColor === "rgb(0, 128, 128)");
  await assistant(page).last().waitFor();
}, (text) => assert.match(text, /teal/i));

card("Send an email", "approved", email("Approve"), (text) => {
  assert.match(text, /anna@example\.com/);
  assert.doesNotMatch(text, /\bnot\b/);
});
card("Send an email", "denied", email("Deny"), async (text, page) => {
  await matches(() => page.locator('[data-tool="send_email"]').innerText(), /Denied/);
  assert.doesNotMatch(text, /on its way|(is|was|has been) sent|went out/i, "a denied email is not said to be sent");
});
card("Send an email", "edited", email("Approve with changes", (form) => form.getByLabel("to").fill("bob@example.com")), (text) => {
  assert.match(text, /bob@example\.com/);
  assert.doesNotMatch(text, /anna/);
});

card("Plan a trip to Rome", "confirmed", plan("Confirm plan"), follows);
card("Plan a trip to Rome", "declined", plan("Decline"), async (text, page) => {
  await page.getByText("Declined").waitFor();
  assert.doesNotMatch(text, /we go on|confirmed/i, "a declined plan is not gone on with");
});
card("Plan a trip to Rome", "two steps unticked", plan("Confirm plan", async (page) => {
  for (const step of [1, 2]) await page.getByRole("checkbox", { name: `Include step ${step}` }).uncheck();
  return (await names(page)).slice(0, 2);
}), follows);
card("Plan a trip to Rome", "a step edited", plan("Confirm plan", async (page) => {
  await page.getByRole("textbox", { name: "Step 1", exact: true }).fill("Book a sleeper train");
  return [];
}), follows);

test("the page offers these cards and no others", { timeout: 60_000 }, async () => {
  const page = await openDemo(browser, server.url);
  const offers = () => page.getByRole("list", { name: "Suggestions" }).locator("b").allInnerTexts();
  await becomes(async () => (await offers()).toSorted(), ["12 × 7", "Get a real model", "Make the background teal", "Plan a trip to Rome", "Search for threads", "Send an email", "Weather in Oslo", "What can you do?"]);
  await page.leave();
});
