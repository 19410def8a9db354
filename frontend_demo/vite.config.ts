import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

const server = process.env.AGENT_SERVER_URL ?? "http://127.0.0.1:8000";

export default defineConfig({
  base: "./",
  plugins: [react()],
  build: {
    outDir: "../agent_server/static/demo",
    emptyOutDir: true,
    target: "es2022",
    chunkSizeWarningLimit: 1200,
    // Licence texts of the bundled packages stay in node_modules; the page ships code alone.
    license: false,
  },
  server: {
    proxy: Object.fromEntries(["/copilotkit", "/agui", "/demo", "/v1", "/ready", "/health"].map((path) => [path, server])),
  },
  test: { environment: "jsdom", include: ["src/**/*.test.{ts,tsx}"], restoreMocks: true },
});
