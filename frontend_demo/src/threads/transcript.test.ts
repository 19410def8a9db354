import type { Message } from "@ag-ui/core";
import { expect, test } from "vitest";
import { toMarkdown } from "./transcript";

test("a conversation as Markdown has instructions, thoughts, calls and what they gave", () => {
  const messages = [
    { id: "0", role: "system", content: "Be brief." },
    { id: "1", role: "user", content: [{ type: "text", text: "Weather in Oslo?" }] },
    { id: "2", role: "reasoning", content: "A question.\n\nI call." },
    { id: "3", role: "assistant", toolCalls: [{ id: "c", type: "function", function: { name: "get_weather", arguments: '{"location":"Oslo"}' } }, { id: "d", type: "function", function: { name: "lost", arguments: "{}" } }] },
    { id: "4", role: "tool", toolCallId: "c", content: "a ``` fence" },
    { id: "5", role: "assistant", content: "It is **cold**." },
  ] as Message[];
  expect(toMarkdown("Oslo", messages)).toMatchInlineSnapshot(`
    "# Oslo

    **Instructions**

    Be brief.

    **You**

    Weather in Oslo?

    > A question.
    >
    > I call.

    **Tool \`get_weather\`**

    \`\`\`json
    {"location":"Oslo"}
    \`\`\`

    Result:

    \`\`\`\`json
    a \`\`\` fence
    \`\`\`\`

    **Tool \`lost\`**

    \`\`\`json
    {}
    \`\`\`

    Result:

    \`\`\`json
    (no result)
    \`\`\`

    **Model**

    It is **cold**.
    "
  `);
});

test("a conversation without a name or a word is still a document", () => {
  expect(toMarkdown("", [])).toBe("# Conversation\n");
});
