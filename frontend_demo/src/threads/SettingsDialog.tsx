/** The form for a thread's settings. What is left empty is the model's own. */

import { useEffect, useRef, type FormEvent } from "react";
import type { Settings } from "./settings";

interface Props {
  values: Settings;
  /** Whether thinking can be switched on and off. */
  thinks: boolean;
  onDone: (values: Settings | null) => void;
}

export default function SettingsDialog({ values, thinks, onDone }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  const submit = (event: FormEvent<HTMLFormElement>) => {
    event.preventDefault();
    onDone(read(new FormData(event.currentTarget)));
  };
  return (
    <dialog ref={dialog} aria-labelledby="settings-title" onClose={() => onDone(null)}>
      <form className="form" onSubmit={submit}>
        <h2 id="settings-title">Settings of this conversation</h2>
        <label>System prompt<textarea className="field" name="system" rows={3} maxLength={20_000} defaultValue={values.system ?? ""} placeholder="None" /></label>
        <label>Temperature, 0 to 2<input className="field" name="temperature" type="number" min={0} max={2} step={0.01} inputMode="decimal" placeholder="The model's own" defaultValue={values.temperature ?? ""} /></label>
        <label>Top p, above 0 and at most 1<input className="field" name="top_p" type="number" min={0.01} max={1} step={0.01} inputMode="decimal" placeholder="The model's own" defaultValue={values.top_p ?? ""} /></label>
        <label>Most tokens in an answer<input className="field" name="max_tokens" type="number" min={1} step={1} inputMode="numeric" placeholder="As many as fit" defaultValue={values.max_tokens ?? ""} /></label>
        {thinks && (
          <label>Thinking
            <select className="field" name="enable_thinking" defaultValue={values.enable_thinking === undefined ? "" : String(values.enable_thinking)}>
              <option value="">The model's own</option><option value="true">On</option><option value="false">Off</option>
            </select>
          </label>
        )}
        <div className="choices">
          <button type="button" className="button" onClick={() => onDone({})}>Reset</button>
          <button type="button" className="button" onClick={() => onDone(null)}>Cancel</button>
          <button className="button primary">Use</button>
        </div>
      </form>
    </dialog>
  );
}

function read(form: FormData): Settings {
  const text = (name: string): string => String(form.get(name) ?? "").trim();
  const found: Settings = {};
  if (text("system")) found.system = text("system");
  for (const name of ["temperature", "top_p", "max_tokens"] as const) if (text(name)) found[name] = Number(text(name));
  if (text("enable_thinking")) found.enable_thinking = text("enable_thinking") === "true";
  return found;
}
