// A stranger over the page: steps in random order, by a seed. Nothing may be said on the console, nothing may hang,
// and what the page shows of a person's own words must be there again after a reload.
//   STRANGERS=20 STEPS=60 SEED=1 node --test tests/browser/stranger.test.mjs
import assert from "node:assert/strict";
import { test } from "node:test";
import { browser, openDemo, PHONE, say, sendButton, server, WIDE, withServer } from "./harness.mjs";

withServer();

const STRANGERS = Number(process.env.STRANGERS ?? 1);
const STEPS = Number(process.env.STEPS ?? 25);
const SEED = Number(process.env.SEED ?? 1);
const LONGEST = 20_000;
const PATIENCE = 4_000;

/** Numbers from 0 to 1 that a seed decides (mulberry32, public domain). */
function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

const asked = (page) => page.locator('[data-role="user"]');
const threads = (page) => page.getByRole("navigation", { name: "Conversations" });
const banner = (page) => page.getByRole("banner");
const button = (page, name) => page.getByRole("button", { name, exact: true });
const stop = (page) => button(page, "Stop");
const answering = (page) => page.getByPlaceholder("Ask something").isVisible();

/** One that can be seen of what a locator finds, chosen by the stranger. */
async function one(found, random) {
  const all = [];
  for (const each of await found.all()) if ((await each.isVisible()) && (await each.isEnabled())) all.push(each);
  return all[Math.floor(random() * all.length)] ?? null;
}

async function click(found, random) {
  const chosen = await one(found, random);
  if (chosen === null) return false;
  await chosen.click();
  return true;
}

const WORDS = [
  "hello", "What can you do?", "What is the weather in Oslo?", "what is 12*7?", "Make the background teal", "Show me a table",
  "Show me code", "Show me a formula", "Search for threads", "Please write a document", "Plan a trip to Rome", "Send an email",
];

/** Asks if nothing else waits for the stranger. */
async function ask(page, text) {
  if (!(await answering(page)) || (await stop(page).isVisible())) return false;
  await say(page, text);
  return true;
}

/** What a form offers is answered, one way or another. */
async function answer(page, random) {
  const boxes = page.getByRole("checkbox", { name: /^Include step/ });
  if (random() < 0.5) await click(boxes, random);
  return click(page.getByRole("button", { name: /^(Confirm plan|Decline|Approve|Deny)$/ }), random);
}

async function openThreads(page) {
  if (!(await threads(page).isVisible())) await banner(page).getByRole("button", { name: "Conversations" }).click();
}

/** On a small screen, what lies over the conversation is put away. */
async function uncover(page) {
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn))));
  for (const side of ["threads", "inspector"]) {
    const scrim = page.locator(`.scrim.for-${side}`);
    if (await scrim.isVisible()) await scrim.dispatchEvent("click");
  }
}

/** Every step says whether it could be taken; one that could not is no step. */
const STEPS_KNOWN = {
  ask: (page, random) => ask(page, WORDS[Math.floor(random() * WORDS.length)]),
  "ask at length and stop": async (page, random) => {
    if (!(await ask(page, "A long answer please"))) return false;
    await page.waitForTimeout(random() * 600);
    await stop(page).click();
    return true;
  },
  "ask at length and reload": async (page) => {
    if (!(await ask(page, "A long answer please"))) return false;
    await page.getByRole("log").getByText("Sentence 2 of").last().waitFor();
    await page.reload();
    await stop(page).click();
    return true;
  },
  "send by a double click": async (page) => {
    if (!(await answering(page)) || (await stop(page).isVisible())) return false;
    await page.getByRole("textbox", { name: "Message" }).fill("hello");
    await sendButton(page).dblclick();
    return true;
  },
  answer,
  "begin a conversation": (page, random) => click(banner(page).getByRole("button", { name: "New conversation" }), random),
  "open a conversation": async (page, random) => {
    await openThreads(page);
    return click(threads(page).locator(".thread .open"), random);
  },
  "rename a conversation": async (page, random) => {
    await openThreads(page);
    if (!(await click(threads(page).getByRole("button", { name: /^Rename / }), random))) return false;
    await page.getByRole("textbox", { name: "Name of the conversation" }).fill(`Named ${Math.floor(random() * 100)}`);
    await page.keyboard.press("Enter");
    return true;
  },
  "delete a conversation and have it back": async (page, random) => {
    await openThreads(page);
    if (!(await click(threads(page).getByRole("button", { name: /^Delete / }), random))) return false;
    await page.getByRole("status").filter({ hasText: "Conversation deleted" }).last().getByRole("button", { name: "Undo" }).click();
    return true;
  },
  "ask in other words": async (page, random) => {
    if (!(await answering(page)) || !(await click(page.getByRole("button", { name: "Change message" }), random))) return false;
    await page.getByRole("textbox", { name: "Your message in other words" }).fill("hello again");
    await page.getByRole("button", { name: "Send again" }).click();
    return true;
  },
  "ask once more": async (page, random) => (await answering(page)) && click(page.locator(".message-actions").getByRole("button", { name: "Try again" }), random),
  "delete a turn and have it back": async (page, random) => {
    if (!(await answering(page)) || !(await click(page.getByRole("button", { name: "Delete message" }), random))) return false;
    await page.getByRole("status").filter({ hasText: "Turn deleted" }).last().getByRole("button", { name: "Undo" }).click();
    return true;
  },
  branch: async (page, random) => (await answering(page)) && click(page.getByRole("button", { name: "Branch from here" }), random),
  "look at a panel": async (page, random) => {
    if (!(await page.getByRole("tab").first().isVisible())) await banner(page).getByRole("button", { name: "Inspector" }).click();
    return click(page.getByRole("tab"), random);
  },
  "open an event": (page, random) => click(page.locator(".wire-row > button"), random),
  "take an offer": async (page, random) => (await answering(page)) && click(page.getByRole("list", { name: "Suggestions" }).getByRole("button"), random),
  "change the light": (page, random) => click(banner(page).getByRole("button", { name: / colours$/ }), random),
  "look for a conversation": async (page, random) => {
    await openThreads(page);
    const box = threads(page).getByRole("searchbox");
    if (!(await box.isVisible())) return false;
    await box.fill(random() < 0.5 ? "hello" : "nowhere");
    await box.fill("");
    return true;
  },
  "turn the telephone": async (page, random) => {
    await page.setViewportSize(random() < 0.4 ? PHONE : WIDE);
    return true;
  },
  reload: async (page) => {
    await page.reload();
    return true;
  },
};

/** Nothing runs any more: the composer takes words, or a form waits for the stranger, who stops an answer that goes on. */
async function rest(page) {
  const until = Date.now() + LONGEST;
  const enough = Date.now() + PATIENCE;
  while (Date.now() < until) {
    const waiting = await page.getByRole("button", { name: /^(Confirm plan|Approve)$/ }).first().isVisible();
    const still = waiting || ((await answering(page)) && !(await stop(page).isVisible()));
    if (still) return;
    if (Date.now() > enough && (await stop(page).isVisible())) await stop(page).click({ timeout: 1_000 }).catch(() => undefined); // it may just end
    await page.waitForTimeout(50);
  }
  assert.fail(`nothing can be done after ${LONGEST} ms: ${await page.getByRole("textbox", { name: "Message" }).getAttribute("placeholder")}`);
}

/** The stranger's own words in the conversation that is open, once they stand still. */
async function words(page) {
  for (let before = null; ; ) {
    const now = await asked(page).allInnerTexts();
    if (before !== null && before.join("\n") === now.join("\n")) return now;
    before = now;
    await page.waitForTimeout(300);
  }
}

for (let number = 0; number < STRANGERS; number++) {
  const seed = SEED + number;
  test(`stranger ${seed} takes ${STEPS} steps`, { timeout: 600_000 }, async () => {
    const random = numbers(seed);
    const page = await openDemo(browser, server.url);
    const names = Object.keys(STEPS_KNOWN);
    const taken = [];
    try {
      while (taken.length < STEPS) {
        const name = names[Math.floor(random() * names.length)];
        const could = await STEPS_KNOWN[name](page, random);
        if (could) taken.push(name);
        await uncover(page);
        await rest(page);
        assert.deepEqual(page.faults, []);
      }
      const said = await words(page);
      await page.reload();
      await rest(page);
      assert.deepEqual(await words(page), said, "nothing is lost");
      assert.deepEqual(page.faults, []);
    } catch (error) {
      error.message = `${error.message}\nthe last steps: ${taken.slice(-8).join(" → ")}`;
      throw error;
    } finally {
      await page.leave();
    }
  });
}
