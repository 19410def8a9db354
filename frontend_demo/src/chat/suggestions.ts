/** What the page offers to ask: only what the agent that answers can do, with the tools that it and this page have. */

import { titleOf } from "../tools/status";
import type { IconName } from "../ui/icons";

export interface Suggestion {
  icon: IconName;
  title: string;
  about: string;
  prompt: string;
  /** The prompt lacks a word that only the person knows: it is put into the composer, and not sent. */
  unfinished?: boolean;
  /** A tab of the inspector to open, in place of asking something. */
  opens?: "state" | "document" | "model";
}

export interface ToolInfo {
  name: string;
  description?: string;
  parameters?: { properties?: Record<string, unknown>; required?: readonly string[] };
}

/** What an agent has to offer. tools: its own and the page's; none where the model has no way to call one. */
export interface Abilities {
  tools: readonly ToolInfo[];
  bundled: boolean;
  /** Another model can be chosen on the page. */
  changeable?: boolean;
  /** What the agent and the page share at the moment. */
  state: Readonly<Record<string, unknown>>;
}

const MOST_TOOLS = 6;

/** Questions for tools whose use is known; each shows a different part of the page. */
const KNOWN: Readonly<Record<string, Suggestion>> = {
  get_weather: { icon: "cloud", title: "Weather in Oslo", about: "A tool that the server runs", prompt: "What is the weather in Oslo?" },
  calculate: { icon: "calculator", title: "12 × 7", about: "A call and its result", prompt: "What is 12*7?" },
  generate_task_steps: { icon: "list", title: "Plan a trip to Rome", about: "Steps that you edit and confirm", prompt: "Plan a trip to Rome" },
  change_background: { icon: "brush", title: "Make the background teal", about: "A tool that this page runs", prompt: "Make the background teal" },
  send_email: { icon: "mail", title: "Send an email", about: "Waits for your approval", prompt: "Send an email to anna@example.com about lunch" },
  search: { icon: "search", title: "Search for threads", about: "Another tool of the server", prompt: "Search for threads" },
};
const ABILITIES: Suggestion = { icon: "question", title: "What can you do?", about: "The model about itself", prompt: "What can you do?" };
const REAL: Suggestion = { icon: "chip", title: "Load a real model", about: "How to leave the demo", prompt: "How do I load a real model?" };
const CHOOSE: Suggestion = { icon: "chip", title: "Get a real model", about: "Choose one for this machine", prompt: "", opens: "model" };

export function suggestionsFor({ tools, bundled, changeable = false, state }: Abilities): Suggestion[] {
  const known = Object.entries(KNOWN).flatMap(([name, one]) => (tools.some((tool) => tool.name === name) ? [one] : []));
  const others = tools.filter((tool) => KNOWN[tool.name] === undefined).map(derived);
  const shared = Object.keys(state).filter((name) => state[name] !== null && state[name] !== "");
  const offers = [...known, ...others].slice(0, MOST_TOOLS);
  return [...offers, ...(shared.length ? [look(shared)] : []), ABILITIES, ...(bundled ? [changeable ? CHOOSE : REAL] : [])];
}

/** Shows what the conversation shares; asks the model nothing. */
function look(shared: readonly string[]): Suggestion {
  const opens = shared.includes("document") ? "document" : "state";
  return { icon: "document", title: `See the ${opens === "document" ? "document" : "shared state"}`, about: shared.map((name) => titleOf(name).toLowerCase()).join(", "), prompt: "", opens };
}

/** A question for a tool of which only its declaration is known. */
function derived(tool: ToolInfo): Suggestion {
  const title = titleOf(tool.name);
  const needs = tool.parameters?.required ?? [];
  const prompt = needs.length ? `${title}, ${needs.map((name) => titleOf(name).toLowerCase()).join(" and ")}: ` : title;
  return { icon: "tool", title, about: tool.description?.split("\n")[0] || "A tool of this agent", prompt, ...(needs.length ? { unfinished: true } : {}) };
}
