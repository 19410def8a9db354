// npm's Ollama client: one call of a tool, then its result, streamed.
import { createInterface } from "node:readline";
import { Ollama } from "ollama";

for await (const line of createInterface({ input: process.stdin })) {
  const { host, model, messages, tools } = JSON.parse(line);
  const client = new Ollama({ host });
  const { models } = await client.list();
  const { capabilities } = await client.show({ model: models[0].model });
  const { message } = await client.chat({ model, messages, tools });
  const [call] = message.tool_calls;
  const result = { role: "tool", tool_name: call.function.name, content: "snow" };
  let streamed = "";
  for await (const part of await client.chat({ model, messages: [...messages, message, result], tools, stream: true }))
    streamed += part.message.content;
  const refusal = await client.chat({ model: "", messages }).catch((error) => error.message);
  console.log(JSON.stringify({ models: models.length, capabilities, call, streamed, refusal }));
}
