// Puts what the page /docs needs beside the demo: Swagger UI as its package ships it, and the one call that starts it.
import { copyFile, mkdir, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";

const source = dirname(createRequire(import.meta.url).resolve("swagger-ui-dist/package.json"));
const target = new URL("../../agent_server/static/demo/reference/", import.meta.url).pathname;

await mkdir(target, { recursive: true });
for (const file of ["swagger-ui-bundle.js", "swagger-ui.css", "LICENSE", "NOTICE"]) {
  await copyFile(join(source, file), join(target, file));
}
// validatorUrl: the validator's badge would ask a server elsewhere.
await writeFile(
  join(target, "start.js"),
  'SwaggerUIBundle({ url: "openapi.json", dom_id: "#reference", validatorUrl: "none", deepLinking: true });\n',
);
