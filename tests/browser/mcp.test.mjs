// MCP servers that ask a person, whose answer comes after the gateway was killed and started again.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";
import { after, before, test } from "node:test";
import { becomes, converse, LOST, matches, openDemo, picture, root, say, settled, startBrowser, startServer } from "./harness.mjs";

const LIMITS = { timeout: 300_000 };
const PYTHON = process.env.PYTHON ?? path.join(root, ".venv/bin/python");
/** Where users sign in: the mcp SDK's own authorization server, and Authlib's. Only `make test-mcp` tries it in a browser. */
const ISSUERS = process.env.MCP_ENV ? ["the SDK", "Authlib"] : [];

let browser;
before(async () => {
  browser = await startBrowser();
});
after(() => browser?.close());

const assistant = (page) => page.locator('[data-role="assistant"]').last();
const question = (page) => page.getByRole("region", { name: "The model waits for you" });

async function freePort() {
  const gate = net.createServer();
  await new Promise((resolve) => gate.listen(0, "127.0.0.1", resolve));
  const { port } = gate.address();
  await new Promise((resolve) => gate.close(resolve));
  return port;
}

/** A script of tests/agents that listens at a port, which is its first argument. */
async function startScript(python, name, ...more) {
  const port = await freePort();
  const child = spawn(python, [path.join(root, "tests/agents", name), String(port), ...more], { stdio: "ignore" });
  process.once("exit", () => child.kill("SIGKILL"));
  const origin = `http://127.0.0.1:${port}`;
  while (!(await fetch(origin).catch(() => null))) {
    assert.equal(child.exitCode, null, `${name} ended`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return { origin, stop: () => child.kill("SIGKILL") };
}

/** A gateway that can be killed and started again at the same address and with the same store, and the page on it. */
async function openGateway(...more) {
  const folder = mkdtempSync(path.join(tmpdir(), "mcp-"));
  const options = ["--asking", "--store", `sqlite:///${path.join(folder, "threads.db")}`, ...more];
  let server = await startServer(...options);
  const page = await openDemo(browser, server.url, { expected: LOST });
  await page.getByLabel("Agent", { exact: true }).selectOption("asking");
  return {
    page,
    restart: async () => {
      await server.stop("SIGKILL");
      await page.getByPlaceholder("No answer from the server, retrying").waitFor();
      server = await startServer("--port", server.port, ...options);
    },
    close: async () => {
      assert.deepEqual(page.faults, []);
      await page.leave();
      await server.stop();
      rmSync(folder, { recursive: true });
    },
  };
}

/** Follows the link of a question, as a person does: in a tab of its own. */
async function visit(page, shows) {
  const [tab] = await Promise.all([page.context().waitForEvent("page"), question(page).getByRole("link").click()]);
  await tab.getByText(shows).waitFor();
  return tab;
}

test("forms and a link of an MCP server are answered, each by a gateway that was started after the question", LIMITS, async () => {
  const { page, restart, close } = await openGateway();
  await page.context().route("https://pay.example/**", (route) => route.fulfill({ contentType: "text/html", body: "<h1>Thank you</h1>" }));
  await say(page, "Please reserve seats");
  await question(page).getByText("Which day?").waitFor();
  await picture(page, "mcp-form");

  await restart();
  await page.getByText("The server is back").waitFor();
  await question(page).getByLabel("day").fill("Monday");
  await picture(page, "mcp-form-restarted");
  await question(page).getByRole("button", { name: "Answer" }).click();
  await question(page).getByText("How many seats?").waitFor();

  await restart();
  await page.reload();
  await question(page).getByLabel("seats").fill("2");
  await question(page).getByRole("button", { name: "Answer" }).click();
  await question(page).getByText("Pay here").waitFor();
  await picture(page, "mcp-link");

  await restart();
  await page.reload();
  const paid = await visit(page, "Thank you");
  await picture(paid, "mcp-link-visited");
  await paid.close();
  await question(page).getByRole("button", { name: "Approve" }).click();
  await settled(page);
  await matches(() => assistant(page).innerText(), /day accept \{'day': 'Monday'\}, seats accept \{'row': 'any', 'seats': 2\}, pay accept/);
  await becomes(() => question(page).count(), 0);
  await picture(page, "mcp-answered");
  await page.reload();
  await matches(() => assistant(page).innerText(), /pay accept/);
  await becomes(() => question(page).count(), 0);
  await close();
});

for (const issuer of ISSUERS) {
  test(`a sign-in with ${issuer} is finished by one restarted gateway, and answered at the next`, LIMITS, async () => {
    const authlib = issuer === "Authlib" ? await startScript(path.join(process.env.MCP_ENV, "bin/python"), "authlib_server.py") : null;
    const far = await startScript(PYTHON, "consent_server.py", ...(authlib ? [authlib.origin] : []));
    const { page, restart, close } = await openGateway("--far", `${far.origin}/mcp`);
    const name = issuer.toLowerCase().replace(/\W/g, "-");
    await say(page, "Please sign me in");
    await question(page).getByText("Sign in to far").first().waitFor();
    await picture(page, `mcp-consent-${name}`);

    await restart();
    await page.getByText("The server is back").waitFor();
    const signedIn = await visit(page, "Signed in to far");
    await picture(signedIn, `mcp-consent-${name}-signed-in`);
    await signedIn.close();

    await restart();
    await page.reload();
    await question(page).getByRole("button", { name: "Approve" }).click();
    await settled(page);
    await matches(() => assistant(page).innerText(), /The user is signed in to far\. These tools can be called now: secret/);
    await converse(page, "Tell me the secret");
    await matches(() => assistant(page).innerText(), issuer === "Authlib" ? /42 for ann/ : /42 for access-/);
    await picture(page, `mcp-consent-${name}-answered`);
    await close();
    far.stop();
    authlib?.stop();
  });
}
