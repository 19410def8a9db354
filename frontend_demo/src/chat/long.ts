/** Long text: what is folded, what it is called, and whether the model can hold it. */

import { thousands } from "../ui/numbers";

const LONG_CHARACTERS = 2_000;
const LONG_LINES = 40;
const SHOWN_CHARACTERS = 600;
const SHOWN_LINES = 12;

export function isLong(text: string): boolean {
  return text.length > LONG_CHARACTERS || text.split("\n", LONG_LINES + 1).length > LONG_LINES;
}

/** The beginning of a long text, ending at a word. */
export function beginningOf(text: string): string {
  const lines = text.split("\n", SHOWN_LINES).join("\n");
  return lines.length <= SHOWN_CHARACTERS ? lines : lines.slice(0, SHOWN_CHARACTERS).replace(/\s+\S*$/, "");
}

/** "812 bytes", "50 kB", "1.2 MB". */
export function sizeOf(text: string): string {
  return sizeInWords(new TextEncoder().encode(text).length);
}

export function sizeInWords(bytes: number): string {
  if (bytes < 1_000) return `${bytes} bytes`;
  if (bytes < 1_000_000) return `${Math.round(bytes / 1_000)} kB`;
  return bytes < 1_000_000_000 ? `${(bytes / 1_000_000).toFixed(1)} MB` : `${(bytes / 1_000_000_000).toFixed(1)} GB`;
}

/** Why a message is not sent. full: a new conversation would have room for it. */
export interface Refusal {
  text: string;
  full: boolean;
}

/** Whether `text`, after a conversation of `before`, fits into `room` tokens: null when it does, else a sentence that
 * says what to do. A token has at least one byte, so that short texts need not be counted. */
export async function refusal(text: string, before: string, room: number, count: (text: string) => Promise<number>): Promise<Refusal | null> {
  if (!room || new TextEncoder().encode(before + text).length < room) return null;
  const [own, earlier] = [await count(text), before ? await count(before) : 0];
  if (own + earlier < room) return null;
  const held = `The model holds ${thousands(room)} tokens`;
  if (own >= room) return { full: false, text: `This message has ${thousands(own)} tokens. ${held}: shorten it, or send it in parts.` };
  return { full: true, text: `${held}. This message has ${thousands(own)} and the conversation before it ${thousands(earlier)}: delete earlier turns, or begin a new conversation.` };
}
