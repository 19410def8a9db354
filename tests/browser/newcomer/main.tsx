// An application as CopilotKit's documentation teaches it: the provider, the chat, the hooks, and one address.
import {
  CopilotChat,
  CopilotKitProvider,
  useAgent,
  useDefaultRenderTool,
  useFrontendTool,
  useHumanInTheLoop,
  useInterrupt,
  useRenderTool,
} from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";
import { z } from "zod";

const query = new URLSearchParams(location.search);
const runtimeUrl = query.get("runtime") ?? "http://localhost:8000/copilotkit";
const token = query.get("token");
const thread = query.get("thread") ?? undefined;
const agentId = query.get("agent") ?? "default";
const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {};

const activities = [
  {
    activityType: "agent_server.compaction",
    content: z.object({ mode: z.string(), messages: z.number(), summary: z.string().nullish() }),
    render: ({ content }: { content: { messages: number; summary?: string | null } }) => (
      <div data-testid="compaction">{content.summary ?? `${content.messages} earlier messages were left out.`}</div>
    ),
  },
  {
    activityType: "*",
    content: z.any(),
    render: ({ activityType, content }: { activityType: string; content: unknown }) => (
      <div data-testid="activity">{activityType}: {JSON.stringify(content)}</div>
    ),
  },
];

function App() {
  const [error, setError] = useState("");
  return (
    <CopilotKitProvider
      runtimeUrl={runtimeUrl}
      headers={headers}
      useSingleEndpoint={query.has("single")}
      renderActivityMessages={query.has("plain") ? [] : activities}
      onError={({ error: problem }) => setError(problem.message)}
    >
      <Tools />
      <Recipe />
      <output data-testid="error">{error}</output>
      <div style={{ height: "70vh" }}>
        <CopilotChat agentId={agentId} threadId={thread} />
      </div>
    </CopilotKitProvider>
  );
}

function Tools() {
  const [background, setBackground] = useState("white");
  useFrontendTool({
    name: "change_background",
    description: "Change the background colour of the page",
    parameters: z.object({ background: z.string() }),
    handler: async ({ background: colour }) => {
      setBackground(colour);
      return "ok";
    },
  });
  useHumanInTheLoop({
    name: "generate_task_steps",
    description: "Propose steps to the user",
    parameters: z.object({ steps: z.array(z.object({ description: z.string(), status: z.string() })) }),
    render: ({ args, status, respond }) => (
      <div data-testid="steps">
        {args.steps?.map((step, index) => <p key={index}>{step?.description}</p>)}
        {status === "executing" && <button onClick={() => respond?.({ accepted: true, steps: args.steps })}>Looks good</button>}
      </div>
    ),
  });
  useInterrupt({
    agentId,
    render: ({ interrupt, resolve, cancel }) => (
      <div data-testid="interrupt">
        <p>{interrupt?.message}</p>
        <button onClick={() => resolve({ approved: true })}>Yes</button>
        <button onClick={() => cancel()}>Never mind</button>
      </div>
    ),
  });
  useRenderTool({
    name: "get_weather",
    parameters: z.object({ location: z.string() }),
    render: ({ status, parameters, result }) => (
      <div data-testid="weather">{status} {parameters?.location} {result}</div>
    ),
  });
  useDefaultRenderTool();
  return <div data-testid="background" style={{ background }}>{background}</div>;
}

function Recipe() {
  const { agent, isReady } = useAgent({ agentId });
  const [connected, setConnected] = useState<unknown>(null);
  useEffect(() => agent.subscribe({ onRunFinalized: () => setConnected(agent) }).unsubscribe, [agent]);
  return (
    <div>
      {isReady && connected === agent && <output data-testid="connected" />}
      <pre data-testid="state">{JSON.stringify(agent.state)}</pre>
      <button onClick={() => agent.setState({ title: "Stew", ingredients: ["beans"] })}>Make it a stew</button>
    </div>
  );
}

createRoot(document.getElementById("root")!).render(<App />);
