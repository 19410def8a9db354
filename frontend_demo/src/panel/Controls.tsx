/** Pause, resume and temperature: they act on the generation that is running now. */

import { useEffect, useState } from "react";
import type { Recording } from "../stream/record";
import { CopyAs } from "../ui/copy";
import { Icon } from "../ui/icons";

export interface RunControls {
  /** Null until a person chooses: the model then has its own. */
  temperature: number | null;
  onTemperature: (value: number) => void;
  /** Resolves once the server has accepted the change. */
  onPause: (paused: boolean) => Promise<void>;
  /** The run in the languages of its clients; null where it is not known what it was asked. */
  copies: (recording: Recording) => readonly (readonly [name: string, text: () => Promise<string>])[] | null;
}

const UNCHOSEN = 0.7;
const SETTLE_MS = 120;

interface Props {
  controls: RunControls;
  recording: Recording;
  live: boolean;
  onSave: (() => void) | null;
}

export function Controls({ controls, recording, live, onSave }: Props) {
  const [paused, setPaused] = useState(false);
  const [value, setValue] = useState(controls.temperature);
  useEffect(() => {
    if (!live) setPaused(false);
  }, [live]);

  const { onTemperature, temperature } = controls;
  useEffect(() => setValue(temperature), [temperature]);
  useEffect(() => {
    if (value === null || value === temperature) return;
    const timer = setTimeout(() => onTemperature(value), SETTLE_MS);
    return () => clearTimeout(timer);
  }, [value, temperature, onTemperature]);

  const toggle = () => void controls.onPause(!paused).then(() => setPaused(!paused)).catch(() => undefined);
  const copies = recording.rows.length ? controls.copies(recording) : null;
  return (
    <div className="controls">
      <button className="button small" disabled={!live} onClick={toggle}><Icon name={paused ? "play" : "pause"} />{paused ? "Resume" : "Pause"}</button>
      <label className="temperature" title="Acts on the running generation from its next token on">
        Temperature
        <input type="range" min={0} max={2} step={0.05} value={value ?? UNCHOSEN} onChange={(event) => setValue(Number(event.target.value))} />
        <output>{value === null ? "auto" : value.toFixed(2)}</output>
      </label>
      {copies && <CopyAs label="Copy this run as code" icon="copy" forms={copies} />}
      <button className="icon-button small" disabled={!onSave} aria-label="Save the event log" title="Save the event log" onClick={() => onSave?.()}><Icon name="download" /></button>
    </div>
  );
}
