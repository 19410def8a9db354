/** Where the page is, in its address: which agent and which thread. A reload or a bookmark comes back to it. */

import { randomUUID } from "@ag-ui/client";

export interface Place {
  /** Empty: whichever agent shows most. */
  agentId: string;
  threadId: string;
}

export function readPlace(hash: string): Place {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  return { agentId: fields.get("agent") ?? "", threadId: fields.get("thread") || randomUUID() };
}

/** Whether an address says which thread is to be shown. */
export function namesThread(hash: string): boolean {
  return new URLSearchParams(hash.replace(/^#/, "")).has("thread");
}

export function writePlace({ agentId, threadId }: Place): string {
  const fields = new URLSearchParams({ ...(agentId ? { agent: agentId } : {}), thread: threadId });
  return `#${fields.toString()}`;
}

/** The agent to talk to: the one asked for if it exists, else the demonstration's, else the one that always exists. */
export function chooseAgent(wanted: string, known: readonly string[]): string {
  return [wanted, "demo"].find((id) => known.includes(id)) ?? "default";
}
