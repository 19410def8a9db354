import { useState } from "react";
import { Icon } from "./icons";
import { Menu } from "./Menu";

const SHOWN_MS = 1_400;

/** Whether something was copied a moment ago, and how to copy. */
function useCopied(): [boolean, (text: string) => void] {
  const [done, setDone] = useState(false);
  const copy = (text: string) => {
    void navigator.clipboard?.writeText(text).then(() => {
      setDone(true);
      setTimeout(() => setDone(false), SHOWN_MS);
    });
  };
  return [done, copy];
}

/** Copies text; the icon turns into a tick for a moment. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [done, copy] = useCopied();
  return (
    <button type="button" className="icon-button small" aria-label={done ? "Copied" : label} title={label} onClick={() => copy(text)}>
      <Icon name={done ? "check" : "copy"} />
    </button>
  );
}

/** Copies one of several forms of the same thing. */
export function CopyAs({ label, forms }: { label: string; forms: readonly (readonly [name: string, text: () => string])[] }) {
  const [done, copy] = useCopied();
  return (
    <Menu label={done ? "Copied" : label} choices={forms.map(([name, text]) => ({ label: name, run: () => copy(text()) }))}>
      <Icon name={done ? "check" : "down"} />
    </Menu>
  );
}
