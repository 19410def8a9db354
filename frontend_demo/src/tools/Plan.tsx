/** The model proposes steps; the person edits, drops, adds, and then confirms or declines. */

import { useEffect, useState } from "react";
import { Icon } from "../ui/icons";
import { focusComposer } from "../ui/keys";
import { Status } from "./ToolCard";
import { readResult, titleOf, type ToolProps } from "./status";

export interface Step {
  description: string;
  status: "enabled" | "disabled" | "executing";
}

interface Props extends ToolProps {
  respond?: ((result: unknown) => Promise<void>) | undefined;
}

/** Steps in any of the shapes that a model may write while it is still writing them. */
export function stepsOf(value: unknown): Step[] {
  if (!Array.isArray(value)) return [];
  return value.flatMap((item: unknown): Step[] => {
    if (typeof item === "string") return [{ description: item, status: "enabled" }];
    if (typeof item !== "object" || item === null) return [];
    const { description, status } = item as { description?: unknown; status?: unknown };
    if (typeof description !== "string") return [];
    return [{ description, status: status === "disabled" ? "disabled" : "enabled" }];
  });
}

export function Plan({ name, args, status, result, respond }: Props) {
  const proposed = stepsOf(args.steps);
  const [steps, setSteps] = useState<Step[]>([]);
  const deciding = status === "executing" && respond !== undefined;
  const text = JSON.stringify(proposed);
  useEffect(() => setSteps(JSON.parse(text) as Step[]), [text]);

  const answer = readResult(result) as { accepted?: boolean; steps?: unknown } | string | undefined;
  const decided = typeof answer === "object" && answer !== null;
  const shown = deciding ? steps : decided && answer.steps ? stepsOf(answer.steps) : proposed;
  const change = (index: number, part: Partial<Step>) => setSteps((now) => now.map((step, at) => (at === index ? { ...step, ...part } : step)));
  const finish = (accepted: boolean) => {
    const kept = steps.filter((step) => step.description.trim() !== "");
    focusComposer(); // the buttons go, and what has the keyboard with them
    void respond?.(accepted ? { accepted, steps: kept } : { accepted });
  };

  return (
    <section className={`tool plan ${deciding ? "approval" : ""}`} aria-label={titleOf(name)}>
      <div className="head">
        <Icon name="list" className="kind" />
        <span className="name">{deciding ? "Is this plan right?" : "Plan"}</span>
        <span className="brief">{shown.length ? `${shown.filter((step) => step.status !== "disabled").length} of ${shown.length} steps` : "writing"}</span>
        {status === "complete" ? <Decision accepted={!decided || answer.accepted !== false} /> : !deciding && <Status status={status} />}
      </div>
      <div className="body">
        <ol>
          {shown.map((step, index) => (
            <li key={index} data-off={step.status === "disabled"}>
              <input type="checkbox" aria-label={`Include step ${index + 1}`} checked={step.status !== "disabled"} disabled={!deciding}
                onChange={(event) => change(index, { status: event.target.checked ? "enabled" : "disabled" })} />
              {deciding
                ? <input type="text" aria-label={`Step ${index + 1}`} value={step.description} onChange={(event) => change(index, { description: event.target.value })} />
                : <span className={status === "inProgress" && index === shown.length - 1 ? "caret" : ""}>{step.description}</span>}
            </li>
          ))}
        </ol>
        {deciding && (
          <div className="choices">
            <button className="button primary" onClick={() => finish(true)}>Confirm plan</button>
            <button className="button" onClick={() => setSteps((now) => [...now, { description: "", status: "enabled" }])}><Icon name="plus" />Add a step</button>
            <button className="button danger" onClick={() => finish(false)}>Decline</button>
          </div>
        )}
      </div>
    </section>
  );
}

function Decision({ accepted }: { accepted: boolean }) {
  return accepted ? <span className="pill ok"><Icon name="check" className="tick" />Confirmed</span> : <span className="pill danger">Declined</span>;
}
