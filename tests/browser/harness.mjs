// What every browser test shares: a server, a browser, a page that notices every console error and foreign request.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdirSync } from "node:fs";
import net from "node:net";
import path from "node:path";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
export const root = path.resolve(here, "../..");
const require = createRequire(path.join(root, "frontend_demo/package.json"));
const { chromium } = require("playwright-core");
export const axeSource = require.resolve("axe-core/axe.min.js");

export const WIDE = { width: 1440, height: 900 };
export const PHONE = { width: 390, height: 844 };
const SIZES = [["1440", WIDE], ["390", PHONE]];

/** The conditions under which the page is looked at: each size and each scheme once; each with each if VIEWS=all. */
export const SCREENS = SIZES.flatMap(([size, viewport]) => ["light", "dark"].map((colorScheme) => ({ size, viewport, colorScheme })))
  .filter(({ size, colorScheme }) => process.env.VIEWS === "all" || (size === "1440") === (colorScheme === "light"));
/** How long a page may take for what a test waits for: a machine that builds beside the tests is slow, and this is no measurement. */
const PATIENCE_MS = 20_000;
/** What a browser and the clients may write to the console when a server is killed or the line is cut, in any state of a request. */
export const LOST = [
  /ERR_EMPTY_RESPONSE|ERR_CONTENT_LENGTH_MISMATCH|ERR_CONNECTION|ERR_INCOMPLETE|ERR_SOCKET|ERR_INTERNET_DISCONNECTED|ERR_NETWORK_CHANGED|network error|Failed to fetch/i,
  /Failed to load runtime info/,
  /Agent \w+ not found/,
];
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
];

/** The server and the browser of a test file that called `withServer`. */
export let server;
export let browser;

/** Both, for as long as the tests of a file run. */
export function withServer() {
  before(async () => {
    server = await startServer();
    browser = await startBrowser();
  });
  after(async () => {
    await browser?.close();
    await server?.stop();
  });
}

/** Starts the scripted server and waits until it answers. */
export async function startServer(...args) {
  return startModule("tests.browser.serve", ...args);
}

/** The same for any module that prints its address first. */
export async function startModule(name, ...args) {
  const python = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
  const child = spawn(python, ["-W", "error", "-m", name, ...args], { cwd: root, stdio: ["ignore", "pipe", "pipe"] });
  process.once("exit", () => child.kill("SIGKILL")); // also when a test was given up
  let errors = "";
  child.stderr.on("data", (data) => (errors += data));
  const url = await new Promise((resolve, reject) => {
    child.stdout.once("data", (data) => resolve(String(data).trim()));
    child.once("error", reject);
    child.once("exit", (code) => reject(new Error(`the server ended with ${code}\n${errors}`)));
  });
  await ready(url);
  const ended = new Promise((resolve) => child.once("exit", resolve));
  return {
    url,
    port: new URL(url).port,
    errors: () => errors,
    stop: async (signal = "SIGTERM") => {
      child.kill(signal);
      await ended;
    },
  };
}

async function ready(url) {
  for (let attempt = 0; attempt < 3_600; attempt++) {
    const answer = await fetch(`${url}/ready`).catch(() => null);
    if (answer?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`${url} did not become ready`);
}

export async function startBrowser() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
}

/** A page in a fresh profile. `faults` collects console errors, page errors and requests that leave this machine. */
export async function openPage(browser, url, { viewport = WIDE, colorScheme = "light", expected = [], storage } = {}) {
  const context = await browser.newContext({ viewport, colorScheme, acceptDownloads: true, storageState: storage });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  const faults = [];
  page.on("console", (message) => {
    if (!["error", "warning"].includes(message.type())) return;
    if (!expected.some((pattern) => pattern.test(message.text()))) faults.push(`console ${message.type()}: ${message.text()} (${message.location().url})`);
  });
  page.on("pageerror", (error) => {
    if (!expected.some((pattern) => pattern.test(error.message))) faults.push(`page error: ${error.stack || `${error.name}: ${error.message}`}`);
  });
  page.on("request", (request) => {
    const { protocol, hostname } = new URL(request.url());
    if (protocol.startsWith("http") && !["127.0.0.1", "localhost"].includes(hostname)) faults.push(`request to ${request.url()}`);
  });
  if (url) await page.goto(url);
  return Object.assign(page, { faults, leave: () => context.close() });
}

/** The demo, ready to be written in. */
export async function openDemo(browser, url, options) {
  const page = await openPage(browser, url, options);
  await page.getByPlaceholder("Ask something").waitFor();
  return page;
}

export async function say(page, text) {
  await page.getByPlaceholder("Ask something").waitFor();
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.keyboard.press("Enter");
}

/** What the page shows becomes `wanted`: read again until it is, for what a page draws in several steps. */
export function becomes(read, wanted, message) {
  return holds(async () => assert.deepEqual(await read(), wanted, message));
}

/** What the page shows comes to match `pattern`. Between a run and the one that follows a page's tool, nothing runs. */
export function matches(read, pattern, message) {
  return holds(async () => assert.match(await read(), pattern, message));
}

async function holds(check) {
  const until = Date.now() + PATIENCE_MS;
  for (;;) {
    try {
      return await check();
    } catch (error) {
      if (Date.now() > until) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
}

export const sendButton = (page) => page.getByRole("button", { name: "Send", exact: true });

/** The run is over: the composer offers to send again. */
export async function settled(page) {
  await sendButton(page).waitFor({ timeout: 20_000 });
}

export async function converse(page, text) {
  await say(page, text);
  await page.getByRole("button", { name: "Stop", exact: true }).waitFor({ timeout: 5_000 }).catch(() => undefined);
  await settled(page);
}

/** Screenshots are kept when a folder is named; they are looked at by people, not compared. */
export async function picture(page, name) {
  const folder = process.env.SCREENSHOTS;
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await page.screenshot({ path: path.join(folder, `${name}.png`) });
}

/** A line to the server that can be cut and mended, for pages that are opened through it. */
export async function openLine(target) {
  const { hostname, port } = new URL(target);
  const sockets = new Set();
  let whole = true;
  const gate = net.createServer((near) => {
    if (!whole) return near.destroy();
    const far = net.connect(Number(port), hostname);
    for (const [one, other] of [[near, far], [far, near]]) {
      sockets.add(one);
      one.on("error", () => other.destroy()).on("close", () => { sockets.delete(one); other.destroy(); });
    }
    near.pipe(far).pipe(near);
  });
  await new Promise((resolve) => gate.listen(0, "127.0.0.1", resolve));
  const cut = () => {
    whole = false;
    for (const socket of sockets) socket.destroy();
  };
  return { url: `http://127.0.0.1:${gate.address().port}`, cut, mend: () => (whole = true), close: () => { cut(); gate.close(); } };
}
