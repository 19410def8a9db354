/** The stream, seen: every AG-UI event as it arrives, and beside it what the same event is on the OpenAI wire. */

import { useMemo, type ReactNode } from "react";
import { meters, toLog, type Recording } from "../stream/record";
import type { View } from "../stream/store";
import { saveFile } from "../ui/save";
import { Controls, type RunControls } from "./Controls";
import { late } from "./late";

const Events = late(() => import("./Events").then((module) => module.Events));

export function StreamPanel({ view, controls, top }: { view: View; controls: RunControls | null; top?: ReactNode }) {
  const { recording, version, trouble } = view;
  const live = recording.rows.length > 0 && !recording.over;
  return (
    <>
      {top}
      <Meters recording={recording} version={version} />
      {controls && <Controls controls={controls} recording={recording} live={live} onSave={recording.rows.length ? () => save(recording) : null} />}
      {recording.remains && <p className="remains" role="status">The events of this run are no longer kept. This is what its conversation still holds.</p>}
      <Events recording={recording} version={version} live={live} trouble={trouble} />
    </>
  );
}

function Meters({ recording, version }: { recording: Recording; version: number }) {
  const found = useMemo(() => meters(recording), [recording, version]);
  return (
    <dl className="meters">
      <Meter name="First token" value={found.firstToken === null ? "–" : found.firstToken.toFixed(0)} unit={found.firstToken === null ? "" : "ms"} />
      <Meter name="Speed" value={found.tokensPerSecond === null ? "–" : speed(found.tokensPerSecond)} unit={found.tokensPerSecond === null ? "" : "tok/s"} />
      <Meter name={found.exact ? "Tokens" : "Tokens so far"} value={String(found.tokens)} unit="" />
      <Meter name="Events" value={String(recording.rows.length)} unit="" />
    </dl>
  );
}

const speed = (value: number): string => value.toFixed(value < 100 ? 1 : 0);

function Meter({ name, value, unit }: { name: string; value: string; unit: string }) {
  return <div className="meter"><dt>{name}</dt><dd>{value}{unit && <small>{unit}</small>}</dd></div>;
}

const save = (recording: Recording): void => saveFile(`run-${recording.runId || "log"}.jsonl`, toLog(recording), "application/jsonl");
