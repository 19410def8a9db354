/** What a run waits for before its first word, by what the server tells. */

import type { Recording } from "../stream/record";

const WAITING = "agent_server.waiting";

/** blocked: why the model cannot answer yet, where the server says so ("The model is loading"). */
export function waitsFor(recording: Recording, blocked: string | null): string {
  if (blocked) return blocked;
  const last = recording.over ? undefined : recording.rows.findLast(({ event }) => event.type === "STEP_STARTED" || (event.type === "CUSTOM" && event.name === WAITING));
  if (last?.event.type === "CUSTOM") return "Waiting for the run before this one";
  return last ? "Reading the prompt" : "Waiting for the model";
}
