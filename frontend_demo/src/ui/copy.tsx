import { useState } from "react";
import { Icon, type IconName } from "./icons";
import { Menu } from "./Menu";

const SHOWN_MS = 1_400;

/** Whether something was copied a moment ago, and how to copy. */
function useCopied(): [boolean, (text: string | Promise<string>) => void] {
  const [done, setDone] = useState(false);
  const copy = (text: string | Promise<string>) => {
    void Promise.resolve(text).then(write).catch(() => false).then((written) => {
      if (!written) return;
      setDone(true);
      setTimeout(() => setDone(false), SHOWN_MS);
    });
  };
  return [done, copy];
}

/** Whether it was written. Browsers give a clipboard to https and to localhost alone; elsewhere a selection is copied. */
async function write(text: string): Promise<boolean> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => selected(text));
  return selected(text);
}

function selected(text: string): boolean {
  const back = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.style.cssText = "position:fixed;opacity:0";
  (document.querySelector("dialog[open]") ?? document.body).append(area); // what lies outside an open dialog takes no focus
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (back instanceof HTMLElement) back.focus();
  return copied;
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
export function CopyAs({ label, icon = "down", forms }: { label: string; icon?: IconName; forms: readonly (readonly [name: string, text: () => string | Promise<string>])[] }) {
  const [done, copy] = useCopied();
  return (
    <Menu label={done ? "Copied" : label} choices={forms.map(([name, text]) => ({ label: name, run: () => copy(text()) }))}>
      <Icon name={done ? "check" : icon} />
    </Menu>
  );
}
