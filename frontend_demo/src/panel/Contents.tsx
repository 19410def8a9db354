/** What the inspector shows under each of its tabs. */

import type { Info } from "../kit/info";
import type { View } from "../stream/store";
import type { RunControls } from "./Controls";
import type { Tab } from "./Inspector";
import { late } from "./late";
import type { PastRuns } from "./pastRuns";
import { RunPicker } from "./RunPicker";
import { StreamPanel } from "./StreamPanel";

const DocumentPanel = late(() => import("./DocumentPanel").then((module) => module.DocumentPanel));
const ModelPanel = late(() => import("./ModelPanel").then((module) => module.ModelPanel));
const StatePanel = late(() => import("./StatePanel").then((module) => module.StatePanel));

interface Props {
  tab: Tab;
  view: View;
  controls: RunControls;
  past: PastRuns;
  state: Readonly<Record<string, unknown>>;
  onState: (state: unknown) => void;
  running: boolean;
  /** The model writes the document at the moment. */
  writing: boolean;
  info: Info | null;
  /** Another model was asked for. */
  onServe: () => void;
}

export function Contents({ tab, view, controls, past, state, onState, running, writing, info, onServe }: Props) {
  switch (tab) {
    case "stream":
      return <StreamPanel view={view} controls={controls} top={past.runs.length > 1 && <RunPicker runs={past.runs} current={view.recording.runId} onPick={past.show} />} />;
    case "state":
      return <StatePanel state={state} running={running} onApply={onState} />;
    case "document":
      return <DocumentPanel text={typeof state.document === "string" ? state.document : ""} writing={writing} onEdit={(document) => onState({ ...state, document })} />;
    case "model":
      return <ModelPanel info={info} onServe={onServe} />;
  }
}
