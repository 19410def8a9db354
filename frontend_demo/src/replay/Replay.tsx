/** A recorded run, watched again: the conversation as it was and the stream as it came. No model is asked. */

import { useAgent, useCopilotKit } from "@copilotkit/react-core/v2/headless";
import { useCallback, useEffect, useMemo, useRef, useState, type DragEvent } from "react";
import { Conversation } from "../chat/Conversation";
import type { Refusal } from "../chat/long";
import type { Conversation as Thread } from "../kit/conversation";
import { StreamPanel } from "../panel/StreamPanel";
import { StreamStore, useStream } from "../stream/store";
import { usePageTools } from "../tools/register";
import { Icon } from "../ui/icons";
import { useTheme } from "../ui/theme";
import type { Toasts } from "../ui/toasts";
import { Mark } from "../ui/TopBar";
import { REPLAY_ID as ID, ReplayAgent } from "./agent";
import { loadAddress, loadText, type Loaded } from "./load";
import { ReplayBar } from "./ReplayBar";

const nothing = () => undefined;
const NONE: ReadonlySet<string> = new Set();

export function Replay({ address, notify }: { address: string; notify: Toasts["show"] }) {
  const [loaded, setLoaded] = useState<Loaded | null>(null);
  const [theme, toggleTheme] = useTheme();
  const complain = useCallback((error: Error) => notify({ kind: "error", title: "The event log cannot be read", text: error.message }), [notify]);

  useEffect(() => {
    if (address) loadAddress(address).then(setLoaded, complain);
  }, [address, complain]);
  const take = (file: File | undefined) => void file?.text().then((text) => loadText(file.name, text)).then(setLoaded, complain);
  const drop = (event: DragEvent) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  };

  return (
    <div className="app" data-replay data-threads="closed" data-inspector={loaded ? "open" : "closed"} onDragOver={(event) => event.preventDefault()} onDrop={drop}>
      <header className="topbar">
        <div className="wordmark"><Mark /><span>agent-server</span></div>
        <span className="pill">Replay</span>
        <span className="spacer" />
        <label className="button small">Open a log<input className="visually-hidden" type="file" accept=".jsonl,.txt,.log,.ndjson" onChange={(event) => take(event.target.files?.[0])} /></label>
        <a className="button small" href="." style={{ textDecoration: "none", color: "var(--text)" }}>Leave</a>
        <button className="icon-button" aria-label={theme === "dark" ? "Light colours" : "Dark colours"} onClick={toggleTheme}><Icon name={theme === "dark" ? "sun" : "moon"} /></button>
      </header>
      <div className="columns">{loaded ? <Player key={`${loaded.name}-${loaded.log.length}`} loaded={loaded} /> : <Invitation waiting={address !== ""} />}</div>
    </div>
  );
}

function Invitation({ waiting }: { waiting: boolean }) {
  return (
    <main className="conversation panel">
      <div className="panel-empty">
        <Icon name="play" />
        <h1>{waiting ? "Loading the event log" : "Watch a recorded run"}</h1>
        <p>Drop an event log here: one AG-UI event in each line, as the stream panel saves it.</p>
      </div>
    </main>
  );
}

function Player({ loaded }: { loaded: Loaded }) {
  const { copilotkit } = useCopilotKit();
  const [store] = useState(() => new StreamStore());
  const player = useMemo(() => new ReplayAgent(loaded.log, loaded.chunks, store), [loaded, store]);
  const [registered, setRegistered] = useState(false);
  useEffect(() => {
    copilotkit.addAgent__unsafe_dev_only({ id: ID, agent: player });
    setRegistered(true);
    return () => copilotkit.removeAgent__unsafe_dev_only(ID);
  }, [copilotkit, player]);
  return registered ? <Stage player={player} store={store} name={loaded.name} /> : null;
}

function Stage({ player, store, name }: { player: ReplayAgent; store: StreamStore; name: string }) {
  const view = useStream(store);
  const { agent } = useAgent({ agentId: ID });
  const playing = useRef(false);
  const [failure, setFailure] = useState<Refusal | null>(null);
  usePageTools({ paint: nothing, openDocument: nothing });
  const play = useCallback(() => {
    if (playing.current) return;
    playing.current = true;
    player.setMessages([]);
    setFailure(null);
    void player.runAgent({}).catch(nothing).finally(() => { playing.current = false; });
  }, [player]);
  useEffect(() => player.subscribe({ onRunErrorEvent: ({ event }) => setFailure({ text: event.message, full: false }) }).unsubscribe, [player]);
  useEffect(play, [play]);

  const thread: Thread = { agent, ready: true, restored: true, running: agent.isRunning, reconnecting: false, stopped: NONE, markStopped: nothing, send: nothing, sendAll: nothing, stop: nothing, retry: nothing, edit: nothing, refresh: nothing };
  return (
    <>
      <Conversation title={name || "A recorded run"} thread={thread} modelName={null} bundled={false} blocked={null} failure={failure} interrupt={null} readOnly onSend={async () => null} onRetry={nothing} />
      <aside className="inspector panel" aria-label="Stream"><StreamPanel view={view} controls={null} top={<ReplayBar agent={player} name={name} onAgain={play} />} /></aside>
    </>
  );
}
