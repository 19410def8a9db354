/** Errors and notices, one at a time for each cause, read out by screen readers. */

import { useCallback, useMemo, useRef, useState } from "react";
import { Icon } from "./icons";

export interface Toast {
  id: number;
  kind: "error" | "notice";
  title: string;
  text: string;
  action?: { label: string; run: () => void };
}

export interface Toasts {
  items: Toast[];
  show: (toast: Omit<Toast, "id">) => void;
  dismiss: (id: number) => void;
  dismissErrors: () => void;
}

/** How long a notice stays, and with it what it offers to undo. */
export const NOTICE_MS = 6_000;
const MOST = 3;

export function useToasts(): Toasts {
  const [items, setItems] = useState<Toast[]>([]);
  const next = useRef(1);
  const dismiss = useCallback((id: number) => setItems((now) => now.filter((item) => item.id !== id)), []);
  const dismissErrors = useCallback(() => setItems((now) => now.filter((item) => item.kind !== "error")), []);
  const show = useCallback(
    (toast: Omit<Toast, "id">) => {
      const id = next.current++;
      setItems((now) => [...now.filter((item) => item.text !== toast.text), { ...toast, id }].slice(-MOST));
      if (toast.kind === "notice") setTimeout(() => dismiss(id), NOTICE_MS);
    },
    [dismiss],
  );
  return useMemo(() => ({ items, show, dismiss, dismissErrors }), [items, show, dismiss, dismissErrors]);
}

export function ToastList({ toasts }: { toasts: Toasts }) {
  return (
    <div className="toasts" role="region" aria-label="Messages" aria-live="assertive">
      {toasts.items.map((toast) => (
        <div key={toast.id} className={`toast ${toast.kind}`} role={toast.kind === "error" ? "alert" : "status"}>
          <Icon name={toast.kind === "error" ? "alert" : "check"} />
          <div>
            <strong>{toast.title}</strong>
            <p>{toast.text}</p>
            {toast.action && (
              <button className="button small" onClick={() => { toast.action?.run(); toasts.dismiss(toast.id); }}>
                {toast.action.label}
              </button>
            )}
          </div>
          <button className="icon-button small" aria-label="Dismiss" onClick={() => toasts.dismiss(toast.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
