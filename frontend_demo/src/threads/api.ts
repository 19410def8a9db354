import { ask } from "../kit/core";

export interface ThreadEntry {
  id: string;
  name: string | null;
  agentId: string;
  updatedAt: string;
}

export async function listThreads(agentId: string): Promise<ThreadEntry[]> {
  const response = await ask(`copilotkit/threads?agentId=${encodeURIComponent(agentId)}&limit=100`);
  return ((await response.json()) as { threads: ThreadEntry[] }).threads;
}

export async function renameThread(id: string, agentId: string, name: string): Promise<void> {
  await ask(`copilotkit/threads/${encodeURIComponent(id)}`, { method: "PATCH", body: JSON.stringify({ name, agentId }) });
}

export async function deleteThread(id: string, agentId: string): Promise<void> {
  // kept alive: it may be the last thing that a page which is being left does
  await ask(`copilotkit/threads/${encodeURIComponent(id)}`, { method: "DELETE", body: JSON.stringify({ agentId }), keepalive: true });
}

/** Out of the list, or back in it, with everything that the conversation holds. */
export async function archiveThread(id: string, agentId: string, archived: boolean): Promise<void> {
  await ask(`copilotkit/threads/${encodeURIComponent(id)}`, { method: "PATCH", body: JSON.stringify({ archived, agentId }) });
}

/** A new conversation that holds this one's messages up to one of them; its id. */
export async function branchThread(id: string, messageId: string): Promise<string> {
  const response = await ask(`agui/threads/${encodeURIComponent(id)}/branch`, { method: "POST", body: JSON.stringify({ messageId }) });
  return ((await response.json()) as { thread: { id: string } }).thread.id;
}
