// The two AG-UI clients in the field, by version, and what they print while they work.
import * as current from "@ag-ui/client";
import * as old from "@ag-ui/client-0.0.59";

export const CLIENTS = { "1.0.0": current, "0.0.59": old };

/** Run `work` and return its result beside every line that it wrote to the console. */
export async function listening(work) {
  const lines = [];
  const kept = {};
  for (const level of ["log", "info", "warn", "error", "debug"]) {
    kept[level] = console[level];
    console[level] = (...parts) => lines.push({ level, text: parts.map(String).join(" ").slice(0, 2000) });
  }
  try {
    return { result: await work(), lines };
  } finally {
    Object.assign(console, kept);
  }
}

/** JSON lines on standard input, one value each. */
export async function* jsonLines(stream) {
  let rest = "";
  for await (const piece of stream.setEncoding("utf8")) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.trim()) yield JSON.parse(line);
  }
  if (rest.trim()) yield JSON.parse(rest);
}
