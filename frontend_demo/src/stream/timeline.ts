/** When a run thought, called, waited for a tool and spoke: its events as spans. */

import { hue, type Hue } from "./describe";
import type { Recording, Row } from "./record";

export interface Span {
  hue: Hue;
  label: string;
  /** Where it begins and ends, in shares of the run, 0 to 1. */
  from: number;
  to: number;
  /** The event that it begins with. */
  sequence: number;
}

export interface Timeline {
  spans: Span[];
  /** Milliseconds from the request to the last event; null where only the order of the events is known. */
  duration: number | null;
}

const NAMES: Readonly<Record<string, string>> = { TEXT_MESSAGE: "Text", REASONING_MESSAGE: "Reasoning", TOOL_CALL: "Call" };

/** Of a run that was read afterwards the order alone is known, so that there every event is as long as the others. */
export function timelineOf({ rows, joined }: Recording): Timeline {
  const place = (row: Row, index: number): number => (joined ? index : row.at);
  const last = rows.at(-1);
  const whole = last ? place(last, rows.length - 1) : 0;
  const spans: Span[] = [];
  const open = new Map<string, Span>();
  const begin = (key: string, label: string, row: Row, index: number) => {
    const from = whole ? place(row, index) / whole : 0;
    const span: Span = { hue: hue(row.event.type), label, from, to: 1, sequence: row.sequence };
    open.set(key, span);
    spans.push(span);
  };
  const end = (key: string, row: Row, index: number) => {
    const span = open.get(key);
    if (span) span.to = whole ? place(row, index) / whole : 0;
    open.delete(key);
  };
  rows.forEach((row, index) => {
    const { type, messageId, toolCallId, toolCallName } = row.event;
    const [, what = "", part] = /^(TEXT_MESSAGE|REASONING_MESSAGE|TOOL_CALL)_(START|END|RESULT)$/.exec(type) ?? [];
    const id = String(toolCallId ?? messageId ?? "");
    if (part === "START") begin(`${what} ${id}`, [NAMES[what], toolCallName].filter(Boolean).join(" "), row, index);
    if (part === "END" || part === "RESULT") end(`${what} ${id}`, row, index);
    // between a call and its result its tool is at work, where the server runs it
    if (part === "END" && what === "TOOL_CALL" && rows.some(({ event }) => event.type === "TOOL_CALL_RESULT" && event.toolCallId === toolCallId)) begin(`TOOL_CALL ${id}`, "Tool at work", row, index);
  });
  return { spans, duration: joined ? null : whole };
}
