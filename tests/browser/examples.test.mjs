// The two examples without a framework, a terminal client and an HTML file, and the page of a project that
// `agent-server new` made.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import http from "node:http";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { openPage, root, startBrowser, startServer } from "./harness.mjs";

const web = path.join(root, "examples/web");
const made = mkdtempSync(path.join(tmpdir(), "agent-server-new-"));
const project = path.join(made, "demo"); // named like the agent that the scripted server has
const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" };
let server;
let browser;
let files;
let origin;

before(async () => {
  const page = readFileSync(path.join(web, "page/index.html"));
  files = http.createServer((request, response) => {
    const file = path.join(project, "web/dist", path.normalize(new URL(request.url, "http://x").pathname).replace("/project/", "/"));
    const found = request.url.startsWith("/project/") && existsSync(file) ? readFileSync(file) : page;
    response.writeHead(200, { "content-type": TYPES[path.extname(file)] ?? "text/html" }).end(found);
  }).listen(0, "127.0.0.1");
  await new Promise((resolve) => files.once("listening", resolve));
  origin = `http://127.0.0.1:${files.address().port}`;
  server = await startServer("--origin", origin);
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  files?.close();
  await server?.stop();
  rmSync(made, { recursive: true, force: true });
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

test("a new project's page is built, chats and asks before an email is sent", { timeout: 300_000 }, async () => {
  const python = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
  execFileSync(python, ["-c", "from agent_server.cli.main import main; main()", "new", "plain", project], { cwd: root });
  const packages = path.join(root, "frontend_demo/node_modules");
  symlinkSync(packages, path.join(project, "web/node_modules"));
  const env = { ...process.env, VITE_RUNTIME_URL: `${server.url}/copilotkit` };
  execFileSync(process.execPath, [path.join(packages, "vite/bin/vite.js"), "build", "--base", "./", "--minify", "false", "--logLevel", "error"], {
    cwd: path.join(project, "web"),
    env,
  });
  const page = await openPage(browser);
  await page.goto(`${origin}/project/index.html`, { timeout: 60_000 }); // 8 MB of scripts, not minified
  await page.getByTestId("copilot-chat-textarea").waitFor();
  await page.waitForLoadState("networkidle");
  const say = async (text) => {
    await page.getByTestId("copilot-chat-textarea").fill(text);
    await page.keyboard.press("Enter");
  };
  const answer = (text) => page.locator('[data-testid="copilot-message-list"]').getByText(text).last().waitFor();
  await say("hello");
  await answer("Hello! How can I help?");
  await say("Send an email");
  await page.getByRole("group", { name: "Approval" }).getByText("Send this email?").waitFor();
  await page.getByRole("button", { name: "Approve" }).click();
  await answer(/The tool said .*"status":"sent"/);
  assert.deepEqual(page.faults, []);
  await page.leave();
});
