// Sends files as CopilotKit's chat does when a person attaches them: its core, its reading of files, its content parts.
//
// In, one JSON object per line: { runtimeUrl, transport?: "rest" | "single", text, files: [{ name, type, data }], properties }
// with the files in base64. Out: { content, problems }.
import { CopilotKitCore } from "@copilotkit/core";
import { createAttachmentContent, getModalityFromMimeType, readFileAsBase64 } from "@copilotkit/shared";
import { jsonLines, listening } from "./clients.mjs";

globalThis.FileReader ??= class {
  readAsDataURL(file) {
    file.arrayBuffer().then((bytes) => {
      this.result = `data:${file.type};base64,${Buffer.from(bytes).toString("base64")}`;
      this.onload?.({ target: this });
      this.onloadend?.({ target: this });
    });
  }
};

async function attachment({ name, type, data }) {
  const file = new File([Buffer.from(data, "base64")], name, { type });
  const value = await readFileAsBase64(file);
  const source = { type: "data", value, mimeType: file.type };
  return createAttachmentContent({ type: getModalityFromMimeType(file.type), source, filename: file.name });
}

// Its core connects where there is a window alone.
globalThis.window ??= { location: new URL("http://localhost/") };

async function connected(core) {
  core.connect();
  while (core.runtimeConnectionStatus === "connecting") await new Promise((done) => setTimeout(done, 5));
  return core.getAgent("default");
}

for await (const entry of jsonLines(process.stdin)) {
  const core = new CopilotKitCore({
    runtimeUrl: entry.runtimeUrl,
    runtimeTransport: entry.transport ?? "rest",
    properties: entry.properties,
  });
  const agent = await connected(core);
  const content = [{ type: "text", text: entry.text }, ...(await Promise.all(entry.files.map(attachment)))];
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  const { lines } = await listening(() => core.runAgent({ agent }));
  const problems = lines.filter(({ level }) => level === "warn" || level === "error");
  process.stdout.write(JSON.stringify({ content: agent.messages.at(-1).content, problems }) + "\n");
}
