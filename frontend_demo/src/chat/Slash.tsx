/** What `/` offers in the composer: the prompts of the agents' MCP servers as commands, and their resources to add. */

import type { InputContent, Message } from "@ag-ui/client";
import { useEffect, useRef, useState, type FormEvent } from "react";
import { ask } from "../kit/core";
import { Form, missingOf, type Schema, type Values } from "../tools/form";
import { focusComposer } from "../ui/keys";
import "../styles/slash.css";

interface Argument {
  name: string;
  title?: string | null;
  description?: string | null;
  required: boolean;
}

interface Server {
  name: string;
  prompts: { name: string; title: string | null; description: string | null; arguments: Argument[] }[];
  resources: { uri: string; name: string; title: string | null; description: string | null }[];
  resourceTemplates: { uriTemplate: string; name: string; title: string | null; description: string | null; variables: Argument[] }[];
  /** Whether it suggests values for arguments. */
  completions: boolean;
}

/** One line of the list. A resource has its URI, a template the URI with variables. */
export interface Entry {
  server: string;
  name: string;
  about: string;
  uri?: string;
  form: Schema;
  completions?: boolean;
}

const TYPING_MS = 150;

const formOf = (args: readonly Argument[]): Schema => ({
  properties: Object.fromEntries(args.map(({ name, title, description }) => [name, { type: "string", title: [title ?? name, description ?? ""].filter(Boolean).join(": ") }])),
  required: args.filter(({ required }) => required).map(({ name }) => name),
});

/** Prompts first, then resources, then templates that can be filled in, with the form for their arguments. */
export function entriesOf(servers: readonly Server[]): Entry[] {
  const prompts = servers.flatMap(({ name: server, prompts, completions }) => prompts.map((prompt): Entry => ({
    server, name: prompt.name, about: [prompt.title ?? "", prompt.description ?? ""].filter(Boolean).join(": ") || server,
    form: formOf(prompt.arguments), completions,
  })));
  const resources = servers.flatMap(({ name: server, resources }) => resources.map((one): Entry => (
    { server, name: one.title ?? one.name, about: one.description ?? one.uri, uri: one.uri, form: {} })));
  const templates = servers.flatMap(({ name: server, resourceTemplates, completions }) => resourceTemplates
    .filter(({ variables }) => variables.length)
    .map((one): Entry => ({ server, name: one.title ?? one.name, about: one.description ?? one.uriTemplate, uri: one.uriTemplate, form: formOf(one.variables), completions })));
  return [...prompts, ...resources, ...templates];
}

/** Those whose name has the words: first the names that begin with them. */
export function matchingEntries(entries: readonly Entry[], words: string): Entry[] {
  const wanted = words.toLowerCase();
  const at = ({ name }: Entry) => name.toLowerCase().indexOf(wanted);
  return entries.filter((entry) => at(entry) >= 0).sort((one, other) => Math.min(at(one), 1) - Math.min(at(other), 1));
}

interface Props {
  /** What follows the slash. */
  words: string;
  onMessages: (messages: Message[]) => void;
  onContent: (parts: InputContent[], name: string) => void;
  onClose: () => void;
}

export function Slash({ words, onMessages, onContent, onClose }: Props) {
  const [entries, setEntries] = useState<readonly Entry[]>([]);
  const [at, setAt] = useState(0);
  const [chosen, setChosen] = useState<Entry | null>(null);
  const [values, setValues] = useState<Values>({});
  const [typing, setTyping] = useState("");
  const [suggestions, setSuggestions] = useState<{ [name: string]: readonly string[] }>({});
  const [wrong, setWrong] = useState("");
  const matches = matchingEntries(entries, words);
  const selected = Math.min(at, matches.length - 1);

  useEffect(() => {
    let current = true;
    ask("agui/mcp")
      .then(async (response) => current && setEntries(entriesOf(((await response.json()) as { servers: Server[] }).servers)))
      .catch((error: Error) => current && setWrong(error.message));
    return () => void (current = false);
  }, []);
  useEffect(() => setAt(0), [words]);
  useEffect(() => {
    if (!chosen?.completions || !typing) return;
    const outdated = new AbortController();
    const timer = setTimeout(() => {
      const ref = chosen.uri === undefined ? { prompt: chosen.name } : { uriTemplate: chosen.uri };
      const body = { server: chosen.server, ...ref, argument: typing, value: values[typing] ?? "", arguments: values };
      ask("agui/mcp/complete", { method: "POST", body: JSON.stringify(body), signal: outdated.signal })
        .then(async (response) => {
          const { values: suggested } = (await response.json()) as { values: string[] };
          if (!outdated.signal.aborted) setSuggestions((now) => ({ ...now, [typing]: [...new Set(suggested)] }));
        })
        .catch(() => undefined); // the form works without suggestions
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
      outdated.abort();
    };
  }, [chosen, typing, values]);

  const post = (path: string, body: object, then: (answer: never) => void) => {
    setWrong("");
    ask(path, { method: "POST", body: JSON.stringify(body) })
      .then(async (response) => {
        then((await response.json()) as never);
        onClose();
        focusComposer();
      })
      .catch((error: Error) => setWrong(error.message));
  };
  const use = ({ server, name, uri }: Entry, args: Values) => {
    if (uri === undefined) post("agui/mcp/prompt", { server, name, arguments: args }, ({ messages }: { messages: Message[] }) => onMessages(messages));
    else post("agui/mcp/resource", { server, uri, arguments: args }, ({ content }: { content: InputContent[] }) => onContent(content, name));
  };
  const choose = (entry: Entry) => (Object.keys(entry.form.properties ?? {}).length ? setChosen(entry) : use(entry, {}));

  // the keys go to the list as long as it shows something, and not to what is written
  const key = useRef((_: KeyboardEvent): void => undefined);
  key.current = (event) => {
    if (event.isComposing || (event.target as HTMLElement).id !== "message") return;
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const entry = matches[selected];
    if (event.key === "Escape") onClose();
    else if (step) setAt((selected + step + matches.length) % matches.length);
    else if (entry && (event.key === "Enter" || event.key === "Tab") && !event.shiftKey) choose(entry);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const listening = matches.length > 0 && chosen === null;
  useEffect(() => {
    if (!listening) return;
    const listen = (event: KeyboardEvent) => key.current(event);
    window.addEventListener("keydown", listen, true);
    return () => window.removeEventListener("keydown", listen, true);
  }, [listening]);
  useEffect(() => {
    const area = document.getElementById("message");
    if (!listening || !area) return;
    area.setAttribute("aria-activedescendant", `slash-${selected}`);
    area.setAttribute("aria-controls", "slash-list");
    document.getElementById(`slash-${selected}`)?.scrollIntoView?.({ block: "nearest" });
    return () => ["aria-activedescendant", "aria-controls"].forEach((name) => area.removeAttribute(name));
  }, [listening, selected]);

  const submit = (event: FormEvent) => {
    event.preventDefault();
    event.stopPropagation();
    if (chosen) use(chosen, values);
  };
  const problem = wrong && <p className="wrong" role="alert">{wrong}</p>;
  if (chosen) {
    const missing = missingOf(chosen.form, values);
    return (
      <section className="slash" aria-label={`The ${chosen.uri === undefined ? "prompt" : "resource"} ${chosen.name}`} ref={(box) => { if (box && !box.contains(document.activeElement)) box.querySelector<HTMLElement>(".field")?.focus(); }}
        onKeyDown={(event) => event.key === "Escape" && onClose()}>
        <form onSubmit={submit} onFocus={({ target }) => setTyping((target as HTMLElement as HTMLInputElement).name)}>
          <p><b>{chosen.uri === undefined ? "/" : ""}{chosen.name}</b> {chosen.about}</p>
          <Form values={values} schema={chosen.form} edited={{}} suggestions={suggestions} onText={() => undefined} onChange={(name, value) => setValues((now) => ({ ...now, [name]: value }))} />
          <div className="choices">
            <button className="button primary" disabled={missing.length > 0}>Use</button>
            <button type="button" className="button" onClick={onClose}>Cancel</button>
          </div>
          {problem}
        </form>
      </section>
    );
  }
  if (!matches.length) return problem || null;
  return (
    <div className="slash">
      <ul id="slash-list" role="listbox" aria-label="Prompts and resources">
        {matches.map((entry, index) => (
          <li key={`${entry.server} ${entry.uri ?? entry.name}`} id={`slash-${index}`} role="option" aria-selected={index === selected} onPointerMove={() => setAt(index)} onClick={() => choose(entry)}>
            <span>{entry.uri === undefined ? `/${entry.name}` : entry.name}</span><small>{entry.about}</small>
          </li>
        ))}
      </ul>
      {problem}
    </div>
  );
}
