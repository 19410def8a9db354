// The first hour by clicking, once on each screen: a start without a network, a real model fetched and served, the line
// lost and back, an answer in two versions. SCREENSHOTS=folder keeps each step as a picture.
//   WALK_MODEL=FOLDER node --test tests/browser/walk.test.mjs       a model of one's own, in place of the bundled one's copy
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { LOST, openDemo, openLine, PHONE, picture, root, say, SCREENS, sendButton, startBrowser, startServer } from "./harness.mjs";

const MODEL = process.env.WALK_MODEL ?? path.join(root, "agent_server/models/demo");
const assistant = (page) => page.locator('[data-role="assistant"]');
const PATIENCE = { timeout: 120_000 }; // a model computes here, on a machine that may be busy

async function answered(page, text) {
  const before = await assistant(page).count();
  await say(page, text);
  await assistant(page).nth(before).waitFor(PATIENCE); // a short answer may be over before Stop is painted
  await sendButton(page).waitFor(PATIENCE);
}

let hub, hubUrl, browser;

before(async () => {
  const python = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
  hub = spawn(python, ["-m", "tests.model_files.hub", `strangers/other=${MODEL}`], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
  process.once("exit", () => hub.kill("SIGKILL"));
  hubUrl = await new Promise((resolve) => hub.stdout.once("data", (data) => resolve(String(data).trim())));
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  hub?.kill();
});

for (const { size, viewport, colorScheme } of SCREENS) {
  test(`from the first start to a real model's answer, at ${size} pixels in ${colorScheme}`, { timeout: 600_000 }, async () => {
    const home = mkdtempSync(path.join(tmpdir(), "walk-"));
    const toHub = await openLine(hubUrl);
    toHub.cut(); // the server starts on a machine without a network
    Object.assign(process.env, { HF_ENDPOINT: toHub.url, HF_HOME: home });
    const server = await startServer("--bundled");
    const line = await openLine(server.url);
    const page = await openDemo(browser, line.url, { viewport, colorScheme, expected: [...LOST, /400/] });
    const keep = (name) => picture(page, `walk-${size}-${colorScheme}-${name}`);
    try {
      await answered(page, "What is 12*7?");
      await assistant(page).last().locator("p").getByText("84").waitFor(); // the speed may be 84 too
      await keep("1-without-a-network");

      await page.getByRole("banner").getByRole("button", { name: "New conversation" }).click();
      await page.getByRole("button", { name: /Get a real model/ }).first().click();
      const section = page.getByRole("region", { name: "Get a real model" });
      await section.getByLabel("Search the hub").fill("other");
      await section.getByRole("button", { name: "Search" }).click();
      await section.getByRole("alert").getByText(/The hub/).waitFor();
      await keep("2-no-hub");
      toHub.mend();
      await section.getByRole("button", { name: "Search" }).click();
      await section.getByRole("button", { name: "Get strangers/other" }).click();
      await keep("3-fetching");
      await section.getByRole("button", { name: "Use strangers/other", exact: true }).click(PATIENCE);
      await section.getByText("In use").waitFor(PATIENCE);
      assert.equal(await section.getByRole("alert").count(), 0, "what failed before is not said any more");
      await keep("4-in-use");
      if (viewport === PHONE) await page.locator(".tabs").getByRole("button", { name: "Close the inspector" }).click();
      await answered(page, "hello");
      await assistant(page).last().getByText(/\w{2}/).first().waitFor();
      await keep("5-answered");

      line.cut();
      await say(page, "What can you do?");
      await page.getByText("The connection to the server was lost.").waitFor();
      await keep("6-line-lost");
      line.mend();
      await assistant(page).nth(1).waitFor(PATIENCE);
      await sendButton(page).waitFor(PATIENCE);
      assert.equal(await page.getByRole("alert").count(), 0);
      await keep("7-line-back");

      await page.getByRole("button", { name: "Try again" }).last().click();
      await sendButton(page).waitFor(PATIENCE);
      const versions = page.getByRole("group", { name: "Versions of this turn" });
      await versions.getByText("2/2").waitFor();
      await versions.getByRole("button", { name: "Earlier version" }).click();
      await versions.getByText("1/2").waitFor();
      await keep("8-earlier-version");
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth > innerWidth), false);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
      await server.stop();
      line.close();
      toHub.close();
      rmSync(home, { recursive: true, force: true });
    }
  });
}
