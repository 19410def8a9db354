// Lighthouse's scores of the demonstration's page: as a telephone and as a desktop, in light and in dark, medians of the runs.
//   npm install --prefix /tmp/lighthouse lighthouse@13
//   node benchmarks/lighthouse.mjs /tmp/lighthouse [URL] [--runs 3] [--faults]
// The first argument is the folder that Lighthouse was installed in; the browser is CHROME_PATH, or /usr/bin/chromium.
// Without a URL it starts the server of the browser tests, whose page is the real one. --faults lists what costs points.
import { createRequire } from "node:module";
import path from "node:path";
import { parseArgs } from "node:util";
import { pathToFileURL } from "node:url";
import { startServer } from "../tests/browser/harness.mjs";

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { runs: { type: "string", default: "3" }, faults: { type: "boolean", default: false } },
});
if (!positionals[0]) throw new Error("The first argument is the folder that Lighthouse was installed in.");
const find = createRequire(path.resolve(positionals[0], "package.json"));
const { default: lighthouse, desktopConfig } = await import(pathToFileURL(find.resolve("lighthouse")));
const { default: puppeteer } = await import(pathToFileURL(find.resolve("puppeteer-core")));

const KINDS = ["performance", "accessibility", "best-practices", "seo"];
const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];

const server = positionals[1] ? null : await startServer();
const url = positionals[1] ?? server.url;
console.log(`| | | ${KINDS.join(" | ")} | first paint | largest paint | blocked | shift |\n|---|---|---|---|---|---|---|---|---|---|`);
for (const [device, config] of [["telephone", undefined], ["desktop", desktopConfig]]) {
  for (const colours of ["light", "dark"]) {
    const results = [];
    for (let run = 0; run < Number(values.runs); run++) {
      const browser = await puppeteer.launch({ executablePath: process.env.CHROME_PATH ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-dev-shm-usage"] });
      const page = await browser.newPage();
      await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: colours }]);
      results.push((await lighthouse(url, { onlyCategories: KINDS, logLevel: "error" }, config, page)).lhr);
      await browser.close();
    }
    const scores = KINDS.map((kind) => median(results.map(({ categories }) => Math.round(100 * categories[kind].score))));
    const times = ["first-contentful-paint", "largest-contentful-paint", "total-blocking-time", "cumulative-layout-shift"]
      .map((name) => median(results.map(({ audits }) => audits[name].numericValue)));
    const shown = times.map((time, at) => (at < 3 ? `${time.toFixed(0)} ms` : time.toFixed(3)));
    console.log(`| ${device} | ${colours} | ${[...scores, ...shown].join(" | ")} |`);
    if (values.faults) {
      for (const { title, score, displayValue } of Object.values(results[0].audits)) {
        if (score !== null && score < 0.9) console.log(`  ${score} ${title} ${displayValue ?? ""}`);
      }
    }
  }
}
await server?.stop();
