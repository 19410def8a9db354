import { act } from "react";
import { createRoot, type Root } from "react-dom/client";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Composer } from "./Composer";

const onSend = vi.fn(async () => null);
const onStop = vi.fn();
let root: Root;

beforeEach(() => {
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  onSend.mockClear();
  onStop.mockClear();
  document.body.innerHTML = "<div id='root'></div>";
  root = createRoot(document.getElementById("root")!);
});
afterEach(() => {
  act(() => root.unmount());
  vi.unstubAllGlobals();
});

const show = (props: { threadId?: string; running?: boolean; failed?: boolean; disabled?: string | null }) =>
  act(async () => root.render(<Composer threadId="t" running={false} failed={false} disabled={null} draft={null} takes={{ image: false, audio: false, document: false }} heldBytes={0} onSend={onSend} onStop={onStop} {...props} />));
const area = () => document.querySelector("textarea")!;
const notice = () => document.querySelector(".queued")?.textContent ?? "";
const press = (key: string) => act(async () => void area().dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true })));
const write = async (text: string) => {
  await act(async () => {
    Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value")!.set!.call(area(), text);
    area().dispatchEvent(new Event("input", { bubbles: true }));
  });
  await press("Enter");
};

test("what is sent during an answer waits visibly and goes when the answer is complete", async () => {
  await show({ running: true });
  await write("and then?");
  expect(notice()).toContain("This is sent when the answer is complete.");
  expect(onSend).not.toHaveBeenCalled();
  await show({ disabled: "Waiting for your answer" });
  expect(onSend).not.toHaveBeenCalled();
  await show({});
  expect(onSend).toHaveBeenCalledExactlyOnceWith("and then?", []);
  expect(notice()).toBe("");
});

test.each([["a failure", { failed: true }], ["another conversation", { threadId: "other" }]])("a waiting message is not sent after %s", async (_, next) => {
  await show({ running: true });
  await write("and then?");
  await show(next);
  await show({ ...next, failed: false });
  expect(onSend).not.toHaveBeenCalled();
  expect(area().value).toBe("and then?");
});

test("stopping the answer keeps the waiting message in the box", async () => {
  await show({ running: true });
  await write("and then?");
  await press("Escape");
  await show({});
  expect(onStop).toHaveBeenCalledOnce();
  expect(onSend).not.toHaveBeenCalled();
  expect(area().value).toBe("and then?");
});
