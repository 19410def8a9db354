// The two examples without a framework: a terminal client and an HTML file.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { after, before, test } from "node:test";
import { openPage, root, startBrowser, startServer } from "./harness.mjs";

const web = path.join(root, "examples/web");
let server;
let browser;
let files;
let origin;

before(async () => {
  const page = readFileSync(path.join(web, "page/index.html"));
  files = http.createServer((_, response) => response.writeHead(200, { "content-type": "text/html" }).end(page)).listen(0, "127.0.0.1");
  await new Promise((resolve) => files.once("listening", resolve));
  origin = `http://127.0.0.1:${files.address().port}`;
  server = await startServer("--origin", origin);
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  files?.close();
  await server?.stop();
});

test("the plain page streams an answer and keeps the conversation", { timeout: 30_000 }, async () => {
  const page = await openPage(browser, `${origin}/?server=${encodeURIComponent(server.url)}`);
  const ask = async (text) => {
    await page.getByRole("textbox", { name: "Message" }).fill(text);
    await page.getByRole("button", { name: "Send" }).click();
  };
  await ask("hello");
  await page.locator(".reasoning", { hasText: "A greeting." }).waitFor();
  await page.locator(".assistant", { hasText: "Hello! How can I help?" }).waitFor();
  await ask("Please break");
  await page.locator(".error", { hasText: "The engine was lost in mid-answer." }).waitFor();
  assert.deepEqual(page.faults, []);
  await page.leave();
});

test("the terminal client is short, converses and asks before an email is sent", { timeout: 30_000 }, async () => {
  const source = path.join(web, "client/chat.mjs");
  assert.ok(readFileSync(source, "utf8").trim().split("\n").length < 60);
  const child = spawn(process.execPath, [source], { env: { ...process.env, AGENT_URL: `${server.url}/agui/demo` } });
  let shown = "";
  child.stdout.on("data", (data) => (shown += data));
  child.stderr.on("data", (data) => (shown += data));
  const said = async (pattern) => {
    for (let tries = 0; tries < 400; tries++) {
      if (pattern.test(shown)) return;
      await new Promise((resolve) => setTimeout(resolve, 25));
    }
    assert.fail(`${pattern} did not come:\n${shown}`);
  };
  try {
    await said(/> $/);
    child.stdin.write("What is 12*7?\n");
    await said(/calculate .*→ .*84[\s\S]*The tool said[\s\S]*> $/);
    child.stdin.write("Send an email\n");
    await said(/Send this email\?.*\[y\/N\]/);
    child.stdin.write("y\n");
    await said(/The tool said .*sent/);
    assert.doesNotMatch(shown, /^!/m);
  } finally {
    child.kill();
  }
});
