// What the first screen costs a visitor with a slow line.
import assert from "node:assert/strict";
import { test } from "node:test";
import { becomes, browser, converse, openDemo, openPage, PHONE, picture, server, WIDE, withServer } from "./harness.mjs";

withServer();

const MOST_BYTES = 250_000;
/** The page and its style: what is seen first, and can be written in. */
const MOST_BEFORE_WRITING = 12_000;
/** The same with the script and what the server says: within the 174 kB that a line of 50 kB/s carries in five seconds, less four turns of 400 ms. */
const MOST_BEFORE_SENDING = 170_000;

/** A page that counts what comes over the line, as the browser receives it. */
async function weighed() {
  const page = await openPage(browser);
  const session = await page.context().newCDPSession(page);
  const received = new Map();
  await session.send("Network.enable");
  session.on("Network.responseReceived", ({ requestId, response }) => received.set(requestId, { response, bytes: 0 }));
  session.on("Network.loadingFinished", ({ requestId, encodedDataLength }) => received.has(requestId) && (received.get(requestId).bytes = encodedDataLength));
  const path = ({ response }) => new URL(response.url).pathname;
  return { page, entries: () => [...received.values()].map((entry) => ({ ...entry, path: path(entry) })) };
}

const total = (entries) => entries.reduce((sum, { bytes }) => sum + bytes, 0);
const told = (entries) => entries.map(({ path, bytes }) => `${bytes} ${path}`).join("\n");

test("the first screen weighs at most 250 kB, and little of it is needed before one can write and send", { timeout: 60_000 }, async () => {
  const { page, entries } = await weighed();
  await page.goto(server.url);
  await page.getByPlaceholder("Ask something").waitFor();
  await page.waitForLoadState("networkidle");
  const all = entries();
  console.log(`# first screen: ${total(all)} bytes`);
  assert.ok(total(all) <= MOST_BYTES, `${total(all)} bytes:\n${told(all)}`);
  const html = await (await fetch(server.url)).text();
  const named = all.filter(({ path }) => path === "/" || path.endsWith("/info") || (path.startsWith("/assets/") && html.includes(`.${path}"`)));
  console.log(`# before sending: ${total(named)} bytes`);
  assert.ok(total(named) <= MOST_BEFORE_SENDING, `${total(named)} bytes before sending:\n${told(named)}`);
  const painted = named.filter(({ path }) => path === "/" || path.endsWith(".css"));
  assert.ok(total(painted) <= MOST_BEFORE_WRITING, `${total(painted)} bytes before writing:\n${told(painted)}`);
  await page.leave();
});

test("scripts and styles come compressed, are kept for a year, and are not fetched again", { timeout: 60_000 }, async () => {
  const { page, entries } = await weighed();
  await page.goto(server.url);
  await page.getByPlaceholder("Ask something").waitFor();
  await page.waitForLoadState("networkidle");
  const header = ({ response }, name) => Object.entries(response.headers).find(([each]) => each.toLowerCase() === name)?.[1] ?? "";
  const hashed = entries().filter(({ path }) => /^\/assets\/.*-[\w-]{8}\.(js|css)$/.test(path));
  assert.ok(hashed.length >= 2, told(hashed));
  for (const entry of hashed) {
    assert.match(header(entry, "content-encoding"), /^(br|gzip)$/, entry.path);
    assert.match(header(entry, "cache-control"), /max-age=31536000, immutable/, entry.path);
  }
  const seen = entries().length;
  await page.reload();
  await page.getByPlaceholder("Ask something").waitFor();
  const again = entries().slice(seen).filter(({ path, bytes }) => /-[\w-]{8}\.(js|css)$/.test(path) && bytes > 0);
  assert.deepEqual(again.filter(({ response }) => !response.fromDiskCache), [], told(again));
  await page.leave();
});

test("the script shares the line with nothing but the page, its style and what the server says", { timeout: 60_000 }, async () => {
  const page = await openPage(browser);
  let come;
  const held = new Promise((resolve) => (come = resolve));
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.route(/assets\/index-.*\.js$/, async (route) => { await held; await route.continue(); });
  await page.goto(server.url, { waitUntil: "commit" });
  await page.getByText("Every token becomes an AG-UI event").waitFor();
  await page.evaluate(() => document.fonts.ready);
  assert.deepEqual(asked.filter((path) => !/\.(js|css)$/.test(path)).sort(), ["/", "/copilotkit/info"]);
  come();
  await page.getByPlaceholder("Ask something").waitFor();
  await page.leave();
});

test("what is read does not move when the rest of the page comes", { timeout: 60_000 }, async () => {
  for (const [name, viewport] of [["wide", WIDE], ["phone", PHONE]]) {
    const page = await openPage(browser, null, { viewport });
    await page.addInitScript(() => {
      window.moved = 0; // the browser's own measure, of which 0.1 is held to be good
      new PerformanceObserver((list) => list.getEntries().forEach(({ value }) => (window.moved += value))).observe({ type: "layout-shift", buffered: true });
    });
    await page.route(/copilotkit\/info$/, async (route) => { await page.waitForTimeout(300); await route.continue(); });
    await page.goto(server.url);
    await page.getByRole("list", { name: "Suggestions" }).waitFor();
    await page.waitForLoadState("networkidle");
    const moved = await page.evaluate(() => window.moved);
    assert.ok(moved < 0.05, `${name}: ${moved}`);
    await page.leave();
  }
});

test("what greets a visitor is painted with the page, and not again with its script and font", { timeout: 60_000 }, async () => {
  const page = await openPage(browser, null, { viewport: PHONE });
  await page.addInitScript(() => {
    window.largest = [];
    new PerformanceObserver((list) => window.largest.push(...list.getEntries().map(({ element, size }) => `${element?.className} ${size}`))).observe({ type: "largest-contentful-paint", buffered: true });
  });
  let come;
  const held = new Promise((resolve) => (come = resolve));
  await page.route(/assets\/index-.*\.js$/, async (route) => { await held; await route.continue(); });
  await page.goto(server.url, { waitUntil: "commit" });
  await page.waitForFunction(() => window.largest.length > 0);
  come();
  await page.evaluate(() => document.fonts.load("1em Inter"));
  await page.getByRole("list", { name: "Suggestions" }).waitFor();
  await page.waitForLoadState("networkidle");
  const largest = await page.evaluate(() => window.largest);
  assert.equal(largest.length, 1, largest.join("\n"));
  assert.match(largest[0], /^lead /);
  await page.leave();
});

test("the first screen is built without measuring it, and without the browser's tables of numbers", { timeout: 60_000 }, async () => {
  const page = await openPage(browser, null, { viewport: PHONE });
  await page.addInitScript(() => {
    window.slow = []; // what makes the browser lay the page out in the middle of a script, or load 20 ms of tables
    const note = (name, work) => function (...words) {
      window.slow.push(`${name}\n${new Error().stack}`);
      return work.apply(this, words);
    };
    for (const name of ["scrollTop", "scrollHeight", "clientHeight"]) {
      const { get, set } = Object.getOwnPropertyDescriptor(Element.prototype, name);
      Object.defineProperty(Element.prototype, name, { configurable: true, get: note(name, get), set: set && note(name, set) });
    }
    Element.prototype.getBoundingClientRect = note("getBoundingClientRect", Element.prototype.getBoundingClientRect);
    Number.prototype.toLocaleString = note("toLocaleString", Number.prototype.toLocaleString);
  });
  await page.goto(server.url);
  await page.getByRole("list", { name: "Suggestions" }).waitFor();
  await page.getByText("tokens of context").waitFor();
  await page.waitForLoadState("networkidle");
  assert.deepEqual(await page.evaluate(() => window.slow), []);
  await page.leave();
});

test("the greeting stays where it was scrolled to, and is read from its top behind a conversation", { timeout: 60_000 }, async () => {
  const page = await openDemo(browser, server.url, { viewport: PHONE });
  const scroller = page.getByRole("region", { name: "Conversation history" });
  const top = () => scroller.evaluate((box) => box.scrollTop);
  await page.getByText("tokens of context").waitFor({ state: "attached" });
  await page.evaluate(() => document.fonts.ready.then(() => null)); // its lines are of another length
  await page.getByText("Use it from your code").scrollIntoViewIfNeeded();
  const scrolled = await top();
  assert.ok(scrolled > 100, `${scrolled}`);
  await page.route(/copilotkit\/info$/, async (route) => {
    const info = await (await route.fetch()).json();
    info.server.contextLength = 12_345;
    await route.fulfill({ json: info });
  });
  await page.evaluate(() => window.dispatchEvent(new Event("online"))); // the page asks the server again
  await page.getByText("12,345 tokens of context").waitFor({ state: "attached" });
  assert.equal(await top(), scrolled);

  await converse(page, "A table please");
  await converse(page, "What can you do?");
  await converse(page, "A table please");
  await becomes(async () => (await top()) > 100, true);
  await page.getByRole("button", { name: "New conversation" }).first().click();
  await page.getByText("Every token becomes an AG-UI event").waitFor();
  assert.equal(await top(), 0);
  assert.deepEqual(page.faults, []);
  await page.leave();
});

test("what is written before the script has come is kept, and is sent once it can be", { timeout: 60_000 }, async () => {
  for (const [name, viewport] of [["wide", WIDE], ["phone", PHONE]]) {
    const page = await openPage(browser, null, { viewport });
    let come;
    const held = new Promise((resolve) => (come = resolve));
    await page.route(/assets\/index-.*\.js$/, async (route) => { await held; await route.continue(); });
    await page.goto(server.url, { waitUntil: "commit" });
    const box = page.getByRole("textbox", { name: "Message" });
    await page.getByText("Every token becomes an AG-UI event").waitFor();
    await box.click();
    await page.keyboard.type("hello");
    await picture(page, `early-${name}`);
    come();
    await page.getByPlaceholder("Ask something").waitFor();
    assert.equal(await box.inputValue(), "hello");
    await page.keyboard.type(" you"); // the caret is still there
    assert.equal(await box.inputValue(), "hello you");
    await page.keyboard.press("Enter");
    await page.locator('[data-role="assistant"]').waitFor();
    assert.deepEqual(page.faults, []);
    await page.leave();
  }
});

test("an address that names a conversation greets nobody meanwhile", { timeout: 60_000 }, async () => {
  const page = await openPage(browser);
  await page.route(/assets\/index-.*\.js$/, () => undefined);
  await page.goto(`${server.url}/#thread=1`, { waitUntil: "commit" });
  await page.getByRole("textbox", { name: "Message" }).waitFor();
  // nothing is painted before the style has come, but a script that asks what is visible is answered before
  await page.waitForFunction(() => [...document.styleSheets].some(({ href }) => href?.startsWith(location.origin)));
  assert.equal(await page.getByText("Every token becomes an AG-UI event").isVisible(), false);
  await page.leave();
});
