/** Where a person writes. Enter sends, Shift+Enter breaks the line, Escape stops. */

import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { prepareMarkdown } from "./Markdown";
import { Icon } from "../ui/icons";

interface Props {
  running: boolean;
  disabled: string | null;
  onSend: (text: string) => void;
  onStop: () => void;
}

const MAX_HEIGHT = 190;

export function Composer({ running, disabled, onSend, onStop }: Props) {
  const [text, setText] = useState("");
  const box = useRef<HTMLTextAreaElement>(null);

  useEffect(() => {
    const area = box.current;
    if (!area) return;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight, MAX_HEIGHT)}px`;
  }, [text]);

  useEffect(() => {
    const focus = (event: globalThis.KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const typing = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
      if (event.key === "/" && !typing && !event.metaKey && !event.ctrlKey) {
        event.preventDefault();
        box.current?.focus();
      }
    };
    window.addEventListener("keydown", focus);
    return () => window.removeEventListener("keydown", focus);
  }, []);

  const ready = text.trim() !== "" && !running && disabled === null;
  const send = () => {
    if (!ready) return;
    onSend(text.trim());
    setText("");
  };
  const key = (event: KeyboardEvent) => {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "Escape" && running) onStop();
  };

  return (
    <form className="composer" onSubmit={(event) => { event.preventDefault(); send(); }}>
      <label className="visually-hidden" htmlFor="message">Message</label>
      <textarea id="message" ref={box} rows={1} value={text} autoFocus={matchMedia("(pointer: fine)").matches} autoComplete="off"
        placeholder={disabled ?? "Ask something"} onChange={(event) => { setText(event.target.value); prepareMarkdown(); }} onKeyDown={key} />
      {running ? (
        <button type="button" className="send stop" aria-label="Stop" title="Stop (Esc)" onClick={onStop}><Icon name="stop" /></button>
      ) : (
        <button type="submit" className="send" aria-label="Send" disabled={!ready}><Icon name="send" /></button>
      )}
    </form>
  );
}
