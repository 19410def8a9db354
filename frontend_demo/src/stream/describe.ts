/** Short words for an event and for a chunk of another wire: what a row of the stream panel shows. */

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };
export type Fields = { [key: string]: Json };
export interface AgEvent extends Fields {
  type: string;
}

export type Hue = "run" | "text" | "reasoning" | "tool" | "state" | "error";

const PREVIEW = 80;
/** As much of its end as fits beside its type. */
const WRITTEN = 24;

export function hue(type: string): Hue {
  if (type === "RUN_ERROR") return "error";
  if (type.startsWith("TEXT_")) return "text";
  if (type.startsWith("REASONING_")) return "reasoning";
  if (type.startsWith("TOOL_")) return "tool";
  if (/^(STATE|ACTIVITY|MESSAGES|CUSTOM|RAW)/.test(type)) return "state";
  return "run";
}

/** One line about an event's payload; an empty string where its type says it all. */
export function preview(event: AgEvent): string {
  const { delta, toolCallName, snapshot, message, content, value, patch, outcome, usage } = event;
  if (typeof delta === "string") return quote(delta);
  if (typeof toolCallName === "string") return toolCallName;
  if (event.type === "RUN_ERROR" && typeof message === "string") return message;
  if (event.type === "RUN_FINISHED") return finish(outcome, usage);
  const rest = content ?? snapshot ?? value ?? patch ?? delta ?? event.messages;
  return rest === undefined ? "" : clip(typeof rest === "string" ? rest : JSON.stringify(rest));
}

function finish(outcome: Json | undefined, usage: Json | undefined): string {
  const how = isFields(outcome) && typeof outcome.type === "string" ? outcome.type : "success";
  const tokens = Array.isArray(usage) && isFields(usage[0]) ? usage[0].outputTokens : undefined;
  return typeof tokens === "number" ? `${how}, ${tokens} tokens` : how;
}

/** The piece of text that an event brings; empty for one that brings none. */
export function deltaOf({ delta }: AgEvent): string {
  return typeof delta === "string" ? delta : "";
}

/** What a chunk of the OpenAI wire says, as a path into its JSON and a value. */
export function chunkWords(data: string): [string, string] {
  if (data === "[DONE]") return ["[DONE]", ""];
  const chunk = parse(data);
  if (!isFields(chunk)) return ["", clip(data)];
  if (isFields(chunk.error)) return ["error", String(chunk.error.message ?? "")];
  const choice = Array.isArray(chunk.choices) ? chunk.choices[0] : undefined;
  if (!isFields(choice)) return chunk.usage ? ["usage", clip(JSON.stringify(chunk.usage))] : [String(chunk.type ?? ""), ""];
  if (typeof choice.finish_reason === "string") return ["finish_reason", choice.finish_reason];
  return isFields(choice.delta) ? deltaWords(choice.delta) : ["", clip(data)];
}

function deltaWords(delta: Fields): [string, string] {
  const call = Array.isArray(delta.tool_calls) ? delta.tool_calls[0] : undefined;
  if (isFields(call) && isFields(call.function)) {
    const { name, arguments: text } = call.function;
    return typeof name === "string" ? ["tool_call", name] : ["arguments", quote(String(text ?? ""))];
  }
  for (const name of ["reasoning", "reasoning_content", "content"]) {
    const value = delta[name];
    if (typeof value === "string" && value !== "") return [name.replace("_content", ""), quote(value)];
  }
  return typeof delta.role === "string" ? ["role", delta.role] : ["delta", ""];
}

/** The piece of text that a chunk of the OpenAI wire brings; empty for one that brings none. */
export function chunkText(data: string): string {
  const chunk = parse(data);
  const choice = isFields(chunk) && Array.isArray(chunk.choices) ? chunk.choices[0] : undefined;
  if (!isFields(choice) || !isFields(choice.delta)) return "";
  const { delta } = choice;
  const call = Array.isArray(delta.tool_calls) ? delta.tool_calls[0] : undefined;
  const piece = isFields(call) && isFields(call.function) ? call.function.arguments : [delta.content, delta.reasoning, delta.reasoning_content].find((each) => typeof each === "string" && each !== "");
  return typeof piece === "string" ? piece : "";
}

export function quote(text: string): string {
  return `“${clip(text.slice(0, PREVIEW + 1).replaceAll("\n", "⏎"))}”`;
}

/** The same for text that is still being written, of which the end is new. */
export function quoteEnd(text: string): string {
  const line = text.slice(-WRITTEN - 1).replaceAll("\n", "⏎");
  return `“${line.length > WRITTEN ? `…${line.slice(-WRITTEN)}` : line}”`;
}

export function clip(text: string): string {
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

export function pretty(data: string): string {
  const value = parse(data);
  return value === undefined ? data : JSON.stringify(value, null, 2);
}

export function parse(data: string): Json | undefined {
  try {
    return JSON.parse(data) as Json;
  } catch {
    return undefined;
  }
}

export function isFields(value: Json | undefined): value is Fields {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
