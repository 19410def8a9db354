/**
 * A fetch whose event streams survive a network cut: when the line of a run breaks, its events are asked for again
 * from the one after the last that arrived whole (`GET /agui/runs/{id}/events` with `Last-Event-ID`), and the reader
 * sees one stream.
 */

import { LONG_RUN, mergeDeltas, pauseAfter } from "./merge";

export interface Line {
  fetch: (url: string, init: RequestInit) => Promise<Response>;
  /** A request for the events of a run after this one. */
  resume: (runId: string, after: number, signal: AbortSignal | null) => Promise<Response>;
  /** Waits before attempt number `attempt`, from 0; false when there is no use in another. */
  wait: (attempt: number) => Promise<boolean>;
  onChange: (reconnecting: boolean) => void;
}

const DELAYS_MS: readonly number[] = [100, 300, 600, 1_200, 2_000];

/** Waits longer each time, and for as long as the browser says that it is offline; five attempts. */
export async function patience(attempt: number): Promise<boolean> {
  const delay = DELAYS_MS[attempt];
  if (delay === undefined) return false;
  await new Promise((resolve) => setTimeout(resolve, delay));
  if (!navigator.onLine) await new Promise((resolve) => window.addEventListener("online", resolve, { once: true }));
  return true;
}

export function reconnecting(line: Line): Line["fetch"] {
  return async (url, init) => {
    const response = await line.fetch(url, init);
    if (!response.ok || !response.body || !response.headers.get("content-type")?.includes("text/event-stream")) return response;
    return new Response(whole(response.body, line, init.signal ?? null), { status: response.status, headers: response.headers });
  };
}

/** The frames of a run's stream, over as many connections as it takes. */
function whole(first: ReadableStream<Uint8Array>, line: Line, signal: AbortSignal | null): ReadableStream<Uint8Array> {
  const seen = new Position();
  let source = first.getReader();
  let received = 0;
  const encoder = new TextEncoder();

  const pull = async (controller: ReadableStreamDefaultController<Uint8Array>): Promise<void> => {
    try {
      const { done, value } = await source.read();
      if (!done) {
        const whole = seen.take(value);
        const frames = received < LONG_RUN ? whole : mergeDeltas(whole);
        received += value.length;
        const pause = pauseAfter(received);
        if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
        return frames ? controller.enqueue(encoder.encode(frames)) : pull(controller);
      }
      if (!seen.open) return controller.close();
    } catch (error) {
      if (signal?.aborted || !seen.open) throw error;
      if (!(await again())) throw error;
      return pull(controller);
    }
    // a proxy may end a stream properly in the middle of a run
    return (await again()) ? pull(controller) : controller.close();
  };
  const again = async (): Promise<boolean> => {
    line.onChange(true);
    try {
      for (let attempt = 0; await line.wait(attempt); attempt++) {
        if (signal?.aborted) return false;
        const response = await line.resume(seen.runId, seen.last, signal).catch(() => null);
        if (response === null) continue;
        if (!response.ok || !response.body) return false;
        seen.cut();
        source = response.body.getReader();
        return true;
      }
      return false;
    } finally {
      line.onChange(false);
    }
  };
  return new ReadableStream({ pull, cancel: (reason) => source.cancel(reason) });
}

/** Where a reader of a run stands: which run, the last event that arrived whole, and whether more must come. */
class Position {
  runId = "";
  last = 0;
  open = false;
  #rest = "";
  #decoder = new TextDecoder();

  /** The whole frames that these bytes complete. */
  take(bytes: Uint8Array): string {
    const text = this.#rest + this.#decoder.decode(bytes, { stream: true });
    const end = text.lastIndexOf("\n\n") + 1;
    this.#rest = end ? text.slice(end + 1) : text;
    if (!end) return "";
    const frames = text.slice(0, end + 1);
    for (const frame of frames.split("\n\n")) this.#note(frame);
    return frames;
  }

  /** The line broke: what was not whole comes again. */
  cut(): void {
    this.#rest = "";
    this.#decoder = new TextDecoder();
  }

  #note(frame: string): void {
    const id = /^id: ?(\d+)$/m.exec(frame)?.[1];
    if (id !== undefined) this.last = Number(id);
    const data = /^data: ?(.*)$/m.exec(frame)?.[1] ?? "";
    const type = /^\{"type":"(RUN_STARTED|RUN_FINISHED|RUN_ERROR)"/.exec(data)?.[1];
    if (type === undefined) return;
    this.open = type === "RUN_STARTED";
    if (this.open) this.runId = (JSON.parse(data) as { runId?: string }).runId ?? "";
  }
}
