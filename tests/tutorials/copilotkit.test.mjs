// docs/tutorials/copilotkit.md, followed to the letter in an empty folder: its commands, its page, its agent, in a browser.
// It installs from the npm registry, so it is part of `make test-long`.
import assert from "node:assert/strict";
import { execSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { test } from "node:test";
import { openPage, picture, root, startBrowser } from "../browser/harness.mjs";

const LIMITS = { timeout: 1_200_000 };

/** Fenced blocks of a page, in order. */
const blocks = (text) => [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(([, language, code]) => ({ language, code }));

async function freePort() {
  const probe = net.createServer();
  await new Promise((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

async function answers(url) {
  for (let attempt = 0; attempt < 1_200; attempt++) {
    if ((await fetch(url).catch(() => null))?.ok) return;
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  throw new Error(`${url} did not answer`);
}

test("the CopilotKit tutorial does what it says", LIMITS, async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "tutorial-"));
  const [server, page] = [await freePort(), await freePort()];
  // ports that are free here in place of those that the page names; nothing else is changed
  const placed = (code) => code.replaceAll("8000", server).replaceAll("5173", page).replaceAll(".venv/bin/agent-server", `${process.env.PYTHON ?? path.join(root, ".venv/bin/python")} -m agent_server.cli.main`);
  const found = blocks(readFileSync(path.join(root, "docs/tutorials/copilotkit.md"), "utf8")).map(({ language, code }) => ({ language, code: placed(code) }));
  const shell = found.filter(({ language }) => language === "sh").map(({ code }) => code);
  const [create, makeAgent, serve, dev] = shell;
  const app = found.find(({ language }) => language === "tsx").code;
  const env = { ...process.env, CI: "1", npm_config_yes: "true", npm_config_audit: "false", npm_config_fund: "false", PYTHONPATH: root };
  const run = (code) => execSync(code, { cwd: folder, env, stdio: ["ignore", "inherit", "inherit"], shell: "/bin/bash" });
  const children = [];
  const start = (code, cwd) => {
    const child = spawn("/bin/bash", ["-c", `exec ${code.trim()}`], { cwd, env, stdio: ["ignore", "inherit", "inherit"], detached: true });
    children.push(child);
  };
  let browser;
  try {
    run(`set -e\n${create}`);
    const project = path.join(folder, "my-page");
    writeFileSync(path.join(project, "src/App.tsx"), app);
    const main = path.join(project, "src/main.tsx");
    const entry = readFileSync(main, "utf8");
    assert.match(entry, /import '\.\/index\.css'/, "the line that the tutorial has removed");
    writeFileSync(main, entry.replace(/import '\.\/index\.css'\n/, ""));
    execSync("npx tsc -b", { cwd: project, env, stdio: "inherit" });
    run(makeAgent);
    start(`${serve.trim()} --port ${server} --store memory`, folder);
    start(`${dev.trim()} -- --port ${page} --strictPort`, project);
    await answers(`http://localhost:${server}/ready`);
    await answers(`http://localhost:${page}/`);
    browser = await startBrowser();
    const shown = await openPage(browser, null);
    await shown.goto(`http://localhost:${page}/`, { timeout: 120_000 }); // Vite bundles what it imports at the first visit
    const write = async (text) => {
      const box = shown.getByRole("textbox").first();
      await box.fill(text);
      await box.press("Enter");
    };
    await shown.getByRole("textbox").first().waitFor({ timeout: 60_000 });
    await write("What is the weather in Oslo?");
    await shown.getByText(/get_weather/).first().waitFor({ timeout: 60_000 });
    await shown.getByText(/degrees|°/).first().waitFor({ timeout: 60_000 });
    await picture(shown, "tutorial-weather");
    await write("Send an email to anna@example.com about lunch");
    await shown.getByRole("group", { name: "Approval" }).getByRole("button", { name: "Approve" }).click({ timeout: 60_000 });
    await shown.getByText(/The email to anna@example.com is on its way/).waitFor({ timeout: 60_000 });
    await picture(shown, "tutorial-approved");
    await shown.reload();
    await shown.getByText("What is the weather in Oslo?").first().waitFor({ timeout: 60_000 });
    await picture(shown, "tutorial-reloaded");
    await write("hello");
    await shown.getByText(/hello|hi/i).last().waitFor();
  } finally {
    await browser?.close();
    for (const child of children) process.kill(-child.pid, "SIGTERM");
    await new Promise((resolve) => setTimeout(resolve, 1_000));
    rmSync(folder, { recursive: true, force: true });
  }
});
