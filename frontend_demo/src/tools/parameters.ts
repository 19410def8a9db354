/** Parameters of a tool as plain JSON Schema, in the form that CopilotKit takes: Standard Schema with a JSON Schema of its own. */

import type { StandardSchemaV1 } from "@copilotkit/shared";

export function parameters<T>(schema: Record<string, unknown>): StandardSchemaV1<T, T> {
  const jsonSchema = { input: () => schema, output: () => schema };
  return { "~standard": { version: 1, vendor: "agent-server", validate: (value: unknown) => ({ value: value as T }), jsonSchema } } as StandardSchemaV1<T, T>;
}
