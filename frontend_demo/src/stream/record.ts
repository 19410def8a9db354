/**
 * One run as the panel shows it: every event with its number and time, and what it became on the other wire.
 *
 * Plain data and one fold, so that a live run, a run that a reload joined and a recorded one look the same.
 */

import type { RunAgentInput } from "@ag-ui/core";
import { isFields, parse, type AgEvent, type Json } from "./describe";

export interface Row {
  sequence: number;
  /** Milliseconds since the request was sent, or since the first event where that is not known. */
  at: number;
  event: AgEvent;
  /** The frames of the other wire that this event became; often none or one. */
  chunks: string[];
}

export interface Recording {
  runId: string;
  rows: Row[];
  began: number;
  over: boolean;
  /** Followed from the middle: its first events were old when they came. */
  joined: boolean;
  /** Not the run's own events, which are gone, but what its thread holds. */
  remains?: boolean;
  /** The messages that the run began from: a log without the question is half a report. */
  before: readonly unknown[];
  /** What the page sent, where it was this page. */
  input?: RunAgentInput;
}

export interface Meters {
  firstToken: number | null;
  tokensPerSecond: number | null;
  tokens: number;
  /** Tokens of the run's last turn, prompt and answer; null while it runs. */
  context: number | null;
  /** Counted by the server; before that, one for each piece that arrived. */
  exact: boolean;
  chunks: number;
}

const PIECES = new Set(["TEXT_MESSAGE_CONTENT", "REASONING_MESSAGE_CONTENT", "TOOL_CALL_ARGS"]);

export function empty(runId = "", began = 0, before: readonly unknown[] = []): Recording {
  return { runId, rows: [], began, over: false, joined: false, before };
}

export function addEvent(recording: Recording, sequence: number, event: AgEvent, now: number): void {
  const known = recording.rows.at(-1);
  if (known && sequence <= known.sequence) return;
  if (!recording.rows.length && !recording.began) recording.began = now;
  recording.rows.push({ sequence, at: Math.max(0, now - recording.began), event, chunks: [] });
  if (event.type === "RUN_FINISHED" || event.type === "RUN_ERROR") recording.over = true;
}

/** Frames that follow the last event (`[DONE]`) belong to it. */
export function addChunk(recording: Recording, sequence: number, data: string): void {
  const row = recording.rows.findLast((candidate) => candidate.sequence === sequence) ?? recording.rows.at(-1);
  row?.chunks.push(data);
}

export function meters(recording: Recording): Meters {
  const pieces = recording.rows.filter((row) => PIECES.has(row.event.type));
  const end = recording.rows.at(-1)?.event;
  const counted = end?.type === "RUN_FINISHED" || end?.type === "RUN_ERROR" ? outputTokens(end.usage) : null;
  const tokens = counted ?? pieces.reduce((sum, row) => sum + tokensOf(row.event), 0);
  const first = pieces[0];
  const last = pieces.at(-1);
  const told = timings(end);
  const measured = first && !recording.joined ? first.at : null;
  const seconds = told ? (told.total - told.firstToken) / 1000 : first && last ? (last.at - first.at) / 1000 : 0;
  return {
    firstToken: told?.firstToken ?? measured,
    tokensPerSecond: seconds > 0.02 && tokens > 1 ? (tokens - 1) / seconds : null,
    tokens,
    exact: counted !== null,
    context: contextOf(end),
    chunks: recording.rows.reduce((sum, row) => sum + row.chunks.length, 0),
  };
}

/** How long a run took, by the server's own measure; null where it does not say. */
export function secondsOf(recording: Recording): number | null {
  const told = timings(recording.rows.at(-1)?.event);
  return told && told.total / 1000;
}

/** The server's own measure in milliseconds, once the run is over: a busy browser sees events late and in heaps. */
function timings(end: AgEvent | undefined): { firstToken: number; total: number } | null {
  const told = isFields(end?.metadata) ? end.metadata.timings : undefined;
  if (!isFields(told) || typeof told.firstToken !== "number" || typeof told.total !== "number") return null;
  return { firstToken: told.firstToken * 1000, total: told.total * 1000 };
}

function tokensOf(event: AgEvent): number {
  const tokens = isFields(event.metadata) ? event.metadata.tokens : undefined;
  return Array.isArray(tokens) ? tokens.length : 1;
}

/** The server tells it where a run had several turns, whose tokens `usage` adds up. */
function contextOf(end: AgEvent | undefined): number | null {
  const told = isFields(end?.metadata) ? end.metadata.context : undefined;
  if (typeof told === "number") return told;
  const usage = Array.isArray(end?.usage) && end.usage.length === 1 ? end.usage[0] : undefined;
  if (!isFields(usage) || typeof usage.inputTokens !== "number" || typeof usage.outputTokens !== "number") return null;
  return usage.inputTokens + usage.outputTokens;
}

function outputTokens(usage: Json | undefined): number | null {
  if (!Array.isArray(usage)) return null;
  const counts = usage.map((entry) => (isFields(entry) ? entry.outputTokens : undefined));
  const known = counts.filter((count): count is number => typeof count === "number");
  return known.length ? known.reduce((sum, count) => sum + count, 0) : null;
}

/** An event log: one line of JSON an event, with its number and its time in milliseconds. */
export function toLog(recording: Recording): string {
  return recording.rows
    .map(({ sequence, at, event }) => JSON.stringify({ sequence, at: Math.round(at), event: withQuestion(event, recording.before) }) + "\n")
    .join("");
}

/** RUN_STARTED with the input's messages, where AG-UI has a place for them. */
function withQuestion(event: AgEvent, messages: readonly unknown[]): AgEvent {
  if (event.type !== "RUN_STARTED" || event.input !== undefined || !messages.length) return event;
  const { threadId = "", runId = "" } = event;
  return { ...event, input: { threadId, runId, messages: messages as Json[], tools: [], context: [], state: {}, forwardedProps: {} } };
}

export interface Logged {
  at: number | null;
  event: AgEvent;
}

/** Reads an event log: lines of events, of `{sequence, at, event}`, or of a saved SSE stream. Throws on a bad line. */
export function fromLog(text: string): Logged[] {
  const found: Logged[] = [];
  text.split(/\r?\n/).forEach((raw, index) => {
    const line = raw.replace(/^data:\s?/, "").trim();
    if (!line || line === "[DONE]" || /^(id|event|retry)?:/.test(line)) return;
    const value = parse(line);
    const logged = isFields(value) ? entry(value) : null;
    if (!logged) throw new Error(`Line ${index + 1} is not an AG-UI event.`);
    found.push(logged);
  });
  if (!found.length) throw new Error("The log is empty.");
  const first = found[0]?.at ?? null;
  return found.map((logged) => ({ ...logged, at: logged.at === null || first === null ? null : logged.at - first }));
}

function entry(value: { [key: string]: Json }): Logged | null {
  const inner = isFields(value.event) && typeof value.event.type === "string" ? value.event : value;
  if (typeof inner.type !== "string") return null;
  const at = [value.at, value.time, inner.timestamp].find((time): time is number => typeof time === "number");
  return { at: at ?? null, event: inner as AgEvent };
}
