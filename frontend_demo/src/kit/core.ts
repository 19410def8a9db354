/** The CopilotKit client of this page: one instance, pointed at the server that served the page. */

import { CopilotKitCoreReact } from "@copilotkit/react-core/v2/headless";

export const base = new URL(".", document.baseURI);
export const url = (path: string): string => new URL(path, base).toString().replace(/\/$/, "");
export const RUNTIME_URL = url("copilotkit");

const KEY = "agent-server.api-key";
const THROTTLE_MS = 24;

export function apiKey(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export function authorization(): Record<string, string> {
  const key = apiKey();
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export function createCore(): CopilotKitCoreReact {
  const core = new CopilotKitCoreReact({
    runtimeUrl: RUNTIME_URL,
    deferInitialConnection: true,
    runtimeTransport: "rest",
    headers: authorization(),
  });
  core.setDefaultThrottleMs(THROTTLE_MS);
  return core;
}

export function useKey(core: CopilotKitCoreReact, key: string): void {
  try {
    localStorage.setItem(KEY, key);
  } catch {
    // Storage may be closed to us; the key then lasts as long as the page.
  }
  core.setHeaders({ Authorization: `Bearer ${key}` });
}

/** A request to this server with the page's key; throws an Error that carries the server's own sentence. */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { ...authorization(), ...(init.body ? { "content-type": "application/json" } : {}), ...init.headers };
  const response = await fetch(url(path), { ...init, headers });
  if (!response.ok) throw new ServerError(response.status, await sentence(response));
  return response;
}

export class ServerError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

async function sentence(response: Response): Promise<string> {
  return explain(await response.text().catch(() => "")) ?? `The server answered ${response.status}.`;
}

/** The human sentence inside an error body of any of the server's wires, or null. */
export function explain(text: string): string | null {
  const start = text.indexOf("{");
  if (start < 0) return null;
  try {
    const body = JSON.parse(text.slice(start)) as { message?: unknown; error?: { message?: unknown } };
    const found = body.message ?? body.error?.message;
    return typeof found === "string" ? found : null;
  } catch {
    return null;
  }
}
