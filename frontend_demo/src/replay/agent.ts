/** An agent that plays a recorded run instead of asking a server: same page, same events, same order, same pace. */

import { AbstractAgent, type BaseEvent, type RunAgentInput } from "@ag-ui/client";
import { Observable } from "rxjs";
import type { AgEvent } from "../stream/describe";
import { addChunk, addEvent, empty, type Logged, type Recording } from "../stream/record";
import type { StreamStore } from "../stream/store";

export const REPLAY_ID = "replay";
const EVEN_MS = 30;
const LONGEST_MS = 2_000;

/** When each event is due, in milliseconds from the start: as recorded, with long silences cut; evenly if unknown. */
export function schedule(log: readonly Logged[]): number[] {
  let due = 0;
  let before = log[0]?.at ?? null;
  return log.map(({ at }) => {
    due += at === null || before === null ? EVEN_MS : Math.min(Math.max(0, at - before), LONGEST_MS);
    before = at;
    return due;
  });
}

export class ReplayAgent extends AbstractAgent {
  readonly #log: readonly Logged[];
  readonly #chunks: readonly string[][];
  readonly #store: StreamStore;
  readonly #due: number[];
  #position = 0;
  #paused = false;
  #speed = 1;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #recording: Recording = empty();
  #emit: ((event: AgEvent | null) => void) | null = null;
  onProgress: (position: number) => void = () => undefined;

  constructor(log: readonly Logged[], chunks: readonly string[][], store: StreamStore) {
    super({ agentId: REPLAY_ID });
    this.#log = log;
    this.#chunks = chunks;
    this.#store = store;
    this.#due = schedule(log);
  }

  get length(): number {
    return this.#log.length;
  }

  pause(paused: boolean): void {
    this.#paused = paused;
    clearTimeout(this.#timer);
    if (!paused) this.#next();
  }

  set speed(value: number) {
    this.#speed = value;
    this.pause(this.#paused);
  }

  run(_input: RunAgentInput): Observable<BaseEvent> {
    return new Observable((subscriber) => {
      this.#position = 0;
      this.#recording = empty("replay", 0);
      this.#store.show(this.#recording);
      this.#emit = (event) => (event ? subscriber.next(event as unknown as BaseEvent) : subscriber.complete());
      this.#next();
      return () => clearTimeout(this.#timer);
    });
  }

  override abortRun(): void {
    this.pause(true);
  }

  #next(): void {
    if (this.#paused || !this.#emit) return;
    const logged = this.#log[this.#position];
    if (!logged) return this.#emit(null);
    const now = this.#position ? (this.#due[this.#position - 1] ?? 0) : 0;
    const wait = ((this.#due[this.#position] ?? 0) - now) / this.#speed;
    this.#timer = setTimeout(() => this.#play(logged), wait);
  }

  #play({ event }: Logged): void {
    const at = this.#position++;
    addEvent(this.#recording, this.#position, event, this.#due[at] ?? 0);
    for (const chunk of this.#chunks[at] ?? []) addChunk(this.#recording, this.#position, chunk);
    this.#store.touch();
    this.#emit?.(event);
    this.onProgress(this.#position);
    this.#next();
  }
}
