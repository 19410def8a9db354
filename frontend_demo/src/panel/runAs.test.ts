import type { Message } from "@ag-ui/core";
import { expect, test } from "vitest";
import { addEvent, empty } from "../stream/record";
import { askedBy, type Asked } from "./asked";
import { asCopilotKit, asCurl, asHttpAgent, asOpenAi } from "./runAs";

const TARGET = { url: "http://h:1", agent: "demo", locked: true };
const NOW = { tools: [], context: [], state: {}, forwardedProps: {} };
const call = { id: "c", type: "function" as const, function: { name: "send", arguments: "{}" } };
const THREAD: Message[] = [
  { id: "1", role: "user", content: "It's me" },
  { id: "2", role: "reasoning", content: "Hm." },
  { id: "3", role: "assistant", toolCalls: [call] },
  { id: "4", role: "tool", toolCallId: "c", content: "sent" },
  { id: "5", role: "assistant", content: "Sent." },
];

const run = (...ids: string[]) => {
  const recording = empty("r");
  ids.forEach((messageId, index) => addEvent(recording, index + 1, { type: "TEXT_MESSAGE_START", messageId }, 0));
  return recording;
};

test("a run of the thread was asked what came before its first message", () => {
  expect(askedBy(run("5"), THREAD, NOW)?.messages.map(({ id }) => id)).toEqual(["1", "2", "3", "4"]);
  expect(askedBy(run("2", "3"), THREAD, NOW)?.messages.map(({ id }) => id)).toEqual(["1"]);
  expect(askedBy(run("gone"), THREAD, NOW)).toBeNull();
});

test("a call that a person had yet to answer is called again", () => {
  const input = { ...NOW, threadId: "t", runId: "r", messages: THREAD.slice(0, 3), resume: [] };
  expect(askedBy({ ...run("5"), input }, THREAD, NOW)?.messages.map(({ id }) => id)).toEqual(["1"]);
});

test("curl's body is quoted for a shell", () => {
  const copied = asCurl(TARGET, { ...NOW, messages: THREAD.slice(0, 1) });
  expect(copied).toContain(`"content":"It'\\''s me"`);
  expect(copied).toContain('-H "Authorization: Bearer YOUR_API_KEY"');
});

test("OpenAI's client gets its own form of messages, tools and settings", () => {
  const asked: Asked = { messages: THREAD, context: [], state: {}, tools: [{ name: "paint", description: "", parameters: { type: "object" } }], forwardedProps: { temperature: 0, enable_thinking: false } };
  expect(asOpenAi({ ...TARGET, locked: false }, asked)).toMatchInlineSnapshot(`
    "from openai import OpenAI

    client = OpenAI(base_url="http://h:1/v1", api_key="none")
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "It's me"}, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "send", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "sent"}, {"role": "assistant", "content": "Sent."}],
        tools=[{"type": "function", "function": {"name": "paint", "description": "", "parameters": {"type": "object"}}}],
        temperature=0,
        extra_body={"enable_thinking": False},
    )
    message = answer.choices[0].message
    print(message.content or message.tool_calls)"
  `);
});

test("AG-UI's client is given what there is, and nothing that is empty", () => {
  expect(asHttpAgent(TARGET, { ...NOW, messages: THREAD.slice(0, 2), tools: [{ name: "paint", description: "", parameters: {} }] })).toMatchInlineSnapshot(`
    "import { HttpAgent } from "@ag-ui/client";

    const agent = new HttpAgent({
      url: "http://h:1/agui/demo",
      headers: { Authorization: "Bearer YOUR_API_KEY" },
      initialMessages: [
        {
          "id": "1",
          "role": "user",
          "content": "It's me"
        },
        {
          "id": "2",
          "role": "reasoning",
          "content": "Hm."
        }
      ],
    });
    const { newMessages } = await agent.runAgent({
      tools: [{"name":"paint","description":"","parameters":{}}],
    });
    console.log(JSON.stringify(newMessages, null, 2));"
  `);
});

test("CopilotKit asks with the same messages, state and settings", () => {
  const copied = asCopilotKit(TARGET, { ...NOW, messages: THREAD.slice(0, 1), state: { a: 1 }, forwardedProps: { top_p: 0.5 } });
  expect(copied).toContain('agent.setState({"a":1});');
  expect(copied).toContain('properties={{"top_p":0.5}}');
  expect(copied).toContain('headers={{ Authorization: "Bearer YOUR_API_KEY" }}');
});
