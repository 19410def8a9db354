/**
 * State that an agent predicts: while a tool's argument streams, the page already shows it as state.
 *
 * CUSTOM `PredictState` names the tool, its argument and the state key; `write_document` is predicted without being
 * announced, since that is the tool's whole point.
 */

import type { AbstractAgent } from "@ag-ui/client";
import { partialJSONParse } from "@copilotkit/shared";
import { useEffect, useState } from "react";

export interface Prediction {
  state_key: string;
  tool: string;
  tool_argument: string;
}

export interface Predicted {
  values: Record<string, unknown>;
  writing: boolean;
}

const KNOWN: Prediction = { state_key: "document", tool: "write_document", tool_argument: "document" };
const NOTHING: Predicted = { values: {}, writing: false };

export function predict(rules: readonly Prediction[], tool: string, args: Record<string, unknown>): Record<string, unknown> {
  const found = rules.filter((rule) => rule.tool === tool && args[rule.tool_argument] !== undefined);
  return Object.fromEntries(found.map((rule) => [rule.state_key, args[rule.tool_argument]]));
}

export function usePredicted(agent: AbstractAgent, onBegin: () => void): Predicted {
  const [predicted, setPredicted] = useState<Predicted>(NOTHING);
  useEffect(() => {
    let rules: Prediction[] = [KNOWN];
    setPredicted(NOTHING);
    const subscription = agent.subscribe({
      onCustomEvent: ({ event }) => {
        if (event.name === "PredictState" && Array.isArray(event.value)) rules = [KNOWN, ...(event.value as Prediction[])];
      },
      onToolCallStartEvent: ({ event }) => {
        if (!rules.some((rule) => rule.tool === event.toolCallName)) return;
        setPredicted((now) => ({ ...now, writing: true }));
        if (event.toolCallName === KNOWN.tool) onBegin();
      },
      onToolCallArgsEvent: ({ event, toolCallName, toolCallBuffer }) => {
        const values = predict(rules, toolCallName, partialJSONParse(toolCallBuffer + event.delta) as Record<string, unknown>);
        if (Object.keys(values).length) setPredicted((now) => ({ ...now, values: { ...now.values, ...values } }));
      },
      onToolCallEndEvent: () => setPredicted((now) => (now.writing ? { ...now, writing: false } : now)),
      onStateChanged: ({ state }) => setPredicted((now) => ({ ...now, values: unconfirmed(now.values, state as Record<string, unknown>) })),
      onRunFinalized: () => setPredicted((now) => ({ ...now, writing: false })),
    });
    return () => subscription.unsubscribe();
  }, [agent, onBegin]);
  return predicted;
}

/** A key that the real state now has is no longer a prediction. */
function unconfirmed(values: Record<string, unknown>, state: Record<string, unknown> | undefined): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).filter(([key]) => state?.[key] === undefined));
}
