// Checks events against the schemas that a client's own package ships.
//
// In, one JSON object per line: { event }. Out: { ok, error } by @ag-ui/core 0.0.59.
import { EventSchemas } from "@ag-ui/core-0.0.59";
import { jsonLines } from "./clients.mjs";

for await (const { event } of jsonLines(process.stdin)) {
  const checked = EventSchemas.safeParse(event);
  const error = checked.success ? null : JSON.stringify(checked.error.issues).slice(0, 500);
  process.stdout.write(JSON.stringify({ ok: checked.success, error }) + "\n");
}
