// Takes the README's picture: a conversation with the bundled model in mid-stream, light and dark.
//   node scripts/screenshot.mjs [folder]        (AGENT_SERVER_URL uses a server that runs already)
import { spawn } from "node:child_process";
import { mkdirSync } from "node:fs";
import net from "node:net";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");
const folder = path.resolve(process.argv[2] ?? path.join(root, "docs"));
const python = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
const SIZE = { width: 1440, height: 860 };

const server = process.env.AGENT_SERVER_URL ? { url: process.env.AGENT_SERVER_URL, stop: () => undefined } : await serve();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
try {
  mkdirSync(folder, { recursive: true });
  for (const colorScheme of ["light", "dark"]) await take(colorScheme, path.join(folder, colorScheme === "light" ? "demo.png" : "demo-dark.png"));
} finally {
  await browser.close();
  server.stop();
}

async function take(colorScheme, file) {
  const page = await browser.newPage({ viewport: SIZE, colorScheme, deviceScaleFactor: 2 });
  await page.goto(server.url);
  for (const text of ["What is the weather in Oslo?", "What can you do?"]) {
    await page.getByPlaceholder("Ask something").waitFor({ timeout: 60_000 });
    await page.getByRole("textbox", { name: "Message" }).fill(text);
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Send", exact: true }).waitFor({ timeout: 60_000 });
    await page.waitForTimeout(900);
  }
  await page.screenshot({ path: file });
  await page.close();
  console.log(file);
}

async function serve() {
  const port = await freePort();
  const child = spawn(python, ["-c", "from agent_server.cli.main import main; main()", "serve", "--port", String(port), "--store", "memory"], { cwd: root, stdio: "ignore" });
  const url = `http://127.0.0.1:${port}`;
  for (let tries = 0; tries < 600; tries++) {
    if ((await fetch(`${url}/ready`).catch(() => null))?.ok) return { url, stop: () => child.kill() };
    await new Promise((resolve) => setTimeout(resolve, 200));
  }
  child.kill();
  throw new Error("the server did not become ready");
}

function freePort() {
  return new Promise((resolve) => {
    const probe = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = probe.address();
      probe.close(() => resolve(port));
    });
  });
}
