/** What the server says about itself: the model that is loaded, its agents, and whether it answers at all. */

import { useCallback, useEffect, useState } from "react";
import { ask, ServerError } from "./core";

export interface AgentInfo {
  name: string;
  description: string;
  capabilities?: Record<string, unknown>;
}

export interface ModelInfo {
  model: string;
  bundled: boolean;
  /** The page may fetch models and have another one served. */
  changeable: boolean;
  state: string;
  message: string;
  progress?: number;
  contextLength: number;
  vocabSize: number;
  version: string;
  details: Record<string, unknown>;
}

export interface Info {
  agents: Record<string, AgentInfo>;
  server?: ModelInfo;
}

export type Reach = "asking" | "reached" | "locked" | "gone";

const CALM_MS = 15_000;
const EAGER_MS = 1_500;
/** A network that swallows requests is as good as none. */
const PATIENCE_MS = 8_000;

export interface Server {
  info: Info | null;
  reach: Reach;
  /** Grows by one each time that the server comes back after it was gone. */
  returns: number;
  ask: () => void;
  /** Counts the server as gone until it answers, for whoever has seen a connection to it fail. */
  lose: () => void;
}

/** Polls /copilotkit/info: seldom while all is well, often while the model loads or the server is away. */
export function useServer(): Server {
  const [info, setInfo] = useState<Info | null>(null);
  const [reach, setReach] = useState<Reach>("asking");
  const [returns, setReturns] = useState(0);
  const [round, setRound] = useState(0);

  useEffect(() => {
    let current = true;
    const settle = (next: Reach, found?: Info) => {
      if (!current) return;
      if (found) setInfo(found);
      setReach((before) => {
        if (before === "gone" && next === "reached") setReturns((count) => count + 1);
        return next;
      });
    };
    const find = () =>
      ask("copilotkit/info", { signal: AbortSignal.timeout(PATIENCE_MS) })
        .then(async (response) => settle("reached", (await response.json()) as Info))
        .catch((error: unknown) => settle(error instanceof ServerError && error.status === 401 ? "locked" : "gone"));
    // CopilotKit goes first: it is given what the head of the page has asked for, and nothing can be sent before that
    const timer = setTimeout(() => void find());
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [round]);

  const loading = info?.server !== undefined && info.server.state !== "ready";
  const eager = reach === "gone" || loading;
  // the browser tells at once of a network that is lost or back; a server on this machine answers without one
  useEffect(() => {
    const again = () => setRound((count) => count + 1);
    window.addEventListener("offline", again);
    window.addEventListener("online", again);
    return () => {
      window.removeEventListener("offline", again);
      window.removeEventListener("online", again);
    };
  }, []);

  useEffect(() => {
    if (reach === "locked") return;
    const timer = setTimeout(() => setRound((count) => count + 1), eager ? EAGER_MS : CALM_MS);
    return () => clearTimeout(timer);
  }, [round, reach, eager]);

  const again = useCallback(() => setRound((count) => count + 1), []);
  const lose = useCallback(() => {
    setReach("gone"); // a line that is back before the next question is a return, too
    again();
  }, [again]);
  return { info, reach, returns, ask: again, lose };
}
