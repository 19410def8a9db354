import { expect, test } from "vitest";
import type { AgEvent } from "../stream/describe";
import { addEvent, empty } from "../stream/record";
import { waitsFor } from "./waiting";

const after = (...events: AgEvent[]) => {
  const recording = empty("r");
  events.forEach((event, index) => addEvent(recording, index + 1, event, index));
  return waitsFor(recording, null);
};
const STARTED = { type: "RUN_STARTED" };
const QUEUED = { type: "CUSTOM", name: "agent_server.waiting", value: { behind: ["r0"] } };

test("a run says what it waits for, as far as the server told", () => {
  expect(after()).toBe("Waiting for the model");
  expect(after(STARTED)).toBe("Waiting for the model");
  expect(after(STARTED, QUEUED)).toBe("Waiting for the run before this one");
  expect(after(STARTED, QUEUED, { type: "STEP_STARTED" })).toBe("Reading the prompt");
  expect(waitsFor(empty("r"), "The model is loading (20 %)")).toBe("The model is loading (20 %)");
});

test("a run that is over tells nothing about the next", () => {
  expect(after(STARTED, QUEUED, { type: "RUN_FINISHED" })).toBe("Waiting for the model");
});
