// Generative UI in an application that is not ours: CopilotKit's own packages show MCP apps and A2UI surfaces, and the
// application has no code for either.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPage, picture, startBrowser, startModule } from "./harness.mjs";
import { servePage } from "./built_page.mjs";

let server;
let browser;
let files;

before(async () => {
  files = await servePage("newcomer");
  server = await startModule("tests.browser.generative", "--origin", files.origin);
  browser = await startBrowser();
});
after(async () => {
  await browser?.close();
  files?.close();
  await server?.stop();
});

/** What Chromium says about the frames that CopilotKit 1.74 makes for apps. */
const SANDBOX = /allow-scripts and allow-same-origin/;
let threads = 0;

function check(name, agent, work) {
  test(name, { timeout: 60_000 }, async () => {
    const query = new URLSearchParams({ runtime: `${server.url}/copilotkit`, thread: `generative-${++threads}`, agent });
    const page = await openPage(browser, `${files.origin}/?${query}`, { expected: [SANDBOX] });
    try {
      await ready(page);
      await work(page);
      assert.deepEqual(page.faults, []);
    } finally {
      await page.leave();
    }
  });
}

/** Its chat connects twice on mount, and drops a run begun in between. */
async function ready(page) {
  await page.getByTestId("copilot-chat-textarea").waitFor();
  await page.waitForLoadState("networkidle");
}

async function say(page, text) {
  await page.getByTestId("copilot-chat-textarea").fill(text);
  await page.keyboard.press("Enter");
}

const answer = (page, text) => page.locator('[data-testid="copilot-message-list"]').getByText(text).last().waitFor();
const app = (page) => page.frameLocator('[data-testid="mcp-app-iframe"]').frameLocator("iframe");

check("an MCP app shows its tool's result, calls its server back, and survives a reload", "default", async (page) => {
  await say(page, "What is the weather?");
  await answer(page, "There it is.");
  await app(page).locator("#city", { hasText: "Oslo" }).waitFor();
  await app(page).locator("#more", { hasText: "More — später" }).click();
  await app(page).locator("#count", { hasText: "2" }).waitFor();
  await picture(page, "mcp-app");
  await page.reload();
  await answer(page, "There it is.");
  await app(page).locator("#city", { hasText: "Oslo" }).waitFor();
  await app(page).locator("#more").click();
  await app(page).locator("#count", { hasText: "4" }).waitFor();
  assert.equal(await page.getByTestId("mcp-app-iframe").count(), 1);
});

check("a form is written by the model, filled, sent and answered, and stands after a reload", "painter", async (page) => {
  await say(page, "Show me a form");
  await answer(page, "There it is.");
  const field = page.getByLabel("Name");
  await field.waitFor();
  assert.equal(await field.inputValue(), "Ada");
  await field.fill("Grace");
  await page.getByRole("button", { name: "Book" }).click();
  await answer(page, "Booked for Grace.");
  await picture(page, "a2ui-form");
  await page.reload();
  await answer(page, "Booked for Grace.");
  await page.getByRole("button", { name: "Book" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Book" }).count(), 1);
});

check("a surface stands before the call that writes it has ended, and after it was stopped", "painter", async (page) => {
  await say(page, "Show me flights"); // a call that never ends
  await page.getByText("Flight 1", { exact: true }).waitFor();
  await page.getByText("Flight 2", { exact: true }).waitFor();
  assert.equal(await page.getByText("Flight 3", { exact: true }).count(), 0);
  await picture(page, "a2ui-streaming");
  await page.getByTestId("copilot-send-button").click();
  await say(page, "Show me a form");
  await answer(page, "There it is.");
  await page.getByText("Flight 2", { exact: true }).waitFor();
});
