/** Schemas of this page's tools are plain JSON Schema (see `parameters.ts`), so zod's converter (37 kB) is not shipped. */

export function zodToJsonSchema(): never {
  throw new Error("Describe a tool's parameters with parameters(), not with zod.");
}
