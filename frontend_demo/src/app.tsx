/** The page: its frame, its server, its errors. What happens inside a conversation is the workspace's. */

import { lazy, Suspense, useCallback, useEffect, useMemo, useState } from "react";
import { createCore, explain, RUNTIME_URL, useKey } from "./kit/core";
import { isLost } from "./kit/conversation";
import { useServer } from "./kit/info";
import { Kit, type KitError } from "./kit/provider";
import type { Refusal } from "./chat/long";
import { replayAddress } from "./replay/load";
import { usePageFont } from "./ui/font";
import { KeyDialog } from "./ui/KeyDialog";
import { ToastList, useToasts } from "./ui/toasts";
import { Workspace } from "./workspace";

const Replay = lazy(() => import("./replay/Replay").then((module) => ({ default: module.Replay })));

const TITLES: Record<string, string> = {
  agent_connect_failed: "The conversation could not be restored",
  runtime_info_fetch_failed: "The server does not answer",
};
/** What a person did on purpose is no error. */
const WANTED = new Set(["cancelled", "STOPPED", "abort"]);

export function App() {
  const [core] = useState(createCore);
  const toasts = useToasts();
  usePageFont();
  const server = useServer();
  const [failure, setFailure] = useState<Refusal | null>(null);
  const address = useMemo(() => replayAddress(location.search), []);
  const { show, dismissErrors } = toasts;
  const loseServer = server.lose;
  const forgive = useCallback(() => {
    setFailure(null);
    dismissErrors();
  }, [dismissErrors]);

  const onError = useCallback(
    ({ error, code }: KitError) => {
      if (WANTED.has((error as { code?: string }).code ?? "") || error.name === "AbortError" || /HTTP 401/.test(error.message)) return;
      if (code === "runtime_info_fetch_failed") return; // the banner says so for as long as it lasts
      if (isLost(error)) loseServer();
      const text = words(error);
      const full = (error as { code?: string }).code === "context_length_exceeded";
      if (code.startsWith("agent_run")) setFailure({ text, full }); // the conversation shows it, with a button to try again
      else show({ kind: "error", title: TITLES[code] ?? "Something went wrong", text });
    },
    [show, loseServer],
  );

  const { returns } = server;
  useEffect(() => {
    if (!returns) return;
    show({ kind: "notice", title: "The server is back", text: "The conversation goes on where it was." });
    core.setRuntimeUrl(undefined);
    core.setRuntimeUrl(RUNTIME_URL);
  }, [returns, core, show]);

  const unlock = (key: string) => {
    useKey(core, key);
    core.setRuntimeUrl(undefined);
    core.setRuntimeUrl(RUNTIME_URL);
    server.ask();
  };

  return (
    <Kit core={core} onError={onError}>
      {address === null
        ? <Workspace server={server} failure={failure} setFailure={setFailure} notify={show} forgive={forgive} />
        : <Suspense><Replay address={address} notify={show} /></Suspense>}
      <ToastList toasts={toasts} />
      {server.reach === "locked" && address === null && <KeyDialog onKey={unlock} />}
    </Kit>
  );
}

/** The server's own sentence if the error carries one, or what the browser says in words that a person knows. */
function words(error: Error): string {
  const said = explain(error.message);
  if (said) return said;
  return isLost(error) ? "The connection to the server was lost." : error.message;
}
