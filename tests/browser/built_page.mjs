// Applications that are not ours, a folder each: built once by the demo's Vite, and served from an origin of their own.
import { execFileSync } from "node:child_process";
import { createReadStream, existsSync, statSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { root } from "./harness.mjs";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".woff2": "font/woff2" };

/** The files of the application in `tests/browser/NAME`, on a free port; `origin` is their address. */
export async function servePage(name) {
  const source = path.join(root, "tests/browser", name);
  build(source);
  const files = http.createServer((request, response) => serveFile(path.join(source, "dist"), request, response)).listen(0, "127.0.0.1");
  await new Promise((resolve) => files.once("listening", resolve));
  return { origin: `http://127.0.0.1:${files.address().port}`, close: () => files.close() };
}

function build(source) {
  const newest = Math.max(...["main.tsx", "index.html", "vite.config.mjs"].map((name) => statSync(path.join(source, name)).mtimeMs));
  const built = path.join(source, "dist/index.html");
  if (existsSync(built) && statSync(built).mtimeMs > newest) return;
  const vite = path.join(root, "frontend_demo/node_modules/vite/bin/vite.js");
  execFileSync(process.execPath, [vite, "build", "--config", path.join(source, "vite.config.mjs")], { cwd: source, stdio: "inherit" });
}

function serveFile(dist, request, response) {
  const name = path.normalize(new URL(request.url, "http://x").pathname).replace(/^\/$/, "/index.html");
  const file = path.join(dist, name);
  if (!file.startsWith(dist) || !existsSync(file)) return response.writeHead(404).end();
  response.writeHead(200, { "content-type": TYPES[path.extname(file)] ?? "application/octet-stream" });
  createReadStream(file).pipe(response);
}
