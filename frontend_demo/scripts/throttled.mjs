// Measures how long a first visit takes until one can write, over a line of 50 kB/s and 400 ms.
//   node scripts/throttled.mjs [address] [visits]
import { chromium } from "playwright-core";

const [address = "http://127.0.0.1:8000", visits = "3"] = process.argv.slice(2);
const LINE = { offline: false, latency: 400, downloadThroughput: 50 * 1024, uploadThroughput: 50 * 1024 };
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
for (let visit = 0; visit < Number(visits); visit++) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 } });
  const page = await context.newPage();
  const session = await context.newCDPSession(page);
  await session.send("Network.enable");
  await session.send("Network.emulateNetworkConditions", LINE);
  const began = performance.now();
  await page.goto(address, { waitUntil: "commit" });
  await page.getByPlaceholder("Ask something").waitFor({ timeout: 60_000 });
  console.log(`one can write after ${((performance.now() - began) / 1000).toFixed(2)} s`);
  await context.close();
}
await browser.close();
