// What the demo does when things are not as usual: no server, a full one, a locked one, a slow one.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { becomes, browser, converse, LOST, openDemo, openLine, openPage, picture, say, server, settled, startServer, withServer } from "./harness.mjs";

withServer();

const LIMITS = { timeout: 90_000 };

test("the server is killed and started again: the page says so and goes on", LIMITS, async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "demo-"));
  const store = `sqlite:///${path.join(folder, "threads.db")}`;
  const first = await startServer("--store", store);
  let second;
  // "network error" is rethrown by @ag-ui/client's own reader when its socket dies, besides the error that it reports
  const page = await openDemo(browser, first.url, { expected: LOST });
  try {
    await converse(page, "hello");
    await say(page, "A long answer please");
    await page.getByRole("log").getByText("Sentence 2 of").waitFor();
    await first.stop("SIGKILL");
    await page.getByRole("alert").getByText("The connection to the server was lost.").waitFor();
    await page.getByPlaceholder("No answer from the server, retrying").waitFor({ timeout: 20_000 });
    await picture(page, "server-gone");
    second = await startServer("--port", first.port, "--store", store);
    await page.getByText("The server is back").waitFor({ timeout: 20_000 });
    await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
    // the run continues where the server was killed, and the page reads on
    await page.getByRole("log").getByText("Sentence 9 of").waitFor();
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await settled(page);
    await converse(page, "What can you do?");
    await page.getByRole("log").getByText("I can do a few things").waitFor();
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
    await second?.stop();
    rmSync(folder, { recursive: true });
  }
});

test("the status follows the network, and what could not be sent is sent when it is back", LIMITS, async () => {
  const line = await openLine(server.url);
  const page = await openDemo(browser, line.url, { expected: LOST });
  const light = () => page.locator(".model-chip .dot").getAttribute("class");
  try {
    await becomes(light, "dot ready");
    await page.context().setOffline(true);
    await becomes(light, "dot failed");
    await page.getByPlaceholder("No answer from the server, retrying").waitFor();
    await page.context().setOffline(false);
    await becomes(light, "dot ready");
    await converse(page, "hello");
    line.cut(); // of which no browser knows
    await say(page, "What can you do?");
    await page.getByText("The connection to the server was lost.").waitFor();
    assert.equal(await page.getByRole("alert").count(), 1, "it is said once");
    await becomes(light, "dot failed");
    await picture(page, "offline");
    line.mend();
    await page.getByRole("log").getByText("I can do a few things").waitFor({ timeout: 20_000 });
    await becomes(light, "dot ready");
    assert.equal(await page.getByRole("alert").count(), 0);
    assert.equal(await page.locator('[data-role="user"]').count(), 2);
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
    line.close();
  }
});

test("a full server is said in a toast, with its own sentence", LIMITS, async () => {
  const full = await startServer("--max-runs", "1");
  const expected = [/503/];
  const one = await openDemo(browser, full.url, { expected });
  const two = await openDemo(browser, full.url, { expected });
  try {
    await say(one, "A long answer please");
    await one.getByRole("log").getByText("Sentence 1 of").waitFor();
    await say(two, "hello");
    await two.getByRole("alert").getByText("The server has reached its limit of concurrent runs.").waitFor();
    await one.getByRole("button", { name: "Stop", exact: true }).click();
    await settled(one);
    await two.locator(".notice").getByRole("button", { name: "Try again" }).click();
    await two.getByRole("log").getByText("Hello! How can I help?").waitFor();
    assert.deepEqual([...one.faults, ...two.faults], []);
  } finally {
    await one.leave();
    await two.leave();
    await full.stop();
  }
});

test("a server with keys asks for one, keeps it, and works", LIMITS, async () => {
  const locked = await startServer("--key", "open-sesame");
  const page = await openPage(browser, locked.url, { expected: [/401/, /Failed to load runtime info/, /Agent \w+ not found/] });
  try {
    await page.getByLabel("API key", { exact: true }).fill("open-sesame");
    await picture(page, "key");
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByPlaceholder("Ask something").waitFor();
    await converse(page, "hello");
    await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
    assert.ok((await page.locator(".wire-row").count()) > 5, "the stream panel has the key, too");
    await page.reload();
    await page.getByRole("log").getByText("Hello! How can I help?").waitFor();
    assert.deepEqual(page.faults, []);
  } finally {
    await page.leave();
    await locked.stop();
  }
});

test("the first paint comes within a second of a warm start", LIMITS, async () => {
  const page = await openDemo(browser, server.url);
  await page.reload();
  await page.getByPlaceholder("Ask something").waitFor();
  const paint = await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime);
  await page.leave();
  assert.ok(paint < 1000, `first contentful paint after ${paint} ms`);
  console.log(`# first contentful paint: ${paint.toFixed(0)} ms`);
});
