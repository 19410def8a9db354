/** What the stream panel lists: pieces of one message as one entry, and only what a person looks for. */

import { deltaOf, hue, type Hue } from "./describe";
import type { Row } from "./record";

/** More characters than a row shows. */
const ROOM = 100;

/** Rows that stand as one: pieces of the same message or call that came one right after the other, or a single row. */
export type Group = readonly [Row, ...Row[]];

export interface Wanted {
  /** Words of an event, of its chunks, or of the text that its pieces make together; empty for all. */
  text: string;
  /** Kinds of events that are left out. */
  without: ReadonlySet<Hue>;
}

export function fold(rows: readonly Row[]): Group[] {
  const groups: [Row, ...Row[]][] = [];
  for (const row of rows) {
    const last = groups.at(-1);
    if (last && ownerOf(row) !== "" && ownerOf(row) === ownerOf(last[0])) last.push(row);
    else groups.push([row]);
  }
  return groups;
}

export const unfolded = (rows: readonly Row[]): Group[] => rows.map((row) => [row]);

/** Which message or call a piece belongs to; empty for an event that is no piece. */
function ownerOf({ event }: Row): string {
  return typeof event.delta === "string" ? `${event.type} ${String(event.messageId ?? event.toolCallId ?? "")}` : "";
}

export function sought(groups: readonly Group[], { text, without }: Wanted): readonly Group[] {
  const words = text.trim().toLowerCase();
  if (!words && !without.size) return groups;
  return groups.filter((group) => !without.has(hue(group[0].event.type)) && (!words || has(group, words)));
}

function has(group: Group, words: string): boolean {
  if (textOf(group).toLowerCase().includes(words)) return true;
  return group.some(({ event, chunks }) => [JSON.stringify(event), ...chunks].some((each) => each.toLowerCase().includes(words)));
}

/** As much of the text that the pieces make together, from its beginning or from its end, as a row has room for. */
export function excerptOf<T>(pieces: readonly T[], textOf: (piece: T) => string, part: "beginning" | "end"): string {
  let text = "";
  for (let at = 0; at < pieces.length && text.length <= ROOM; at++) {
    const piece = textOf((part === "end" ? pieces.at(-1 - at) : pieces[at]) as T);
    text = part === "end" ? piece.slice(-ROOM) + text : text + piece.slice(0, ROOM);
  }
  return text;
}

/** The text that the pieces make together. */
export const textOf = (group: Group): string => group.map(({ event }) => deltaOf(event)).join("");

/** How many events there are of each kind, in the order in which a run usually has them. */
export function countsOf(rows: readonly Row[]): [Hue, number][] {
  const kinds: readonly Hue[] = ["run", "reasoning", "tool", "text", "state", "error"];
  return kinds.map((kind): [Hue, number] => [kind, rows.filter(({ event }) => hue(event.type) === kind).length]).filter(([, count]) => count > 0);
}
