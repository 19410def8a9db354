import { describe, expect, it } from "vitest";
import { FrameReader } from "./sse";

const STREAM = ': keep-alive\n\nevent: agui\nid: 7\ndata: {"a":"é"}\n\ndata: one\ndata: two\n\nid: 8\n\ndata: [DONE]\n\n';

describe("server-sent events", () => {
  it("do not depend on how the stream is cut", () => {
    const whole = new FrameReader().feed(STREAM);
    for (let size = 1; size < 12; size++) {
      const reader = new FrameReader();
      const frames = [];
      for (let at = 0; at < STREAM.length; at += size) frames.push(...reader.feed(STREAM.slice(at, at + size)));
      expect(frames).toEqual(whole);
    }
    expect(whole).toEqual([
      { id: "7", event: "agui", data: '{"a":"é"}' },
      { id: "", event: "message", data: "one\ntwo" },
      { id: "", event: "message", data: "[DONE]" },
    ]);
  });
});
