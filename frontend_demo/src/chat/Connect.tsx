/** How to reach this server from elsewhere: the health of its model, and a snippet for each kind of client. */

import { useRef, useState, type KeyboardEvent } from "react";
import { apiKey, url } from "../kit/core";
import type { ModelInfo, Reach } from "../kit/info";
import { Copy } from "../ui/copy";
import { thousands } from "../ui/numbers";
import { light } from "../ui/TopBar";
import { snippetsFor } from "./snippets";

interface Props {
  reach: Reach;
  model: ModelInfo | undefined;
  agentId: string;
}

export function Health({ reach, model }: Omit<Props, "agentId">) {
  return <p className="health" role="status"><i className={`dot ${light(reach, model)}`} />{healthOf(reach, model)}</p>;
}

export function healthOf(reach: Reach, model: ModelInfo | undefined): string {
  if (reach === "gone") return "The server does not answer";
  if (!model) return "Asking the server";
  const held = model.contextLength ? `, ${thousands(model.contextLength)} tokens of context` : "";
  if (model.state === "ready") return `${model.model} is ready${held}`;
  const part = model.progress === undefined ? "" : `, ${Math.round(model.progress * 100)} %`;
  return `${model.model}: ${model.message || model.state}${part}`;
}

export function Connect({ reach, model, agentId }: Props) {
  const [shown, setShown] = useState(0);
  const tabs = useRef<HTMLDivElement>(null);
  const snippets = snippetsFor({ url: url("."), model: model?.model ?? "default", agent: agentId, locked: reach === "locked" || apiKey() !== null });
  const snippet = snippets[shown];
  const key = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = (shown + step + snippets.length) % snippets.length;
    setShown(next);
    tabs.current?.querySelectorAll("button")[next]?.focus();
  };
  if (!snippet) return null;
  return (
    <section className="connect" aria-label="Use it from your code">
      <h3>Use it from your code</h3>
      <div className="clients" role="tablist" aria-label="Client" ref={tabs} onKeyDown={key}>
        {snippets.map(({ name }, index) => (
          <button key={name} type="button" role="tab" id={`client-${index}`} aria-selected={index === shown} aria-controls="client-snippet" tabIndex={index === shown ? 0 : -1} onClick={() => setShown(index)}>{name}</button>
        ))}
      </div>
      <div className="code-block" id="client-snippet" role="tabpanel" aria-labelledby={`client-${shown}`}>
        <div className="code-head"><span>{snippet.language}</span><Copy text={snippet.code} label={`Copy the ${snippet.name} snippet`} /></div>
        <pre tabIndex={0} role="region" aria-label={`Code, ${snippet.name}`}><code>{snippet.code}</code></pre>
      </div>
    </section>
  );
}
