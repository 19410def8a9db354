/** The right side of the page: the stream, the shared state, the document, the model. */

import { useRef, type KeyboardEvent, type ReactNode } from "react";
import { Icon } from "../ui/icons";

export const TABS = ["stream", "state", "document", "model"] as const;
export type Tab = (typeof TABS)[number];
const TITLES: Record<Tab, string> = { stream: "Stream", state: "State", document: "Document", model: "Model" };

interface Props {
  tab: Tab;
  fresh: ReadonlySet<Tab>;
  onTab: (tab: Tab) => void;
  onClose: () => void;
  children: ReactNode;
}

export function Inspector({ tab, fresh, onTab, onClose, children }: Props) {
  const bar = useRef<HTMLDivElement>(null);
  const key = (event: KeyboardEvent) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = TABS[(TABS.indexOf(tab) + step + TABS.length) % TABS.length] as Tab;
    onTab(next);
    bar.current?.querySelector<HTMLElement>(`#tab-${next}`)?.focus();
  };
  return (
    <aside className="inspector panel" aria-label="Inspector">
      <div className="tabs" ref={bar}>
        <div role="tablist" aria-label="Inspector" onKeyDown={key} style={{ display: "contents" }}>
          {TABS.map((name) => (
            <button key={name} id={`tab-${name}`} role="tab" aria-selected={tab === name} aria-controls="inspector-panel" tabIndex={tab === name ? 0 : -1} onClick={() => onTab(name)}>
              {TITLES[name]}
              {fresh.has(name) && tab !== name && <><i className="fresh" /><span className="visually-hidden">, new</span></>}
            </button>
          ))}
        </div>
        <span className="spacer" />
        <button className="icon-button small" aria-label="Close the inspector" onClick={onClose}><Icon name="close" /></button>
      </div>
      <div className="tabpanel" id="inspector-panel" role="tabpanel" aria-labelledby={`tab-${tab}`}>{children}</div>
    </aside>
  );
}
