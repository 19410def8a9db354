/** How to reach this very server and model from elsewhere: what the empty page offers to copy. */

export interface Place {
  /** The address that this page came from, without a slash at its end. */
  url: string;
  model: string;
  agent: string;
  /** The server asks for a key. */
  locked: boolean;
}

export interface Snippet {
  name: string;
  language: string;
  code: string;
}

const KEY = "YOUR_API_KEY";

export function snippetsFor({ url, model, agent, locked }: Place): Snippet[] {
  const headers = locked ? ` headers={{ Authorization: "Bearer ${KEY}" }}` : "";
  const own = locked ? `, headers: { Authorization: "Bearer ${KEY}" }` : "";
  const bearer = locked ? ` -H "Authorization: Bearer ${KEY}"` : "";
  return [
    {
      name: "CopilotKit",
      language: "React",
      code: `import { CopilotChat, CopilotKitProvider } from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";

export const Chat = () => (
  <CopilotKitProvider runtimeUrl="${url}/copilotkit"${headers}>
    <CopilotChat agentId="${agent}" />
  </CopilotKitProvider>
);`,
    },
    {
      name: "@ag-ui/client",
      language: "TypeScript",
      code: `import { HttpAgent } from "@ag-ui/client";

const agent = new HttpAgent({ url: "${url}/agui/${agent}"${own} });
agent.addMessage({ id: crypto.randomUUID(), role: "user", content: "Hello" });
const { newMessages } = await agent.runAgent();
console.log(newMessages.at(-1)?.content);`,
    },
    {
      name: "OpenAI",
      language: "Python",
      code: `from openai import OpenAI

client = OpenAI(base_url="${url}/v1", api_key="${locked ? KEY : "none"}")
answer = client.chat.completions.create(model="${model}", messages=[{"role": "user", "content": "Hello"}])
print(answer.choices[0].message.content)`,
    },
    {
      name: "curl",
      language: "Shell",
      code: `curl -N ${url}/v1/chat/completions${bearer} -H "content-type: application/json" \\
  -d '${JSON.stringify({ model, stream: true, messages: [{ role: "user", content: "Hello" }] })}'`,
    },
  ];
}
