import { CopilotChat, CopilotKitProvider, useDefaultRenderTool, useInterrupt } from "@copilotkit/react-core/v2";
import "@copilotkit/react-core/v2/styles.css";
import { createRoot } from "react-dom/client";

const runtimeUrl = import.meta.env.VITE_RUNTIME_URL ?? "http://localhost:8000/copilotkit";

// one thread per tab, which a reload shows again
const threadId = sessionStorage.getItem("thread") ?? crypto.randomUUID();
sessionStorage.setItem("thread", threadId);

function Tools() {
  useDefaultRenderTool();
  useInterrupt({
    agentId: "PROJECT",
    render: ({ interrupt, resolve, cancel }) => (
      <form role="group" aria-label="Approval" style={{ display: "flex", gap: 8, alignItems: "center", padding: 8 }}>
        <p style={{ margin: 0, flex: 1 }}>{interrupt?.message ?? "May this be done?"}</p>
        <button type="button" onClick={() => resolve({ approved: true })}>Approve</button>
        <button type="button" onClick={() => cancel()}>Cancel</button>
      </form>
    ),
  });
  return null;
}

createRoot(document.getElementById("root")!).render(
  <CopilotKitProvider runtimeUrl={runtimeUrl}>
    <Tools />
    <main style={{ height: "100vh" }}>
      <CopilotChat agentId="PROJECT" threadId={threadId} />
    </main>
  </CopilotKitProvider>,
);
