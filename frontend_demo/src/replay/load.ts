/** A recorded run from an address or a file, with what its events are on the other wire if the server can say so. */

import { ask } from "../kit/core";
import { frames } from "../stream/sse";
import { fromLog, type Logged } from "../stream/record";

export interface Loaded {
  name: string;
  log: Logged[];
  chunks: string[][];
}

/** The address in `?replay=`, or null; an empty one means that the person chooses a file. */
export function replayAddress(search: string): string | null {
  return new URLSearchParams(search).get("replay");
}

export async function loadAddress(address: string): Promise<Loaded> {
  const response = await fetch(new URL(address, document.baseURI));
  if (!response.ok) throw new Error(`${address} answered ${response.status}.`);
  return loadText(address.split("/").at(-1) ?? address, await response.text());
}

export async function loadText(name: string, text: string): Promise<Loaded> {
  const log = fromLog(text);
  return { name, log, chunks: await reencode(log).catch(() => []) };
}

/** Asks the server what these events are on the OpenAI wire: one list of frames for each event. */
async function reencode(log: readonly Logged[]): Promise<string[][]> {
  const body = log.map(({ event }) => JSON.stringify(event)).join("\n");
  const response = await ask("demo/wires?wire=openai", { method: "POST", body, headers: { "content-type": "application/jsonl" } });
  const chunks: string[][] = log.map(() => []);
  if (!response.body) return chunks;
  for await (const frame of frames(response.body)) chunks[Math.min(Number(frame.id), log.length) - 1]?.push(frame.data);
  return chunks;
}
