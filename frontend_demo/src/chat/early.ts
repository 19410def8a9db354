/** What the page shows before its script has come, and what a person wrote into it meanwhile. */

/** What this server is, in the page itself and in every empty conversation. */
export const LEAD = "Every token becomes an AG-UI event, and you can watch each one arrive. CopilotKit, OpenAI and Anthropic clients read the same stream.";

let area: HTMLElement | null = null;

/** Keeps the page's own text area, with whatever is still written in it, until the composer has taken its place. */
export function keepEarlyWords(): void {
  area = document.getElementById("message");
}

/** What was written in it, once. */
export function takeEarlyWords(): string {
  const words = area instanceof HTMLTextAreaElement ? area.value.trim() : "";
  area = null;
  return words;
}
