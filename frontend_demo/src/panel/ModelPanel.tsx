/** What is loaded here, who answers, and how to reach it from elsewhere. */

import { sizeInWords } from "../chat/long";
import type { Info, ModelInfo } from "../kit/info";
import { url } from "../kit/core";
import { Copy } from "../ui/copy";
import { thousands } from "../ui/numbers";
import { titleOf } from "../tools/status";
import { late } from "./late";

const ModelChoice = late(() => import("./ModelChoice").then((module) => module.ModelChoice));

export function ModelPanel({ info, onServe }: { info: Info | null; onServe: () => void }) {
  const server = info?.server;
  return (
    <div className="about" tabIndex={0} role="region" aria-label="Model">
      {server && <Loaded server={server} />}
      {server?.changeable && <ModelChoice current={server.model} loading={server.state === "loading" || server.state === "starting"} onServe={onServe} />}
      <section>
        <h2>Agents</h2>
        <ul className="agent-list">
          {Object.entries(info?.agents ?? {}).map(([id, agent]) => <li key={id}><b>{agent.name || id}</b>{agent.description && <p>{agent.description}</p>}</li>)}
        </ul>
      </section>
      <section>
        <h2>The same model on every wire</h2>
        <Command text={curl("agui", { threadId: "t1", runId: "r1", messages: [{ id: "1", role: "user", content: "Hello" }], tools: [], context: [], state: {}, forwardedProps: {} })} label="AG-UI" />
        <Command text={curl("v1/chat/completions", { model: server?.model ?? "default", stream: true, messages: [{ role: "user", content: "Hello" }] })} label="OpenAI" />
      </section>
      {server?.bundled && !server.changeable && (
        <section>
          <h2>Load a real model</h2>
          <p>Stop the server and start it with a folder or a hub name:</p>
          <Command text="agent-server serve Qwen/Qwen3-0.6B" label="command" />
        </section>
      )}
    </div>
  );
}

function Loaded({ server }: { server: ModelInfo }) {
  const ready = server.state === "ready";
  return (
    <section>
      <h2>{ready ? "Loaded" : titleOf(server.state)}</h2>
      <p className="model-name">{server.model}</p>
      {!ready && <p role="status">{server.message}</p>}
      {!ready && server.progress !== undefined && <div className="progress" role="progressbar" aria-label="Loading" aria-valuenow={Math.round(server.progress * 100)}><i style={{ width: `${server.progress * 100}%` }} /></div>}
      <dl className="facts" style={{ marginTop: 10 }}>
        {facts(server).map(([name, value]) => <Fact key={name} name={name} value={value} />)}
      </dl>
    </section>
  );
}

function facts(server: ModelInfo): [string, string][] {
  const own: [string, string][] = [];
  if (server.contextLength) own.push(["Context", `${thousands(server.contextLength)} tokens`]);
  if (server.vocabSize) own.push(["Vocabulary", `${thousands(server.vocabSize)} tokens`]);
  const details = Object.entries(server.details ?? {})
    .filter(([, value]) => ["string", "number", "boolean"].includes(typeof value))
    .map(([name, value]): [string, string] => [labelOf(name), inWords(name, value as Fact)]);
  return [...own, ...details, ["Server", `agent-server ${server.version}`]];
}

type Fact = string | number | boolean;

const labelOf = (name: string): string => titleOf(name.replace(/_?bytes$/i, "")).replace(/^Kv\b/, "KV").replace(/^Cuda\b/, "CUDA").replace(/^Dtype$/, "Data type").replace(/ dtype$/, " data type");

function inWords(name: string, value: Fact): string {
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string") return value;
  return /bytes$/i.test(name) ? sizeInWords(value) : value.toLocaleString("en");
}

function Fact({ name, value }: { name: string; value: string }) {
  return <><dt>{name}</dt><dd>{value}</dd></>;
}

function Command({ text, label }: { text: string; label: string }) {
  return <div className="copy"><code tabIndex={0}>{text}</code><Copy text={text} label={`Copy ${label}`} /></div>;
}

function curl(path: string, body: unknown): string {
  return `curl -N ${url(path)} -H 'content-type: application/json' -d '${JSON.stringify(body)}'`;
}
