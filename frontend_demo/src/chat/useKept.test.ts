import type { Message } from "@ag-ui/core";
import { expect, test } from "vitest";
import { versionsOf, withVersions } from "./useKept";

const said = (id: string, role: "user" | "assistant", content = id): Message => ({ id, role, content });
const removal = (kind: string, afterId: string | null, removedAt: number, messages: Message[]) => ({ kind, afterId, removedAt, messages });

test("answers that were asked again and questions that had other words are versions of their question", () => {
  const removed = [
    removal("regenerated", "q1", 2, [said("a1b", "assistant")]),
    removal("regenerated", "q1", 1, [said("a1", "assistant")]),
    removal("edited", "a1c", 3, [said("q2", "user", "before"), said("a2", "assistant")]),
    removal("deleted", "q1", 4, [said("x", "assistant")]),
  ];
  const found = versionsOf(removed);
  expect([...found].map(([id, versions]) => [id, versions.map((version) => version.map((message) => message.id))])).toEqual([
    ["q1", [["a1"], ["a1b"]]],
    ["q2", [["q2", "a2"]]],
  ]);
});

test("a chosen version stands in place of what follows its question", () => {
  const messages = [said("q1", "user"), said("a1c", "assistant"), said("q2", "user", "after"), said("a2b", "assistant")];
  const versions = new Map([["q1", [[said("a1", "assistant")]]], ["q2", [[said("q2", "user", "before"), said("a2", "assistant")]]]]);
  const now = withVersions(messages, versions, new Map());
  expect(now.messages).toEqual(messages);
  expect([...now.pagers]).toEqual([["a1c", { id: "q1", shown: 1, count: 2 }], ["a2b", { id: "q2", shown: 1, count: 2 }]]);
  const edited = withVersions(messages, versions, new Map([["q2", 0]]));
  expect(edited.messages.map(({ content }) => content)).toEqual(["q1", "a1c", "before", "a2"]);
  expect(edited.pagers.get("a2")).toEqual({ id: "q2", shown: 0, count: 2 });
  const first = withVersions(messages, versions, new Map([["q1", 0]]));
  expect(first.messages.map(({ id }) => id)).toEqual(["q1", "a1"]);
});
