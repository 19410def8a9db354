import react from "@vitejs/plugin-react";
import { fileURLToPath } from "node:url";
import { defineConfig } from "vitest/config";
import { LEAD } from "./src/chat/early.ts";

const local = (path: string): string => fileURLToPath(new URL(path, import.meta.url));

const server = process.env.AGENT_SERVER_URL ?? "http://127.0.0.1:8000";

/** The page's own words are put in, and are painted before the large script is waited for. */
const early = (html: string): string =>
  html.replace("<!--lead-->", LEAD).replace(/<script type="module"|<link rel="modulepreload"/g, '$& fetchpriority="low"');

export default defineConfig({
  base: "./",
  plugins: [react(), { name: "lead", transformIndexHtml: { order: "post", handler: early } }],
  resolve: {
    alias: [
      // Each @ag-ui package brings a zod of its own, all with the same interface: one copy is enough.
      { find: /^zod(\/v3)?$/, replacement: local("node_modules/zod/v3/index.js") },
      { find: "@ag-ui/proto", replacement: local("src/kit/absent/proto.ts") },
      { find: "@tanstack/devtools-event-client", replacement: local("src/kit/absent/devtools.ts") },
      { find: "zod-to-json-schema", replacement: local("src/kit/absent/zodSchema.ts") },
      { find: "phoenix", replacement: local("src/kit/absent/phoenix.ts") },
    ],
  },
  build: {
    outDir: "../agent_server/static/demo",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    // Licence texts of the bundled packages stay in node_modules; the page ships code alone.
    license: false,
    // What the first screen needs is one file: parts that are shared with later ones would each cost a request.
    rolldownOptions: { output: { codeSplitting: { groups: [{ name: "first", tags: ["$initial"] }] } } },
  },
  server: {
    proxy: Object.fromEntries(["/copilotkit", "/agui", "/demo", "/v1", "/ready", "/health"].map((path) => [path, server])),
  },
  test: { server: { deps: { inline: [/@ag-ui/, /@copilotkit/, "zod-to-json-schema"] } }, environment: "jsdom", include: ["src/**/*.test.{ts,tsx}"], restoreMocks: true },
});
