// From the bundled model to another one by clicking: fetched from a hub on this machine, paused, resumed, served.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { converse, openDemo, PHONE, picture, root, startBrowser, startServer } from "./harness.mjs";

const home = mkdtempSync(path.join(tmpdir(), "models-"));
const bundled = path.join(root, "agent_server/models/demo");
let hub, server, browser;

before(async () => {
  const python = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
  hub = spawn(python, ["-m", "tests.model_files.hub", "--pause", "0.03", `tiny/other=${bundled}`], { cwd: root, stdio: ["ignore", "pipe", "inherit"] });
  process.once("exit", () => hub.kill("SIGKILL"));
  process.env.HF_ENDPOINT = await new Promise((resolve) => hub.stdout.once("data", (data) => resolve(String(data).trim())));
  process.env.HF_HOME = home;
  server = await startServer("--bundled");
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  await server?.stop();
  hub?.kill();
  rmSync(home, { recursive: true, force: true });
});

test("a real model is found, fetched, paused, resumed and served by clicking", { timeout: 300_000 }, async () => {
  const page = await openDemo(browser, server.url);
  try {
    await page.getByRole("button", { name: /Get a real model/ }).first().click();
    const section = page.getByRole("region", { name: "Get a real model" });
    await section.getByText(/For this machine/).waitFor();
    assert.ok((await section.getByRole("list", { name: "Models" }).getByRole("listitem").count()) > 4);
    await picture(page, "models");
    await section.getByLabel("Search the hub").fill("other");
    await section.getByRole("button", { name: "Search" }).click();
    await section.getByRole("button", { name: "Get tiny/other" }).click();
    const bar = section.getByRole("progressbar", { name: "tiny/other fetched" });
    await page.waitForFunction(() => Number(document.querySelector(".came .progress")?.getAttribute("aria-valuenow")) > 5);
    await section.getByRole("button", { name: "Pause tiny/other" }).click();
    await section.getByRole("button", { name: "Resume tiny/other" }).waitFor();
    const paused = Number(await bar.getAttribute("aria-valuenow"));
    assert.ok(paused > 0 && paused < 100, `${paused} %`);
    await picture(page, "models-paused");
    await section.getByRole("button", { name: "Resume tiny/other" }).click();
    await section.getByRole("button", { name: "Use tiny/other", exact: true }).click({ timeout: 60_000 });
    await page.locator(".model-chip .name", { hasText: /^other$/ }).waitFor({ timeout: 60_000 });
    await section.getByText("In use").waitFor({ timeout: 120_000 });
    await picture(page, "models-used");
    await converse(page, "What is 12*7?");
    await page.locator('[data-role="assistant"]').last().getByText("84").waitFor();
    await section.getByLabel("Folder or GGUF file on the server").fill(path.join(home, "nothing"));
    await section.getByRole("button", { name: "Use", exact: true }).click();
    await section.getByRole("alert").getByText(/There is no folder/).waitFor();
    await page.setViewportSize(PHONE);
    await picture(page, "models-phone");
    const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
    assert.equal(wide, false);
    assert.deepEqual(page.faults.filter((fault) => !/400/.test(fault)), []);
  } finally {
    await page.leave();
  }
});
