import { describe, expect, it } from "vitest";
import { luminance } from "../ui/theme";
import { predict } from "../panel/usePredicted";
import { schedule } from "../replay/agent";
import { replayAddress } from "../replay/load";
import { chooseAgent, readPlace, writePlace } from "../threads/place";
import { ago } from "../threads/Threads";
import { explain } from "../kit/core";
import { callOf, isApproval, payloadOf } from "./Approval";
import { stepsOf } from "./Plan";
import { failureOf, readResult, titleOf } from "./status";

describe("a plan", () => {
  it("reads steps in any shape that a model writes, also unfinished ones", () => {
    expect(stepsOf(["a", { description: "b", status: "disabled" }, { description: "c" }, { status: "enabled" }, null, 3])).toEqual([
      { description: "a", status: "enabled" },
      { description: "b", status: "disabled" },
      { description: "c", status: "enabled" },
    ]);
    expect(stepsOf(undefined)).toEqual([]);
  });
});

describe("an interrupt", () => {
  const approval = { type: "object", properties: { approved: { type: "boolean" } } };
  it("is an approval by its schema, and by its reason only where it has none", () => {
    expect(isApproval({ reason: "input_required", responseSchema: approval }, null)).toBe(true);
    expect(isApproval({ reason: "tool_call", responseSchema: { type: "string" } }, {})).toBe(false);
    expect(isApproval({ reason: "tool_call" }, null)).toBe(true);
    expect(isApproval({ reason: "mine:choice" }, null)).toBe(false);
  });

  it("finds the call that it asks about, and survives broken arguments", () => {
    const messages = [{ id: "a", role: "assistant", toolCalls: [{ id: "c", type: "function", function: { name: "send", arguments: '{"to":"x"}' } }, { id: "d", type: "function", function: { name: "send", arguments: '{"to' } }] }];
    const asked = (toolCallId?: string) => callOf({ id: "i", reason: "tool_call", ...(toolCallId ? { toolCallId } : {}) }, messages as never);
    expect(asked("c")).toEqual({ name: "send", args: { to: "x" } });
    expect(asked("d")).toEqual({ name: "send", args: {} });
    expect(asked()).toBeNull();
  });

  it("is about what it says itself, and otherwise about the last call with its id", () => {
    const call = (text: string) => ({ id: "c", type: "function", function: { name: "pay", arguments: text } });
    const messages = [{ id: "a", role: "assistant", toolCalls: [call('{"amount":1}')] }, { id: "b", role: "assistant", toolCalls: [call('{"amount":5}')] }];
    const asked = { id: "i", reason: "tool_call", toolCallId: "c" };
    expect(callOf(asked, messages as never)).toEqual({ name: "pay", args: { amount: 5 } });
    expect(callOf({ ...asked, metadata: { toolName: "pay", arguments: { amount: 900 } } }, messages as never)).toEqual({ name: "pay", args: { amount: 900 } });
    expect(callOf({ ...asked, metadata: { toolName: "pay", arguments: { amount: 900 } } }, [])).toEqual({ name: "pay", args: { amount: 900 } });
  });

  it("is answered with an object or with the one value, as its schema says", () => {
    expect(payloadOf({ colour: "red" }, { type: "object" })).toEqual({ colour: "red" });
    expect(payloadOf({ answer: "red" }, { type: "string" })).toBe("red");
    expect(payloadOf({ answer: "red" }, undefined)).toBe("red");
  });
});

describe("a tool card", () => {
  it("reads results, failures and names", () => {
    expect(readResult('{"a":1}')).toEqual({ a: 1 });
    expect(readResult("plain")).toBe("plain");
    expect(failureOf('{"error":{"message":"no"}}')).toBe("no");
    expect(failureOf('{"error":"no"}')).toBe("no");
    expect(failureOf("Error: no")).toBe("Error: no");
    expect(failureOf('{"errors":0}')).toBeNull();
    expect([titleOf("get_weather"), titleOf("getWeather"), titleOf("add-it")]).toEqual(["Get weather", "Get weather", "Add it"]);
  });
});

describe("predicted state", () => {
  it("follows the announced argument of the announced tool alone", () => {
    const rules = [{ state_key: "doc", tool: "write", tool_argument: "text" }];
    expect(predict(rules, "write", { text: "half", other: 1 })).toEqual({ doc: "half" });
    expect(predict(rules, "write", {})).toEqual({});
    expect(predict(rules, "read", { text: "x" })).toEqual({});
  });
});

describe("the place", () => {
  it("comes back from the address", () => {
    const place = { agentId: "cook & co", threadId: "t/1" };
    expect(readPlace(writePlace(place))).toEqual(place);
    expect(readPlace("").agentId).toBe("");
    expect(readPlace("").threadId).not.toBe(readPlace("").threadId);
  });

  it("names an agent that exists", () => {
    expect(chooseAgent("", ["default", "demo"])).toBe("demo");
    expect(chooseAgent("", ["default"])).toBe("default");
    expect(chooseAgent("gone", ["default", "demo"])).toBe("demo");
    expect(chooseAgent("default", ["default", "demo"])).toBe("default");
  });
});

describe("a replay", () => {
  const at = (time: number | null) => ({ at: time, event: { type: "RAW" } });
  it("keeps the recorded pace, cuts long silences, and is even where no time is known", () => {
    expect(schedule([at(0), at(50), at(60_000), at(60_010)])).toEqual([0, 50, 2050, 2060]);
    expect(schedule([at(null), at(null)])).toEqual([30, 60]);
    expect(schedule([at(100), at(90)])).toEqual([0, 0]);
  });

  it("is asked for in the address", () => {
    expect(replayAddress("?replay=log.jsonl")).toBe("log.jsonl");
    expect(replayAddress("?replay")).toBe("");
    expect(replayAddress("")).toBeNull();
  });
});

describe("words", () => {
  it("finds the server's sentence in an error of any wire", () => {
    expect(explain('HTTP 503: {"error":"Overloaded","message":"Too many runs."}')).toBe("Too many runs.");
    expect(explain('{"error":{"code":"x","message":"No."}}')).toBe("No.");
    expect(explain("HTTP 502: <html>")).toBeNull();
    expect(explain("{broken")).toBeNull();
  });

  it("says how long ago", () => {
    const now = Date.parse("2026-01-02T12:00:00Z");
    expect(ago("2026-01-02T11:59:50Z", now)).toBe("just now");
    expect(ago("2026-01-02T10:00:00Z", now)).toBe("2 hours ago");
    expect(ago("2026-01-01T11:00:00Z", now)).toBe("yesterday");
  });

  it("weighs colours as WCAG does", () => {
    expect(luminance("rgb(255, 255, 255)")).toBeCloseTo(1);
    expect(luminance("rgb(0, 128, 128)")).toBeCloseTo(0.17, 2);
    expect(luminance("nothing")).toBe(1);
  });
});
