// When the demonstration's page can be written in, and when it can send, over a slow line: 50 kB/s and 400 ms by Chromium's
// own throttling.
//   node benchmarks/page_load.mjs [URL] [--runs 5] [--rate 51200] [--delay 400]
// Without a URL it starts the server of the browser tests, whose page is the real one. A first visit has an empty cache.
import { parseArgs } from "node:util";
import { openPage, startBrowser, startServer } from "../tests/browser/harness.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { runs: { type: "string", default: "5" }, rate: { type: "string", default: "51200" }, delay: { type: "string", default: "400" } },
});

/** Milliseconds from asking for the page until the composer takes words, and until it sends them. */
async function usable(page, url) {
  const began = performance.now();
  await page.goto(url, { waitUntil: "commit" });
  const frames = { timeout: 60_000, polling: "raf" }; // a locator looks only every half second once it has waited for long
  await page.waitForFunction(() => document.getElementById("message"), null, frames);
  const writes = performance.now() - began;
  await page.waitForFunction(() => document.getElementById("message")?.placeholder === "Ask something", null, frames);
  return { writes, sends: performance.now() - began };
}

async function visits(browser, url, line) {
  const page = await openPage(browser);
  const session = await page.context().newCDPSession(page);
  await session.send("Network.enable");
  await session.send("Network.emulateNetworkConditions", { offline: false, ...line });
  const first = await usable(page, url);
  await page.goto("about:blank");
  const again = await usable(page, url);
  await page.leave();
  return [first, again];
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)].toFixed(0);

const server = positionals[0] ? null : await startServer();
const url = positionals[0] ?? server.url;
const browser = await startBrowser();
const slow = { latency: Number(values.delay), downloadThroughput: Number(values.rate), uploadThroughput: Number(values.rate) };
const open = { latency: 0, downloadThroughput: -1, uploadThroughput: -1 };
console.log("| line | first visit, ms: takes words | sends | later visit: takes words | sends |\n|---|---|---|---|---|");
for (const [name, line] of [[`${values.rate} bytes/s, ${values.delay} ms`, slow], ["as it is", open]]) {
  const seen = [];
  for (let run = 0; run < Number(values.runs); run++) seen.push(await visits(browser, url, line));
  const columns = [0, 1].flatMap((visit) => ["writes", "sends"].map((what) => median(seen.map((visits) => visits[visit][what]))));
  console.log(`| ${name} | ${columns.join(" | ")} |`);
}
await browser.close();
await server?.stop();
