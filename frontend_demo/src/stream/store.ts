/** Follows the running generation on two wires over one connection, and tells React once a frame. */

import type { RunAgentInput } from "@ag-ui/core";
import { useSyncExternalStore } from "react";
import { ask, ServerError } from "../kit/core";
import { patience } from "../kit/reconnect";
import type { AgEvent } from "./describe";
import { frames, type Frame } from "./sse";
import { addChunk, addEvent, empty, type Recording } from "./record";

export interface View {
  recording: Recording;
  /** Grows with every change: the recording itself is appended to in place. */
  version: number;
  /** Why there is nothing to see, for a person. */
  trouble: string | null;
}

const GRACE_MS = 60;
/** Runs whose times are remembered: read once more, they would be known by their order alone. */
const REMEMBERED = 30;
const NOTHING = 204;
/** All rows are read each time that React is told, so that it is told less often the more there are. */
const ROWS_PER_MS = 40;

export class StreamStore {
  #view: View = { recording: empty(), version: 0, trouble: null };
  #listeners = new Set<() => void>();
  #scheduled = false;
  #stop: AbortController | null = null;
  #asked: { at: number; input?: RunAgentInput } = { at: 0 };
  #followed = new Map<string, Recording>();

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  view = (): View => this.#view;

  /** A request leaves now: the time to the first token counts from here. */
  asked(input: RunAgentInput): void {
    this.#asked = { at: performance.now(), input };
  }

  /** Follow this run from its first event. One that a reload joins is given a moment first: a replay of a run that is
   * over passes by unfollowed. */
  follow(runId: string, messages: readonly unknown[], joined: (() => boolean) | null): void {
    this.#stop?.abort();
    const stop = new AbortController();
    this.#stop = stop;
    const recording = empty(runId, joined ? 0 : this.#asked.at, messages);
    recording.joined = joined !== null;
    if (!joined) {
      if (this.#asked.input) recording.input = this.#asked.input;
      this.#remember(recording);
      return void this.#read(recording, stop.signal);
    }
    setTimeout(() => {
      if (!stop.signal.aborted && joined()) void this.#read(recording, stop.signal);
    }, GRACE_MS);
  }

  /** A run that is over. If its events are not kept any more, what `remains` reads in their place. */
  async past(runId: string, remains: () => Promise<Recording>): Promise<void> {
    this.#stop?.abort();
    const followed = this.#followed.get(runId);
    if (followed?.over) return this.show(followed);
    const stop = new AbortController();
    this.#stop = stop;
    const recording = { ...empty(runId), joined: true };
    await this.#read(recording, stop.signal);
    if (stop.signal.aborted || recording.rows.length) return;
    const found = await remains().catch(() => null);
    if (found && !stop.signal.aborted) this.#change({ recording: found, trouble: null });
  }

  #remember(recording: Recording): void {
    this.#followed.set(recording.runId, recording);
    const [oldest] = this.#followed.keys();
    if (this.#followed.size > REMEMBERED && oldest !== undefined) this.#followed.delete(oldest);
  }

  show(recording: Recording): void {
    this.#stop?.abort();
    this.#change({ recording, trouble: null });
  }

  clear(): void {
    this.show(empty());
  }

  touch(): void {
    this.#change({});
  }

  async #read(recording: Recording, signal: AbortSignal, attempt = 0, known = 0): Promise<void> {
    this.#change({ recording, trouble: null });
    try {
      // The run that a replay announces may be long over: then there is nothing to see, and that is no error.
      const unknown = recording.joined ? "&unknown=empty" : "";
      const response = await ask(`demo/runs/${encodeURIComponent(recording.runId)}/wires?wire=agui&wire=openai${unknown}`, { signal });
      if (response.status === NOTHING || !response.body) return;
      for await (const frame of frames(response.body)) if (!(Number(frame.id) <= known)) this.#add(recording, frame);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ServerError || !(await patience(attempt)) || signal.aborted) return this.#change({ trouble: trouble(error) });
      recording.rows.pop(); // the frames of the last event may have been cut in two
      await this.#read(recording, signal, attempt + 1, recording.rows.at(-1)?.sequence ?? 0);
    }
  }

  #add(recording: Recording, frame: Frame): void {
    const sequence = Number(frame.id);
    if (frame.event === "agui") addEvent(recording, sequence, JSON.parse(frame.data) as AgEvent, performance.now());
    else addChunk(recording, sequence, frame.data);
    if (this.#view.recording === recording) this.#change({});
  }

  #change(part: Partial<View>): void {
    this.#view = { ...this.#view, ...part, version: this.#view.version + 1 };
    if (this.#scheduled) return;
    this.#scheduled = true;
    const tell = () => requestAnimationFrame(() => {
      this.#scheduled = false;
      for (const listener of this.#listeners) listener();
    });
    const wait = this.#view.recording.over ? 0 : this.#view.recording.rows.length / ROWS_PER_MS;
    if (wait < 1) tell();
    else setTimeout(tell, wait);
  }
}

function trouble(error: unknown): string {
  if (error instanceof ServerError) return error.message;
  return "The connection to the stream was lost.";
}

export function useStream(store: StreamStore): View {
  return useSyncExternalStore(store.subscribe, store.view);
}
