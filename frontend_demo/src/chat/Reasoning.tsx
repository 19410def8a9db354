/** A model's reasoning: open while it thinks, folded once it has thought, and as the person leaves it after that. */

import { useEffect, useRef, useState } from "react";
import { Icon } from "../ui/icons";
import { longClass, Plain } from "./Plain";

export function Reasoning({ text, thinking }: { text: string; thinking: boolean }) {
  const [open, setOpen] = useState(thinking);
  const [seconds, setSeconds] = useState<number | null>(null);
  const chosen = useRef(false);
  const began = useRef(thinking ? performance.now() : null);

  useEffect(() => {
    if (thinking || began.current === null) return;
    setSeconds((performance.now() - began.current) / 1000);
    began.current = null;
    if (!chosen.current) setOpen(false);
  }, [thinking]);

  return (
    <details className="reasoning" open={open}>
      <summary onClick={(event) => { event.preventDefault(); chosen.current = true; setOpen(!open); }}>
        <Icon name="spark" />
        <span className={thinking ? "shimmer" : ""}>{thinking ? "Thinking" : label(seconds)}</span>
        <Icon name="chevron" className="chevron" />
      </summary>
      <div className={`thought ${longClass(text)}`}><Plain text={text} /></div>
    </details>
  );
}

function label(seconds: number | null): string {
  if (seconds === null) return "Reasoning";
  return seconds < 1 ? "Thought for a moment" : `Thought for ${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
}
