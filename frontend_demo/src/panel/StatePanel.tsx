/** The state that the agent and this page share. Edits go to the agent with the next message. */

import { useEffect, useRef, useState } from "react";
import { Icon } from "../ui/icons";

interface Props {
  state: unknown;
  running: boolean;
  onApply: (state: unknown) => void;
}

const show = (state: unknown): string => JSON.stringify(state ?? {}, null, 2);

export function StatePanel({ state, running, onApply }: Props) {
  const agentText = show(state);
  const [text, setText] = useState(agentText);
  const [applied, setApplied] = useState(false);
  const base = useRef(agentText);
  const dirty = text !== base.current;

  useEffect(() => {
    if (!dirty) setText(agentText);
    if (!dirty || agentText === text) base.current = agentText;
  }, [agentText, dirty, text]);

  const wrong = complaint(text);
  const apply = () => {
    onApply(JSON.parse(text));
    base.current = show(JSON.parse(text));
    setText(base.current);
    setApplied(true);
  };
  const edit = (next: string) => {
    setApplied(false);
    setText(next);
  };
  return (
    <div className="editor">
      <p className="hint">The agent and this page share this. What you apply here reaches the agent with your next message.</p>
      <textarea className="field" aria-label="Shared state as JSON" spellCheck={false} value={text} readOnly={running} aria-invalid={wrong !== null} onChange={(event) => edit(event.target.value)} />
      {wrong && <p className="wrong" role="status">{wrong}</p>}
      <div className="choices">
        <button className="button primary small" disabled={!dirty || wrong !== null || running} onClick={apply}>Apply</button>
        <button className="button small" disabled={!dirty} onClick={() => edit(base.current)}>Undo</button>
        {applied && <span className="pill ok" role="status"><Icon name="check" className="tick" />Applied</span>}
        {running && <span className="note">The agent is at work.</span>}
      </div>
    </div>
  );
}

function complaint(text: string): string | null {
  try {
    JSON.parse(text);
    return null;
  } catch (error) {
    return `Not JSON yet: ${(error as Error).message}`;
  }
}
