import { useEffect, useState } from "react";
import { Icon } from "../ui/icons";
import type { ReplayAgent } from "./agent";

const SPEEDS = [0.25, 0.5, 1, 2, 4] as const;

/** Pause, speed, again: the controls of a recorded run. */
export function ReplayBar({ agent, name, onAgain }: { agent: ReplayAgent; name: string; onAgain: () => void }) {
  const [position, setPosition] = useState(0);
  const [paused, setPaused] = useState(false);
  const [speed, setSpeed] = useState(1);
  useEffect(() => {
    agent.onProgress = setPosition;
    return () => {
      agent.onProgress = () => undefined;
    };
  }, [agent]);

  const pause = () => {
    agent.pause(!paused);
    setPaused(!paused);
  };
  const choose = (value: number) => {
    agent.speed = value;
    setSpeed(value);
  };
  const over = position >= agent.length;
  return (
    <div className="replay-bar" role="group" aria-label="Replay">
      {over
        ? <button className="button small" onClick={onAgain}><Icon name="retry" />Again</button>
        : <button className="button small" onClick={pause}><Icon name={paused ? "play" : "pause"} />{paused ? "Resume" : "Pause"}</button>}
      <b>{name}</b>
      <span role="status">{position} of {agent.length} events</span>
      <span style={{ flex: 1 }} />
      <label>
        <span className="visually-hidden">Speed</span>
        <select value={speed} onChange={(event) => choose(Number(event.target.value))}>
          {SPEEDS.map((value) => <option key={value} value={value}>{value}×</option>)}
        </select>
      </label>
    </div>
  );
}
