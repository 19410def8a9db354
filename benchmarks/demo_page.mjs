// A conversation of five turns on the demonstration's page with whatever model the server serves: the weather, an email
// that waits for approval, a document, a change to it, and a question about the first turn.
//   node benchmarks/demo_page.mjs http://127.0.0.1:8000 --out FOLDER
// Printed is what a person sees after each turn, and faults of the page; FOLDER gets a picture of each turn and the
// conversation as the server stores it.
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import { openDemo, say, startBrowser } from "../tests/browser/harness.mjs";

const TURN_MS = 600_000;
const TURNS = [
  "What is the weather in Oslo?",
  "Send an email to ada@example.org: the meeting is on Friday at ten.",
  "Write a short document about owls.",
  "Add a line about what they eat to the document.",
  "What was the temperature in Oslo?",
];

const { values, positionals } = parseArgs({ allowPositionals: true, options: { out: { type: "string", default: "." } } });
const [url] = positionals;
if (!url) throw new Error("Name the server's URL, such as http://127.0.0.1:8000.");
mkdirSync(values.out, { recursive: true });

const browser = await startBrowser();
const page = await openDemo(browser, url);
page.setDefaultTimeout(TURN_MS);
const stop = page.getByRole("button", { name: "Stop", exact: true });
const approve = page.getByRole("button", { name: "Approve", exact: true });
for (const [number, words] of TURNS.entries()) {
  const begun = performance.now();
  await say(page, words);
  await stop.waitFor();
  let questions = 0;
  for (;;) {
    await stop.waitFor({ state: "detached" });
    await approve.or(page.getByPlaceholder("Ask something")).first().waitFor();
    if (!(await approve.isVisible())) break;
    questions += 1;
    await page.screenshot({ path: path.join(values.out, `turn-${number + 1}-question-${questions}.png`) });
    await approve.click();
    await approve.waitFor({ state: "detached" });
    await stop.or(page.getByPlaceholder("Ask something")).first().waitFor();
  }
  await page.screenshot({ path: path.join(values.out, `turn-${number + 1}.png`) });
  const seconds = ((performance.now() - begun) / 1000).toFixed(0);
  console.log(`\n## ${number + 1}: ${words} (${seconds} s, approved: ${questions})\n`);
  console.log(await page.locator('[data-role="assistant"]').last().innerText());
}
const [thread] = (await (await fetch(`${url}/agui/threads`)).json()).threads;
const stored = await (await fetch(`${url}/agui/threads/${thread.threadId ?? thread.id}/messages`)).json();
writeFileSync(path.join(values.out, "conversation.json"), JSON.stringify(stored, null, 1));
console.log(`\nFaults of the page: ${JSON.stringify(page.faults)}`);
await browser.close();
