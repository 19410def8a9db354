/** The line below the composer: taking the conversation along. */

import type { Form } from "../threads/transcript";
import { Icon } from "../ui/icons";
import { Menu, type Choice } from "../ui/Menu";
import { saveFile } from "../ui/save";
import type { Toasts } from "../ui/toasts";

interface Props {
  threadId: string;
  empty: boolean;
  running: boolean;
  notify: Toasts["show"];
}

export function Foot({ threadId, empty, running, notify }: Props) {
  return (
    <div className="foot">
      {!empty && !running && <Export threadId={threadId} notify={notify} />}
    </div>
  );
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
