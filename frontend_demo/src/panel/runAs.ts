/** The run on the screen as a program of one's own: copied, it asks the same model the same thing. */

import type { Message } from "@ag-ui/core";
import type { Asked } from "./asked";

export interface Target {
  /** The server's address, without a slash at its end. */
  url: string;
  agent: string;
  /** The server asks for a key. */
  locked: boolean;
}

type Json = null | boolean | number | string | readonly Json[] | { readonly [name: string]: Json | undefined };

const KEY = "YOUR_API_KEY";

export function asCurl({ url, agent, locked }: Target, { messages, tools, context, state, forwardedProps }: Asked): string {
  const body = JSON.stringify({ threadId: "copied", runId: "copied-1", messages, tools, context, state: state ?? {}, forwardedProps: forwardedProps ?? {} });
  const bearer = locked ? ` \\\n  -H "Authorization: Bearer ${KEY}"` : "";
  return `curl -N ${url}/agui/${encodeURIComponent(agent)}${bearer} \\\n  -H "content-type: application/json" \\\n  -d '${body.replaceAll("'", `'\\''`)}'`;
}

export function asHttpAgent({ url, agent, locked }: Target, { messages, tools, state, forwardedProps }: Asked): string {
  const headers = locked ? [`  headers: { Authorization: "Bearer ${KEY}" },`] : [];
  const given = [...headers, ...field("initialMessages", messages), ...field("initialState", state)];
  const run = [...field("tools", tools), ...field("forwardedProps", forwardedProps)];
  return `import { HttpAgent } from "@ag-ui/client";

const agent = new HttpAgent({
  url: "${url}/agui/${encodeURIComponent(agent)}",
${given.join("\n")}
});
const { newMessages } = await agent.runAgent(${run.length ? `{\n${run.join("\n")}\n}` : ""});
console.log(JSON.stringify(newMessages, null, 2));`;
}

export function asCopilotKit({ url, agent, locked }: Target, { messages, state, forwardedProps }: Asked): string {
  const headers = locked ? ` headers={{ Authorization: "Bearer ${KEY}" }}` : "";
  const properties = isEmpty(forwardedProps) ? "" : ` properties={${script(forwardedProps)}}`;
  const name = JSON.stringify(agent);
  return `import { CopilotChat, CopilotKitProvider, useAgent, useCopilotKit } from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";

function Ask() {
  const { agent } = useAgent({ agentId: ${name} });
  const { copilotkit } = useCopilotKit();
  const ask = () => {
    agent.setMessages(${script(messages, "    ")});
${isEmpty(state) ? "" : `    agent.setState(${script(state, "    ")});\n`}    void copilotkit.runAgent({ agent });
  };
  return <button onClick={ask}>Ask</button>;
}

export const Chat = () => (
  <CopilotKitProvider runtimeUrl="${url}/copilotkit"${headers}${properties}>
    <Ask />
    <CopilotChat agentId=${name} />
  </CopilotKitProvider>
);`;
}

export function asOpenAi({ url, agent, locked }: Target, { messages, tools, forwardedProps }: Asked): string {
  const { temperature, top_p, max_tokens, ...others } = (forwardedProps ?? {}) as Record<string, Json>;
  const given: [string, Json | undefined][] = [
    ["model", agent],
    ["messages", messages.flatMap(openAiMessage)],
    ["tools", tools.length ? tools.map(({ name, description, parameters }) => ({ type: "function", function: { name, description, parameters: parameters as Json } })) : undefined],
    ["temperature", temperature],
    ["top_p", top_p],
    ["max_tokens", max_tokens],
    ["extra_body", Object.keys(others).length ? others : undefined],
  ];
  const lines = given.flatMap(([name, value]) => (value === undefined ? [] : [`    ${name}=${python(value)},`]));
  return `from openai import OpenAI

client = OpenAI(base_url="${url}/v1", api_key="${locked ? KEY : "none"}")
answer = client.chat.completions.create(
${lines.join("\n")}
)
message = answer.choices[0].message
print(message.content or message.tool_calls)`;
}

interface Part {
  type: string;
  text?: string;
  source?: { type: string; value: string; mimeType?: string };
  metadata?: { filename?: string };
}

function openAiMessage(message: Message): Json[] {
  switch (message.role) {
    case "system":
    case "developer":
      return [{ role: "system", content: message.content }];
    case "user":
      return [{ role: "user", content: typeof message.content === "string" ? message.content : (message.content as unknown as Part[]).map(openAiPart) }];
    case "assistant":
      return [{ role: "assistant", content: message.content ?? null, ...(message.toolCalls?.length ? { tool_calls: message.toolCalls as unknown as Json[] } : {}) }];
    case "tool":
      return [{ role: "tool", tool_call_id: message.toolCallId, content: typeof message.content === "string" ? message.content : JSON.stringify(message.content) }];
    default:
      return []; // that wire has no place for reasoning and activities
  }
}

function openAiPart({ type, text, source, metadata }: Part): Json {
  if (!source) return { type: "text", text: text ?? "" };
  const data = source.type === "url" ? source.value : `data:${source.mimeType ?? "application/octet-stream"};base64,${source.value}`;
  return type === "image" ? { type: "image_url", image_url: { url: data } } : { type: "file", file: { filename: metadata?.filename ?? "file", file_data: data } };
}

const isEmpty = (value: unknown): boolean => value === undefined || value === null || Object.keys(value).length === 0;

/** A line of an object's literal; none for what holds nothing. */
const field = (name: string, value: unknown): string[] => (isEmpty(value) ? [] : [`  ${name}: ${script(value, "  ")},`]);

/** As a literal of JavaScript, on one line where it is short. */
function script(value: unknown, indent = ""): string {
  const short = JSON.stringify(value);
  return short.length < 80 ? short : JSON.stringify(value, null, 2).replaceAll("\n", `\n${indent}`);
}

function python(value: Json): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${(value as readonly Json[]).map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value as Record<string, Json | undefined>).flatMap(([name, each]) => (each === undefined ? [] : [`${JSON.stringify(name)}: ${python(each)}`])).join(", ")}}`;
}
