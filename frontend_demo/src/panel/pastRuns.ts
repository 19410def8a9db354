/** Runs of a thread that are over, and what is still known of them. */

import { useCallback, useEffect, useState } from "react";
import { ask } from "../kit/core";
import type { AgEvent } from "../stream/describe";
import { addChunk, addEvent, empty, type Recording } from "../stream/record";
import { frames } from "../stream/sse";
import type { StreamStore } from "../stream/store";

export interface PastRun {
  id: string;
  status: string;
  createdAt: number;
}

export interface PastRuns {
  runs: readonly PastRun[];
  show: (runId: string) => void;
}

/** The runs of this thread, the oldest first, read again whenever one ends. The last is shown where nothing is yet. */
export function usePastRuns(threadId: string, settled: boolean, known: boolean, store: StreamStore): PastRuns {
  const [runs, setRuns] = useState<readonly PastRun[]>([]);
  const show = useCallback((runId: string) => void store.past(runId, () => remains(threadId, runId)), [store, threadId]);
  useEffect(() => setRuns([]), [threadId]);
  useEffect(() => {
    if (!settled || !known) return;
    let current = true;
    ask(`agui/threads/${encodeURIComponent(threadId)}/runs`)
      .then((response) => response.json() as Promise<{ runs: PastRun[] }>)
      .then((found) => {
        if (!current) return;
        setRuns(found.runs);
        const last = found.runs.at(-1);
        if (last && !store.view().recording.runId) show(last.id);
      })
      .catch(() => undefined); // the banner already says that the server is away
    return () => {
      current = false;
    };
  }, [threadId, settled, known, store, show]);
  return { runs, show };
}

/** What a client that connects to the thread is sent, on both wires: all that is left of runs whose events are gone. */
async function remains(threadId: string, runId: string): Promise<Recording> {
  const { events } = (await (await ask(`copilotkit/threads/${encodeURIComponent(threadId)}/events`)).json()) as { events: unknown[] };
  const log = events.map((event) => JSON.stringify(event)).join("\n");
  const answer = await ask("demo/wires?wire=agui&wire=openai", { method: "POST", body: log });
  const recording: Recording = { ...empty(runId), joined: true, remains: true };
  if (!answer.body) return recording;
  for await (const frame of frames(answer.body)) {
    if (frame.event === "agui") addEvent(recording, Number(frame.id), JSON.parse(frame.data) as AgEvent, 0);
    else addChunk(recording, Number(frame.id), frame.data);
  }
  return recording;
}
