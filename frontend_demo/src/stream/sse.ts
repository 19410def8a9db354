/** Server-sent events from a fetch body (the page's key travels in a header, which EventSource cannot send). */

export interface Frame {
  id: string;
  event: string;
  data: string;
}

/** Splits text into frames as it arrives, however it is cut. Comments and unknown fields are skipped. */
export class FrameReader {
  #rest = "";

  feed(text: string): Frame[] {
    const blocks = (this.#rest + text).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    return blocks.map(frame).filter((found) => found.data !== "");
  }
}

function frame(block: string): Frame {
  const found: Frame = { id: "", event: "message", data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(colon + 1).replace(/^ /, "");
    if (line.startsWith("data:")) data.push(value);
    else if (line.startsWith("id:")) found.id = value;
    else if (line.startsWith("event:")) found.event = value;
  }
  return { ...found, data: data.join("\n") };
}

export async function* frames(body: ReadableStream<Uint8Array>): AsyncGenerator<Frame> {
  const reader = new FrameReader();
  const decoder = new TextDecoder();
  const source = body.getReader();
  try {
    for (;;) {
      const { done, value } = await source.read();
      if (done) return;
      yield* reader.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    void source.cancel().catch(() => undefined);
  }
}
