/** The line below the composer: the conversation's settings, taking it along, and what the last answer cost. */

import { lazy, Suspense, useMemo, useRef, useState } from "react";
import { meters } from "../stream/record";
import type { View } from "../stream/store";
import type { Settings } from "../threads/settings";
import type { Form } from "../threads/transcript";
import type { ThreadSettings } from "../threads/useSettings";
import { Icon } from "../ui/icons";
import { Menu, type Choice } from "../ui/Menu";
import { thousands } from "../ui/numbers";
import { saveFile } from "../ui/save";
import type { Toasts } from "../ui/toasts";

const SettingsDialog = lazy(() => import("../threads/SettingsDialog"));

interface Props {
  threadId: string;
  empty: boolean;
  running: boolean;
  settings: ThreadSettings;
  thinks: boolean;
  view: View;
  /** Tokens that the model holds; 0 where that is not known. */
  room: number;
  notify: Toasts["show"];
}

export function Foot({ threadId, empty, running, settings, thinks, view, room, notify }: Props) {
  const [open, setOpen] = useState(false);
  const done = (values: Settings | null) => {
    setOpen(false);
    if (values) settings.change(values);
  };
  const set = Object.keys(settings.values).length;
  return (
    <div className="foot">
      <button className="icon-button small" aria-label={set ? `Settings of the conversation, ${set} set` : "Settings of the conversation"} title="Settings of the conversation" aria-pressed={set > 0} disabled={running} onClick={() => setOpen(true)}><Icon name="sliders" /></button>
      {!empty && !running && <Export threadId={threadId} notify={notify} />}
      {!empty && <Figures key={threadId} view={view} room={room} />}
      {open && <Suspense><SettingsDialog values={settings.values} thinks={thinks} onDone={done} /></Suspense>}
    </div>
  );
}

function Figures({ view: { recording, version }, room }: { view: View; room: number }) {
  const { tokensPerSecond, context } = useMemo(() => meters(recording), [recording, version]);
  const last = useRef<number | null>(null); // while a run goes on, and behind one that was stopped
  last.current = context ?? last.current;
  const speed = tokensPerSecond === null ? "" : `${tokensPerSecond.toFixed(0)} tokens/s`;
  const used = last.current && room ? `${thousands(last.current)} of ${thousands(room)} tokens` : "";
  return <span className="figures">{[speed, used].filter(Boolean).join(" · ")}</span>;
}

const FORMS: readonly (Omit<Choice, "run"> & { form: Form })[] = [
  { form: "markdown", label: "Markdown", about: "To read and to pass on" },
  { form: "json", label: "JSON", about: "The thread as the server keeps it" },
  { form: "events", label: "Event log", about: "Every AG-UI event, for ?replay=" },
];

function Export({ threadId, notify }: Pick<Props, "threadId" | "notify">) {
  const save = async (form: Form) => {
    try {
      const { exported } = await import("../threads/transcript");
      const { name, text, type } = await exported(threadId, form);
      saveFile(name, text, type);
    } catch (error) {
      notify({ kind: "error", title: "The conversation was not exported", text: (error as Error).message });
    }
  };
  return <Menu label="Export the conversation" choices={FORMS.map(({ form, label, about = "" }) => ({ label, about, run: () => void save(form) }))}><Icon name="download" /></Menu>;
}
