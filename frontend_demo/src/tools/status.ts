import { createContext } from "react";

/** What every tool card is given by CopilotKit's renderer, in one plain shape. */

export interface ToolProps {
  name: string;
  toolCallId: string;
  args: Record<string, unknown>;
  status: "inProgress" | "executing" | "complete";
  result?: string | undefined;
}

/** Whether a run is going on: a call that still has no result then waits, and otherwise never got one. */
export const RunningContext = createContext(false);

/** A tool's result as JSON where it is JSON, else the text itself. */
export function readResult(result: unknown): unknown {
  if (typeof result !== "string") return result;
  try {
    return JSON.parse(result) as unknown;
  } catch {
    return result;
  }
}

export function asText(value: unknown): string {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

/** `get_weather`, `getWeather` → "Get weather". */
export function titleOf(name: string): string {
  const words = name.replaceAll(/([a-z])([A-Z])/g, "$1 $2").replaceAll(/[_-]+/g, " ").trim().toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** A tool's answer that says that it failed, in the shapes that servers use. */
export function failureOf(result: unknown): string | null {
  const value = readResult(result);
  if (typeof value === "object" && value !== null && "error" in value) {
    const { error } = value as { error: unknown };
    return typeof error === "string" ? error : asText((error as { message?: unknown } | null)?.message ?? error);
  }
  return typeof value === "string" && /^error:/i.test(value) ? value : null;
}

export type Outcome = "done" | "failed" | "denied" | "cancelled";

/** What became of a call, by its result: this server's refusal of a denied call, the answer that CopilotKit notes in its
 * place until the thread is read again, or an error. */
export function outcomeOf(result: unknown): Outcome {
  const value = readResult(result);
  if (typeof value === "string" && value.startsWith("The user did not approve this call")) return "denied";
  if (typeof value === "object" && value !== null) {
    if ("approved" in value && value.approved === false) return "denied";
    if ("status" in value && value.status === "cancelled") return "cancelled";
  }
  return failureOf(result) === null ? "done" : "failed";
}
