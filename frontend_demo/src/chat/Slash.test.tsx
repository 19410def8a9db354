import { act } from "react";
import { createRoot, type Root } from "react-dom/client";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { entriesOf, matchingEntries, Slash } from "./Slash";

const argument = { name: "code", title: "Code", description: null, required: true };
const SERVERS = [{
  name: "notes",
  prompts: [{ name: "greet", title: null, description: "Say hello.", arguments: [] }, { name: "review", title: null, description: null, arguments: [argument] }],
  resources: [{ uri: "notes://today", name: "today", title: null, description: null }],
  resourceTemplates: [
    { uriTemplate: "notes://day/{day}", name: "of a day", title: null, description: null, variables: [{ name: "day", required: true }] },
    { uriTemplate: "notes://{unreadable", name: "unreadable", title: null, description: null, variables: [] },
  ],
  completions: true,
}];
const onMessages = vi.fn();
const onContent = vi.fn();
const onClose = vi.fn();
const fetched = vi.fn(async (input: string, init: RequestInit = {}) => {
  const body = init.body ? (JSON.parse(String(init.body)) as { arguments?: object; value?: string }) : null;
  if (input.endsWith("/complete")) return new Response(JSON.stringify({ values: ["monday", "tuesday"].filter((one) => one.startsWith(body?.value ?? "")), total: 2, hasMore: false }));
  const answer = input.endsWith("/agui/mcp") ? { servers: SERVERS } : input.endsWith("/prompt") ? { messages: [{ id: "m", role: "user", content: JSON.stringify(body?.arguments) }] } : { content: [{ type: "text", text: "Buy milk." }] };
  return new Response(JSON.stringify(answer));
});
let root: Root;

beforeEach(() => {
  vi.stubGlobal("IS_REACT_ACT_ENVIRONMENT", true);
  vi.stubGlobal("matchMedia", () => ({ matches: false }));
  vi.stubGlobal("fetch", fetched);
  document.body.innerHTML = "<textarea id='message'></textarea><div id='root'></div>";
  root = createRoot(document.getElementById("root")!);
});
afterEach(() => {
  vi.useRealTimers();
  act(() => root.unmount());
  vi.unstubAllGlobals();
  vi.clearAllMocks();
});

const show = (words: string) => act(async () => root.render(<Slash words={words} onMessages={onMessages} onContent={onContent} onClose={onClose} />));
const press = (key: string) => act(async () => {
  const event = new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true });
  document.getElementById("message")!.dispatchEvent(event);
  return event;
});
const field = () => document.querySelector<HTMLInputElement>(".field")!;
const type = (text: string) => act(async () => {
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, "value")!.set!.call(field(), text);
  field().dispatchEvent(new Event("input", { bubbles: true }));
});
const pause = () => act(async () => void (await vi.advanceTimersByTimeAsync(200)));
const suggested = () => [...document.querySelectorAll<HTMLOptionElement>(`[id="${field().getAttribute("list")}"] option`)].map(({ value }) => value);
const completions = () => fetched.mock.calls.filter(([input]) => input.endsWith("/complete")).map(([, init]) => JSON.parse(String(init?.body)) as object);
const options = () => [...document.querySelectorAll("[role=option] span")].map((one) => one.textContent);

test("names that begin with the words come first, prompts before resources", () => {
  const entries = entriesOf(SERVERS);
  expect(matchingEntries(entries, "").map(({ name }) => name)).toEqual(["greet", "review", "today", "of a day"]);
  expect(matchingEntries(entries, "RE").map(({ name }) => name)).toEqual(["review", "greet"]);
  expect(matchingEntries(entries, "usr/bin")).toEqual([]);
});

test("a prompt without arguments is sent with Enter", async () => {
  await show("");
  expect(options()).toEqual(["/greet", "/review", "today", "of a day"]);
  await press("Enter");
  expect(onMessages).toHaveBeenCalledExactlyOnceWith([{ id: "m", role: "user", content: "{}" }]);
  expect(onClose).toHaveBeenCalledOnce();
});

test("a prompt with arguments asks for them in a form", async () => {
  await show("rev");
  await press("Enter");
  const button = () => document.querySelector<HTMLButtonElement>(".primary")!;
  expect(button().disabled).toBe(true);
  expect(document.activeElement).toBe(field());
  await type("x = 1");
  await act(async () => button().click());
  expect(onMessages).toHaveBeenCalledExactlyOnceWith([{ id: "m", role: "user", content: '{"code":"x = 1"}' }]);
});

test("a resource is added to what is written", async () => {
  await show("");
  await press("ArrowUp");
  await press("ArrowUp");
  await press("Enter");
  expect(onContent).toHaveBeenCalledExactlyOnceWith([{ type: "text", text: "Buy milk." }], "today");
});

test("what the server refuses is said, and keys go to the message where nothing matches", async () => {
  await show("");
  fetched.mockResolvedValueOnce(new Response(JSON.stringify({ message: "The MCP server notes is away." }), { status: 503 }));
  await press("Enter");
  expect(document.querySelector("[role=alert]")?.textContent).toBe("The MCP server notes is away.");
  await show("zzz");
  const event = new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true });
  document.getElementById("message")!.dispatchEvent(event);
  expect(event.defaultPrevented).toBe(false);
});

test("a template is filled in with the help of its server, and read", async () => {
  vi.useFakeTimers();
  await show("of a");
  await press("Enter");
  await pause();
  expect(suggested()).toEqual(["monday", "tuesday"]);
  await type("t");
  await type("tu");
  await pause();
  expect(suggested()).toEqual(["tuesday"]);
  const asked = { server: "notes", uriTemplate: "notes://day/{day}", argument: "day" };
  expect(completions()).toEqual([{ ...asked, value: "", arguments: {} }, { ...asked, value: "tu", arguments: { day: "tu" } }]);
  await act(async () => document.querySelector<HTMLButtonElement>(".primary")!.click());
  expect(onContent).toHaveBeenCalledExactlyOnceWith([{ type: "text", text: "Buy milk." }], "of a day");
  expect(JSON.parse(String(fetched.mock.lastCall![1]!.body))).toEqual({ server: "notes", uri: "notes://day/{day}", arguments: { day: "tu" } });
});

test("without suggestions the form works all the same", async () => {
  vi.useFakeTimers();
  await show("rev");
  await press("Enter");
  fetched.mockResolvedValueOnce(new Response(JSON.stringify({ message: "The MCP server notes did not answer within 5 s." }), { status: 504 }));
  await pause();
  expect(completions()).toEqual([{ server: "notes", prompt: "review", argument: "code", value: "", arguments: {} }]);
  expect(document.querySelector("[role=alert], datalist")).toBeNull();
  await type("x");
  await act(async () => document.querySelector<HTMLButtonElement>(".primary")!.click());
  expect(onMessages).toHaveBeenCalledOnce();
});

test("a server without completions is not asked for them", async () => {
  vi.useFakeTimers();
  fetched.mockResolvedValueOnce(new Response(JSON.stringify({ servers: [{ ...SERVERS[0], completions: false }] })));
  await show("rev");
  await press("Enter");
  await type("x");
  await pause();
  expect(completions()).toEqual([]);
});
