// Asks a server by the AI SDK: `createOpenAI()(model)`, which is its Responses wire, and its Chat wire.
//
// In, one JSON object per line: { baseURL, wire?: "responses" | "chat", messages, tools?: { name: result }, stream?,
// maxOutputTokens? }. Out: { text, steps, calls, inputTokens } or { error }.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { jsonLines } from "./clients.mjs";

const ANY = { type: "object", properties: { city: { type: "string" }, celsius: { type: "number" } } };

function toolsOf(results, calls) {
  const made = Object.entries(results ?? {}).map(([name, result]) => [
    name,
    tool({
      description: name,
      inputSchema: jsonSchema(ANY),
      execute: async (input) => {
        calls.push([name, input]);
        return result;
      },
    }),
  ]);
  return made.length ? Object.fromEntries(made) : undefined;
}

async function ask({ baseURL, wire = "responses", messages, tools, stream, maxOutputTokens }) {
  const openai = createOpenAI({ baseURL, apiKey: "none" });
  const calls = [];
  const asked = {
    model: wire === "chat" ? openai.chat("default") : openai("default"),
    messages,
    tools: toolsOf(tools, calls),
    stopWhen: stepCountIs(4),
    temperature: 0,
    maxOutputTokens,
    maxRetries: 0,
  };
  try {
    const answer = stream ? streamText({ ...asked, onError: () => {} }) : await generateText(asked);
    const [text, steps, usage] = [await answer.text, await answer.steps, await answer.totalUsage];
    return { text, steps: steps.length, calls, inputTokens: usage.inputTokens };
  } catch (error) {
    return { error: String(error.message), body: error.responseBody ?? null };
  }
}

for await (const entry of jsonLines(process.stdin)) {
  process.stdout.write(JSON.stringify(await ask(entry)) + "\n");
}
