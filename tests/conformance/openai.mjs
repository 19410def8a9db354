// Asks an OpenAI-compatible server with the `openai` package, in one piece and as a stream.
//
// In, one JSON object per line: { baseURL, apiKey?, request: chat completion parameters }.
// Out: { message, streamed, usage } or { error: { status, code, message } }; `streamed` is put together by the package.
import OpenAI from "openai";
import { jsonLines } from "./clients.mjs";

async function ask({ baseURL, apiKey = "none", request }) {
  const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
  try {
    const whole = await client.chat.completions.create({ ...request, stream: false });
    const stream = client.chat.completions.stream({ ...request, stream_options: { include_usage: true } });
    const streamed = await stream.finalMessage();
    return { message: whole.choices[0].message, streamed, usage: await stream.totalUsage() };
  } catch (error) {
    return { error: { status: error.status ?? null, code: error.code ?? null, message: String(error.message) } };
  }
}

for await (const entry of jsonLines(process.stdin)) {
  process.stdout.write(JSON.stringify(await ask(entry)) + "\n");
}
