/** A button that opens a short list of things to do. The browser closes it: Escape, a click elsewhere, a choice. */

import { useId, useRef, type KeyboardEvent, type ReactNode, type ToggleEvent } from "react";

export interface Choice {
  label: string;
  about?: string;
  run: () => void;
}

interface Props {
  label: string;
  choices: readonly Choice[];
  /** What the button shows. */
  children: ReactNode;
}

const WIDTH = 200;
const ROW = 56;
const GAP = 4;

export function Menu({ label, choices, children }: Props) {
  const id = useId();
  const button = useRef<HTMLButtonElement>(null);
  const list = useRef<HTMLDivElement>(null);

  const place = (event: ToggleEvent<HTMLDivElement>) => {
    const at = button.current?.getBoundingClientRect();
    if (event.newState !== "open" || !at) return;
    const { style } = event.currentTarget;
    const below = at.bottom + GAP + choices.length * ROW < innerHeight;
    style.left = `${Math.max(8, Math.min(at.left, innerWidth - WIDTH - 8))}px`;
    style.top = below ? `${at.bottom + GAP}px` : "auto";
    style.bottom = below ? "auto" : `${innerHeight - at.top + GAP}px`;
  };
  const opened = (event: ToggleEvent<HTMLDivElement>) => event.newState === "open" && list.current?.querySelector("button")?.focus();
  const key = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...(list.current?.querySelectorAll("button") ?? [])];
    const now = all.indexOf(document.activeElement as HTMLButtonElement);
    all[(now + step + all.length) % all.length]?.focus();
  };
  return (
    <>
      <button type="button" ref={button} className="icon-button small" aria-label={label} title={label} aria-haspopup="menu" popoverTarget={id}>{children}</button>
      <div ref={list} id={id} popover="auto" role="menu" aria-label={label} className="menu" onBeforeToggle={place} onToggle={opened} onKeyDown={key}>
        {choices.map((choice) => (
          <button type="button" role="menuitem" key={choice.label} onClick={() => { list.current?.hidePopover(); choice.run(); }}>
            {choice.label}
            {choice.about && <small>{choice.about}</small>}
          </button>
        ))}
      </div>
    </>
  );
}
