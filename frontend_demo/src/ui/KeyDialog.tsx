import { useEffect, useRef, useState } from "react";

/** Asks for the API key of a server that wants one. It stays in this browser. */
export function KeyDialog({ onKey }: { onKey: (key: string) => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [key, setKey] = useState("");
  useEffect(() => {
    if (!dialog.current?.open) dialog.current?.showModal();
  }, []);
  return (
    <dialog ref={dialog} aria-labelledby="key-title" onCancel={(event) => event.preventDefault()}>
      <form onSubmit={(event) => { event.preventDefault(); if (key.trim()) onKey(key.trim()); }}>
        <h2 id="key-title">This server asks for an API key</h2>
        <p>It was started with <code>--api-key</code>. The key is kept in this browser and sent to this server alone.</p>
        <label className="visually-hidden" htmlFor="key">API key</label>
        <input id="key" className="field" type="password" autoComplete="off" autoFocus value={key} onChange={(event) => setKey(event.target.value)} />
        <div className="choices"><button className="button primary" disabled={!key.trim()}>Continue</button></div>
      </form>
    </dialog>
  );
}
