import type { ModelInfo } from "../kit/info";
import type { Reach } from "../kit/info";
import type { Theme } from "./theme";
import { Icon } from "./icons";

interface Props {
  theme: Theme;
  onTheme: () => void;
  threadsOpen: boolean;
  onThreads: () => void;
  inspectorOpen: boolean;
  onInspector: () => void;
  onModel: () => void;
  onNew: () => void;
  reach: Reach;
  model: ModelInfo | undefined;
  agents: readonly { id: string; name: string }[];
  agentId: string;
  onAgent: (id: string) => void;
}

export function TopBar(props: Props) {
  const { theme, model, reach, agents } = props;
  return (
    <header className="topbar">
      <button className="icon-button" aria-label="Conversations" aria-pressed={props.threadsOpen} title="Conversations" onClick={props.onThreads}><Icon name="menu" /></button>
      <div className="wordmark"><Mark /><span>agent-server</span></div>
      {agents.length > 1 && (
        <span className="agent-select">
          <label className="visually-hidden" htmlFor="agent">Agent</label>
          <select id="agent" value={props.agentId} onChange={(event) => props.onAgent(event.target.value)}>
            {agents.map((agent) => <option key={agent.id} value={agent.id}>{agent.name}</option>)}
          </select>
          <Icon name="down" />
        </span>
      )}
      <button className="model-chip" onClick={props.onModel} title="What is loaded">
        <i className={`dot ${light(reach, model)}`} />
        <span className="name">{model?.model ?? (reach === "gone" ? "No server" : "Connecting")}</span>
        <span className="visually-hidden">{status(reach, model)}</span>
      </button>
      <span className="spacer" />
      <button className="icon-button" aria-label="New conversation" title="New conversation" onClick={props.onNew}><Icon name="plus" /></button>
      <button className="icon-button" aria-label={theme === "dark" ? "Light colours" : "Dark colours"} title="Light or dark" onClick={props.onTheme}><Icon name={theme === "dark" ? "sun" : "moon"} /></button>
      <button className="icon-button" aria-label="Inspector" aria-pressed={props.inspectorOpen} title="The stream, seen" onClick={props.onInspector}><Icon name="stream" /></button>
    </header>
  );
}

export function Mark() {
  return (
    <svg viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" fill="#0d6b64" />
      <path d="M8 11h9M8 16h16M8 21h6" stroke="#fff" strokeWidth="2.6" strokeLinecap="round" />
      <circle cx="23" cy="11" r="2.4" fill="#8fe3d6" />
    </svg>
  );
}

export function light(reach: Reach, model: ModelInfo | undefined): string {
  if (reach === "gone" || model?.state === "failed") return "failed";
  if (model?.state === "ready" || model?.state === "degraded") return "ready";
  return "loading";
}

function status(reach: Reach, model: ModelInfo | undefined): string {
  if (reach === "gone") return "does not answer";
  return model?.state ?? "connecting";
}
