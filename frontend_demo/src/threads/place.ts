/** Where the page is, in its address: which agent and which thread. A reload or a bookmark comes back to it. */

import { randomUUID } from "@ag-ui/client";

export interface Place {
  agentId: string;
  threadId: string;
}

export function readPlace(hash: string): Place {
  const fields = new URLSearchParams(hash.replace(/^#/, ""));
  return { agentId: fields.get("agent") || "default", threadId: fields.get("thread") || randomUUID() };
}

export function writePlace({ agentId, threadId }: Place): string {
  const fields = new URLSearchParams({ ...(agentId === "default" ? {} : { agent: agentId }), thread: threadId });
  return `#${fields.toString()}`;
}
