import { useState } from "react";
import { Icon } from "./icons";

const SHOWN_MS = 1_400;

/** Copies text; the icon turns into a tick for a moment. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, setDone] = useState(false);
  const copy = () => {
    void navigator.clipboard?.writeText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), SHOWN_MS);
    });
  };
  return (
    <button type="button" className="icon-button small" aria-label={done ? "Copied" : label} title={label} onClick={copy}>
      <Icon name={done ? "check" : "copy"} />
    </button>
  );
}
