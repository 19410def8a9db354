/** Everything that can be done on the page, by its name, and the keys that do it: Ctrl+K, or ⌘K. */

import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import type { Command } from "./paletteKey";

const SHORTCUTS: readonly (readonly [string, string])[] = [
  ["Ctrl K", "Commands"], ["/", "Write"], ["Enter", "Send"], ["Shift Enter", "New line"], ["Esc", "Stop the answer"],
];

/** The commands that have all the words. */
export function matching(commands: readonly Command[], words: string): readonly Command[] {
  const wanted = words.toLowerCase().split(/\s+/);
  return commands.filter(({ name, about = "" }) => wanted.every((word) => `${name} ${about}`.toLowerCase().includes(word)));
}

export default function Palette({ commands, onClose }: { commands: readonly Command[]; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [words, setWords] = useState("");
  const [at, setAt] = useState(0);
  const found = matching(commands, words);
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  useEffect(() => void dialog.current?.querySelector("[aria-selected='true']")?.scrollIntoView({ block: "nearest" }), [at]);
  const run = (command: Command | undefined) => {
    if (!command) return;
    onClose();
    command.run();
  };
  const key = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter") {
      event.preventDefault();
      run(found[at]);
    } else if (step && found.length) {
      event.preventDefault();
      setAt((at + step + found.length) % found.length);
    }
  };
  return (
    <dialog ref={dialog} className="palette" aria-label="Commands" onClose={onClose} onClick={(event) => event.target === dialog.current && onClose()}>
      <input className="field" role="combobox" aria-label="Search commands" aria-expanded="true" aria-controls="palette-list" aria-activedescendant={found.length ? `command-${at}` : undefined}
        placeholder="What would you like to do?" autoFocus autoComplete="off" value={words} onChange={(event) => { setWords(event.target.value); setAt(0); }} onKeyDown={key} />
      <ul id="palette-list" role="listbox" aria-label="Commands">
        {found.map((command, index) => (
          <li key={`${index} ${command.name}`} id={`command-${index}`} role="option" aria-selected={index === at} onPointerMove={() => setAt(index)} onClick={() => run(command)}>
            <span>{command.name}</span>{command.about && <small>{command.about}</small>}
          </li>
        ))}
      </ul>
      {!found.length && <p className="nothing" role="status">Nothing here is called that.</p>}
      <dl className="shortcuts" aria-label="Keyboard shortcuts">
        {SHORTCUTS.map(([keys, what]) => <div key={keys}><dt>{keys.split(" ").map((one) => <kbd key={one}>{one}</kbd>)}</dt><dd>{what}</dd></div>)}
      </dl>
    </dialog>
  );
}
