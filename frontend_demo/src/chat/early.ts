/** What the page shows before its script has come, and what a person wrote into it meanwhile. */

/** What this server is, in the page itself and in every empty conversation. */
export const LEAD = "Every token becomes an AG-UI event, and you can watch each one arrive. CopilotKit, OpenAI and Anthropic clients read the same stream.";

let words = "";

/** Keeps what stands in the page's own text area; to be called right before React takes its place. */
export function keepEarlyWords(): void {
  const area = document.getElementById("message");
  if (area instanceof HTMLTextAreaElement) words = area.value.trim();
}

/** What was kept, once. */
export function takeEarlyWords(): string {
  const kept = words;
  words = "";
  return kept;
}
