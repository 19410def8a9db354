/** Getting a real model: what this machine can run, what the hub has, a folder or file; fetched and served from here. */

import { useCallback, useEffect, useRef, useState, type FormEvent } from "react";
import { sizeInWords } from "../chat/long";
import { ask } from "../kit/core";
import { Icon } from "../ui/icons";
import { thousands } from "../ui/numbers";

interface Offer {
  name: string;
  title: string;
  about: string;
  bytes: number;
  licence: string;
  fits: boolean;
  /** Tokens a second, about; null where that is not known. */
  speed: number | null;
}

interface Found {
  name: string;
  downloads: number;
  licence: string;
  gated: boolean;
}

interface Local {
  name: string;
  source: string;
  bytes: number;
}

interface Download {
  name: string;
  state: "queued" | "downloading" | "paused" | "complete" | "failed";
  bytes: number;
  total: number;
  message: string;
}

interface Choice {
  machine: { device: string; memory: number };
  offers: Offer[];
  local: Local[];
  downloads: Download[];
  fault: string;
}

type Action = "download" | "pause" | "discard" | "serve";

const BUSY_MS = 700;
const PATH = "demo/models";

/** current: the name of the model that is served. onServe: another one was asked for. */
export function ModelChoice({ current, loading, onServe }: { current: string; loading: boolean; onServe: () => void }) {
  const [choice, setChoice] = useState<Choice | null>(null);
  const [found, setFound] = useState<Found[] | null>(null);
  const [fault, setFault] = useState("");
  const look = useCallback(() => ask(PATH).then((answer) => answer.json() as Promise<Choice>).then(setChoice, (error: Error) => setFault(error.message)), []);
  useEffect(() => void look(), [look, current, loading]);
  const busy = loading || choice?.downloads.some(({ state }) => state === "queued" || state === "downloading") === true;
  useEffect(() => {
    if (!busy) return;
    const timer = setInterval(() => void look(), BUSY_MS);
    return () => clearInterval(timer);
  }, [busy, look]);

  const act = (action: Action, source: string) => {
    setFault("");
    ask(PATH, { method: "POST", body: JSON.stringify({ action, source }) })
      .then(() => (action === "serve" ? onServe() : undefined), (error: Error) => setFault(error.message))
      .finally(() => void look());
  };
  const search = (words: string) => {
    setFault("");
    ask(`${PATH}?search=${encodeURIComponent(words)}`)
      .then((answer) => answer.json() as Promise<{ found: Found[] }>)
      .then((answer) => setFound(answer.found), (error: Error) => setFault(error.message));
  };

  const offered = new Set([...(choice?.offers ?? []), ...(found ?? [])].map(({ name }) => name));
  const others = [
    ...(choice?.local ?? []),
    ...(choice?.downloads ?? []).filter(({ name, state }) => state !== "complete" && !choice?.local.some((one) => one.name === name)),
  ].filter(({ name }) => !offered.has(name));
  const row = (name: string, title: string, about: string, fits = true) => (
    <Row key={name} name={name} title={title} about={about} fits={fits} download={choice?.downloads.find((one) => one.name === name)}
      local={choice?.local.find((one) => one.name === name)} current={current} loading={loading} act={act} />
  );
  return (
    <section aria-label="Get a real model">
      <h2>Get a real model</h2>
      {(fault || choice?.fault) && <p className="wrong" role="alert">{fault || choice?.fault}</p>}
      {choice && <p className="hint">For this machine: {choice.machine.device}, {sizeInWords(choice.machine.memory)} of memory.</p>}
      <ul className="model-list" aria-label="Models">
        {others.map(({ name, bytes }) => row(name, name, sizeInWords(bytes)))}
        {choice?.offers.map(({ name, title, about, bytes, licence, fits, speed }) =>
          row(name, title, [about, sizeInWords(bytes), licence, fits ? speed && `about ${speed < 10 ? speed.toFixed(1) : speed.toFixed(0)} tokens/s` : "needs more memory"].filter(Boolean).join(" · "), fits))}
      </ul>
      <Asking label="Search the hub" button="Search" placeholder="qwen3, gemma, smollm" onAsk={search} />
      {found && (found.length
        ? <ul className="model-list" aria-label="Found on the hub">{found.map((one) => row(one.name, one.name, [`${thousands(one.downloads)} downloads`, one.licence, one.gated && "asks for its licence to be accepted"].filter(Boolean).join(" · ")))}</ul>
        : <p className="hint" role="status">The hub has no model that writes text under these words.</p>)}
      <Asking label="Folder or GGUF file on the server" button="Use" placeholder="/models/qwen3.gguf" onAsk={(source) => act("serve", source)} />
    </section>
  );
}

interface RowProps {
  name: string;
  title: string;
  about: string;
  fits: boolean;
  download: Download | undefined;
  local: Local | undefined;
  current: string;
  loading: boolean;
  act: (action: Action, source: string) => void;
}

function Row({ name, title, about, fits, download, local, current, loading, act }: RowProps) {
  const used = local !== undefined && servedName(local) === current;
  const state = local ? "complete" : download?.state;
  const part = download?.total ? Math.round((100 * download.bytes) / download.total) : 0;
  return (
    <li data-model={name}>
      <div><b>{title}</b><p>{about}</p></div>
      {used && <span className="pill ok"><Icon name="check" className="tick" />{loading ? "Loading" : "In use"}</span>}
      {!used && state === "complete" && <button className="button small primary" disabled={loading} aria-label={`Use ${title}`} onClick={() => act("serve", local?.source ?? name)}>Use</button>}
      {state === undefined && <button className="button small" disabled={!fits} aria-label={`Get ${title}`} onClick={() => act("download", name)}>Get</button>}
      {(state === "queued" || state === "downloading") && <button className="button small" aria-label={`Pause ${title}`} onClick={() => act("pause", name)}>Pause</button>}
      {(state === "paused" || state === "failed") && (
        <span className="choices">
          <button className="button small" aria-label={`Resume ${title}`} onClick={() => act("download", name)}>{state === "failed" ? "Try again" : "Resume"}</button>
          <button className="icon-button small" aria-label={`Discard ${title}`} title="Discard what came" onClick={() => act("discard", name)}><Icon name="trash" /></button>
        </span>
      )}
      {download && state !== "complete" && (
        <div className="came">
          <div className="progress" role="progressbar" aria-label={`${title} fetched`} aria-valuenow={part} aria-valuemin={0} aria-valuemax={100}><i style={{ width: `${part}%` }} /></div>
          <span>{state === "queued" ? "Waiting" : `${sizeInWords(download.bytes)} of ${sizeInWords(download.total)}`}</span>
          {download.message && <p className="wrong" role="alert">{download.message}</p>}
        </div>
      )}
    </li>
  );
}

/** As the server names a model: the last part of its place, without the ending of a file. */
const servedName = ({ source }: Local): string => (source.split("/").at(-1) ?? "").replace(/\.gguf$/i, "");

function Asking({ label, button, placeholder, onAsk }: { label: string; button: string; placeholder: string; onAsk: (words: string) => void }) {
  const field = useRef<HTMLInputElement>(null);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const words = field.current?.value.trim();
    if (words) onAsk(words);
  };
  return (
    <form className="asking" onSubmit={submit}>
      <label>{label}<input ref={field} className="field" placeholder={placeholder} autoComplete="off" spellCheck={false} /></label>
      <button className="button">{button}</button>
    </form>
  );
}
