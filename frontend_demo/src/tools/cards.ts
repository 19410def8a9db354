/** How tool calls look: fetched with the first call, so that a first visit need not wait for it. */

export { Background } from "./Background";
export { DocumentCard } from "./DocumentCard";
export { Haiku } from "./Haiku";
export { Plan } from "./Plan";
export { ToolCard } from "./ToolCard";
export { Weather } from "./Weather";
