// Encodes and decodes events with @ag-ui/proto, the reference for the binary wire.
//
// In, one JSON object per line: { event } or { hex }. Out: { hex } or { event }, or { error }.
import { decode, encode } from "@ag-ui/proto";
import { jsonLines } from "./clients.mjs";

function answer({ event, hex }) {
  try {
    return event === undefined
      ? { event: decode(new Uint8Array(Buffer.from(hex, "hex"))) }
      : { hex: Buffer.from(encode(event)).toString("hex") };
  } catch (error) {
    return { error: String(error?.message ?? error) };
  }
}

for await (const entry of jsonLines(process.stdin)) {
  process.stdout.write(JSON.stringify(answer(entry)) + "\n");
}
