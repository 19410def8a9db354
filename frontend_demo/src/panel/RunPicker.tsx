/** Which of the thread's runs the panel shows. */

import { titleOf } from "../tools/status";
import type { PastRun } from "./pastRuns";

interface Props {
  runs: readonly PastRun[];
  current: string;
  onPick: (runId: string) => void;
}

export function RunPicker({ runs, current, onPick }: Props) {
  return (
    <div className="run-picker">
      <label htmlFor="run">Run</label>
      <select id="run" value={current} onChange={(event) => onPick(event.target.value)}>
        {!runs.some((run) => run.id === current) && <option value={current}>The latest</option>}
        {runs.map((run, index) => <option key={run.id} value={run.id}>{`${index + 1} of ${runs.length}, ${when(run.createdAt)}, ${titleOf(run.status).toLowerCase()}`}</option>)}
      </select>
    </div>
  );
}

const when = (milliseconds: number): string => new Date(milliseconds).toLocaleString(undefined, { dateStyle: "short", timeStyle: "short" });
