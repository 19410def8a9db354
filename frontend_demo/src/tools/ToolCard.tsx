/** Any tool call: its arguments as they stream in, then what came back. */

import { useContext } from "react";
import { Icon, type IconName } from "../ui/icons";
import { asText, failureOf, outcomeOf, readResult, RunningContext, titleOf, type Outcome, type ToolProps } from "./status";

const BRIEF = 90;

export function ToolCard({ name, args, status, result, icon = iconOf(name) }: ToolProps & { icon?: IconName }) {
  const outcome = status === "complete" ? outcomeOf(result) : null;
  const failed = status === "complete" ? failureOf(result) : null;
  const running = useContext(RunningContext);
  return (
    <details className="tool" open={(running && status !== "complete") || undefined}>
      <summary>
        <Icon name={icon} className="kind" />
        <span className="name">{titleOf(name)}</span>
        <span className="brief">{brief(args, status, result)}</span>
        <Status status={status} outcome={outcome ?? "done"} />
        <Icon name="chevron" className="chevron" />
      </summary>
      <div className="body">
        <Arguments args={args} streaming={running && status === "inProgress"} />
        {status === "complete" && (
          <div className="result">
            <p className="part">{outcome === null || outcome === "done" ? "Result" : NAMES[outcome]}</p>
            <pre tabIndex={0}>{failed ?? asText(readResult(result))}</pre>
          </div>
        )}
      </div>
    </details>
  );
}

const NAMES: Record<Exclude<Outcome, "done">, string> = { failed: "Failed", denied: "Denied", cancelled: "Cancelled" };

export function Status({ status, outcome = "done" }: { status: ToolProps["status"]; outcome?: Outcome }) {
  const running = useContext(RunningContext);
  if (status === "complete" && outcome !== "done") return <span className="pill danger"><Icon name="close" className="tick" />{NAMES[outcome]}</span>;
  if (status === "complete") return <span className="pill ok"><Icon name="check" className="tick" />Done</span>;
  if (!running && status === "inProgress") return <span className="pill">No result</span>;
  return <><span className="spinner" aria-hidden="true" /><span className="visually-hidden">Running</span></>;
}

export function Arguments({ args, streaming }: { args: Record<string, unknown>; streaming: boolean }) {
  const entries = Object.entries(args ?? {});
  if (!entries.length) return streaming ? <p className="caret"><span className="visually-hidden">Arguments arrive</span></p> : <p>No arguments</p>;
  return (
    <div>
      <p className="part">Arguments</p>
      <dl className="arguments">
        {entries.map(([key, value], index) => (
          <div key={key} style={{ display: "contents" }}>
            <dt>{key}</dt>
            <dd className={[typeof value === "string" ? "" : "code", streaming && index === entries.length - 1 ? "caret" : ""].join(" ")}>{asText(value)}</dd>
          </div>
        ))}
      </dl>
    </div>
  );
}

function brief(args: Record<string, unknown>, status: ToolProps["status"], result: unknown): string {
  const given = Object.values(args ?? {}).map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ");
  const outcome = status === "complete" && typeof readResult(result) !== "object" ? ` → ${String(result)}` : "";
  const text = (given + outcome).replaceAll("\n", " ");
  return text.length > BRIEF ? `${text.slice(0, BRIEF)}…` : text;
}

const ICONS: readonly [RegExp, IconName][] = [
  [/weather/i, "cloud"], [/calc|math|comput|evaluate/i, "calculator"], [/search|lookup|find/i, "search"],
  [/mail/i, "mail"], [/document|write/i, "document"], [/plan|step/i, "list"], [/background|colou?r/i, "brush"], [/haiku/i, "leaf"],
];

function iconOf(name: string): IconName {
  return ICONS.find(([pattern]) => pattern.test(name))?.[1] ?? "tool";
}
