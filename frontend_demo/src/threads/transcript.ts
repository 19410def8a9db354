/** A conversation as Markdown, as JSON and as an event log. */

import type { Message } from "@ag-ui/core";
import { ask } from "../kit/core";
import { frames } from "../stream/sse";
import { attachmentsOf } from "../chat/attachments";
import { plainText } from "../chat/Messages";

export type Form = "markdown" | "json" | "events";

export interface Exported {
  name: string;
  text: string;
  type: string;
}

interface Kept {
  thread: { name: string };
  messages: Message[];
}

/** The thread as the server has it. Throws an Error with the server's own sentence. */
export async function exported(threadId: string, form: Form): Promise<Exported> {
  const kept = (await (await ask(`agui/threads/${encodeURIComponent(threadId)}`)).json()) as Kept;
  const name = fileName(kept.thread.name);
  if (form === "markdown") return { name: `${name}.md`, text: toMarkdown(kept.thread.name, kept.messages), type: "text/markdown" };
  if (form === "json") return { name: `${name}.json`, text: `${JSON.stringify(kept, null, 2)}\n`, type: "application/json" };
  return { name: `${name}.jsonl`, text: await eventLog(threadId), type: "application/jsonl" };
}

function fileName(title: string): string {
  return title.replaceAll(/[^\p{L}\p{N}]+/gu, "-").replaceAll(/^-+|-+$/g, "").slice(0, 60).toLowerCase() || "conversation";
}

export function toMarkdown(title: string, messages: readonly Message[]): string {
  const parts = messages.flatMap((message) => spoken(message, messages));
  return [`# ${title || "Conversation"}`, ...parts].join("\n\n") + "\n";
}

function spoken(message: Message, messages: readonly Message[]): string[] {
  const text = plainText(message.content).trim();
  switch (message.role) {
    case "system":
    case "developer":
      return text ? ["**Instructions**", text] : [];
    case "user":
      return ["**You**", ...attachmentsOf(message.content).map(({ name }) => `(${name})`), ...(text ? [text] : [])];
    case "reasoning":
      return text ? [text.split("\n").map((line) => `> ${line}`.trimEnd()).join("\n")] : [];
    case "assistant":
      return [...(text ? ["**Model**", text] : []), ...(message.toolCalls ?? []).flatMap((call) => called(call, messages))];
    default:
      return [];
  }
}

function called(call: { id: string; function: { name: string; arguments: string } }, messages: readonly Message[]): string[] {
  const answer = messages.find((message) => message.role === "tool" && message.toolCallId === call.id);
  const result = answer ? plainText(answer.content) : "(no result)";
  return [`**Tool \`${call.function.name}\`**`, fenced(call.function.arguments), "Result:", fenced(result)];
}

/** In a fence that is longer than any inside. */
function fenced(text: string): string {
  const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}json\n${text}\n${fence}`;
}

/** Each run's events that are still kept, one after another, as the stream panel saves them; of a thread whose runs'
 * events are all gone, what it sends to a client that connects. */
async function eventLog(threadId: string): Promise<string> {
  const { runs } = (await (await ask(`agui/threads/${encodeURIComponent(threadId)}/runs`)).json()) as { runs: { id: string; createdAt: number }[] };
  const lines: string[] = [];
  for (const run of runs) for await (const event of eventsOf(run.id)) lines.push(`{"sequence":${lines.length + 1},"runId":${JSON.stringify(run.id)},"event":${event}}`);
  if (!lines.length) lines.push(...(await remains(threadId)));
  return lines.join("\n") + "\n";
}

async function* eventsOf(runId: string): AsyncGenerator<string> {
  const response = await ask(`demo/runs/${encodeURIComponent(runId)}/wires?wire=agui&unknown=empty`);
  if (response.status === 204 || !response.body) return;
  for await (const frame of frames(response.body)) yield frame.data;
}

async function remains(threadId: string): Promise<string[]> {
  const { events } = (await (await ask(`copilotkit/threads/${encodeURIComponent(threadId)}/events`)).json()) as { events: unknown[] };
  return events.map((event, index) => JSON.stringify({ sequence: index + 1, event }));
}
