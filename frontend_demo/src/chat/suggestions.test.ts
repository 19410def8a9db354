import { expect, test } from "vitest";
import { suggestionsFor } from "./suggestions";

const titles = (given: Parameters<typeof suggestionsFor>[0]): string[] => suggestionsFor(given).map((one) => one.title);
const PAGE = [{ name: "generate_task_steps" }, { name: "change_background" }];

test("an agent without tools is offered none, and a model without a way to call them only itself", () => {
  expect(titles({ tools: PAGE, bundled: true, state: {} })).toEqual(["Plan a trip to Rome", "Make the background teal", "What can you do?", "Load a real model"]);
  expect(suggestionsFor({ tools: [], bundled: true, changeable: true, state: {} }).at(-1)).toMatchObject({ title: "Get a real model", opens: "model" });
  expect(titles({ tools: [], bundled: false, state: {} })).toEqual(["What can you do?"]);
});

test("an unknown tool is offered in the words of its declaration, and is finished by the person where it needs a value", () => {
  const tools = [
    { name: "count_slowly", description: "Count, and say how far." },
    { name: "add_ingredient", description: "Add an ingredient.\nOne at a time.", parameters: { required: ["name"], properties: { name: {} } } },
  ];
  expect(suggestionsFor({ tools, bundled: false, state: {} }).slice(0, 2)).toEqual([
    { icon: "tool", title: "Count slowly", about: "Count, and say how far.", prompt: "Count slowly" },
    { icon: "tool", title: "Add ingredient", about: "Add an ingredient.", prompt: "Add ingredient, name: ", unfinished: true },
  ]);
});

test("what the agent and the page share is offered to be seen, once there is something", () => {
  expect(titles({ tools: [], bundled: false, state: { document: "" } })).toEqual(["What can you do?"]);
  expect(suggestionsFor({ tools: [], bundled: false, state: { document: "# Owls" } })[0]).toMatchObject({ title: "See the document", opens: "document" });
  expect(suggestionsFor({ tools: [], bundled: false, state: { title: "Soup" } })[0]).toMatchObject({ title: "See the shared state", opens: "state" });
});
