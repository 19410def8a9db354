/** Files beside a message: which the model takes, how they are sent, and how they are shown. */

import type { InputContent, Message } from "@ag-ui/core";
import { sizeInWords } from "./long";

export interface Attachment {
  name: string;
  kind: "image" | "audio" | "document";
  mimeType: string;
  /** Base64; empty where a message names a URL. */
  data: string;
}

/** What the agent's model takes, as its capabilities say. */
export type Takes = Record<Attachment["kind"], boolean>;

/** What each kind is called. */
const NOUNS: Record<Attachment["kind"], string> = { image: "pictures", audio: "sounds", document: "documents" };

/** What may be added, in words; "" where the model takes words alone. */
export function takenInWords(takes: Takes): string {
  const nouns = (Object.keys(NOUNS) as Attachment["kind"][]).filter((kind) => takes[kind]).map((kind) => NOUNS[kind]);
  return nouns.length > 1 ? `${nouns.slice(0, -1).join(", ")} or ${nouns.at(-1)}` : nouns.join("");
}

/** A request holds 4 MiB, the whole conversation travels with each, and base64 takes four bytes for three. */
const MOST_BYTES = 2_800_000;
/** Larger pictures are made smaller: models look at less than this. */
const LARGE_PICTURE_BYTES = 400_000;
const LONGEST_SIDE = 1_568;
const PICTURES = /^image\/(png|jpeg|webp|gif)$/;
const SOUNDS = /^audio\//;
const TEXTS = /^(text\/|application\/(json|xml|pdf|x-(sh|yaml|python))|$)/;
const CODE = /\.(ts|tsx|py|rs|go|java|c|h|cpp|rb|toml|yaml|yml|sh|sql|csv|md|txt|log|jsonl|ipynb)$/i;

/** The files as attachments, and for each that cannot be one a sentence. held: bytes that the conversation has already. */
export async function attach(files: readonly File[], takes: Takes, held: number): Promise<{ taken: Attachment[]; refused: string[] }> {
  const taken: Attachment[] = [];
  const refused: string[] = [];
  for (const file of files) {
    const kind = kindOf(file);
    if (!kind) refused.push(`${file.name} is neither a picture, a sound, a PDF nor a text.`);
    else if (!takes[kind]) refused.push(`This model takes no ${NOUNS[kind]}: ${file.name} was not added.`);
    else {
      const content = kind === "image" ? await smaller(file) : file;
      held += content.size;
      if (held > MOST_BYTES) refused.push(`${file.name} has ${sizeInWords(content.size)}; a conversation holds ${sizeInWords(MOST_BYTES)} of files.`);
      if (held > MOST_BYTES) held -= content.size;
      else taken.push({ name: file.name, kind, mimeType: content.type || "text/plain", data: await base64(content) });
    }
  }
  return { taken, refused };
}

function kindOf(file: File): Attachment["kind"] | null {
  if (PICTURES.test(file.type)) return "image";
  if (SOUNDS.test(file.type)) return "audio";
  return TEXTS.test(file.type) || CODE.test(file.name) ? "document" : null;
}

/** The picture, or a smaller JPEG of it where it is large. What the browser cannot read is left to the server to refuse. */
async function smaller(file: File): Promise<Blob> {
  if (file.size <= LARGE_PICTURE_BYTES || file.type === "image/gif") return file;
  const picture = await createImageBitmap(file).catch(() => null);
  if (!picture) return file;
  const scale = Math.min(1, LONGEST_SIDE / Math.max(picture.width, picture.height));
  const canvas = new OffscreenCanvas(Math.round(picture.width * scale), Math.round(picture.height * scale));
  canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const made = await canvas.convertToBlob({ type: "image/jpeg", quality: 0.85 });
  return made.size < file.size ? made : file;
}

function base64(content: Blob): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result).replace(/^[^,]*,/, ""));
    reader.onerror = () => reject(reader.error ?? new Error("The file could not be read."));
    reader.readAsDataURL(content);
  });
}

/** What a message says: words alone as a string, and files as AG-UI's parts before them. */
export function contentOf(text: string, files: readonly Attachment[]): string | InputContent[] {
  if (!files.length) return text;
  const parts = files.map(({ kind, name, mimeType, data }): InputContent => ({ type: kind, source: { type: "data", value: data, mimeType }, metadata: { filename: name } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

/** The same message in other words: its files stay. */
export function reworded(message: Message | undefined, text: string): string | InputContent[] {
  const content: unknown = message?.content;
  if (!Array.isArray(content)) return text;
  return [...(content as InputContent[]).filter(({ type }) => type !== "text"), { type: "text", text }];
}

/** The files of a message, whoever sent it. */
export function attachmentsOf(content: unknown): Attachment[] {
  if (!Array.isArray(content)) return [];
  return (content as InputContent[]).flatMap((part) => {
    if (part.type === "text" || !("source" in part)) return [];
    const { source } = part;
    const name = (part.metadata as { filename?: string } | undefined)?.filename ?? (source.type === "url" ? source.value : part.type);
    const mimeType = source.mimeType ?? "";
    return [{ name, kind: part.type === "image" || part.type === "audio" ? part.type : "document", mimeType, data: source.type === "data" ? source.value : "" }];
  });
}

export function bytesOf(messages: readonly Message[]): number {
  return messages.flatMap(({ content }) => attachmentsOf(content)).reduce((sum, { data }) => sum + data.length * 0.75, 0);
}
