/** Consecutive pieces of one message as one event: the AG-UI client copies all messages at each event, which for a
 * long answer is work in the square of its length. */

/** As long as a run has sent less than this, its events are left as they come, in characters of its stream. */
export const LONG_RUN = 200_000;
/** A turn that the page gets between two reads of a long run grows with what it has sent. */
const CHARACTERS_PER_MS = 20_000;

export const pauseAfter = (received: number): number => (received < LONG_RUN ? 0 : received / CHARACTERS_PER_MS);

interface Content {
  id: string;
  event: { type: string; delta: string; messageId?: string; toolCallId?: string };
}

/** Whole frames of an event stream; the numbers of merged events are that of the last one. */
export function mergeDeltas(frames: string): string {
  const merged: string[] = [];
  let open = null as Content | null;
  let deltas: string[] = [];
  const close = () => {
    if (open) merged.push(`${open.id}data: ${JSON.stringify({ ...open.event, delta: deltas.join("") })}`);
    open = null;
  };
  for (const frame of frames.split("\n\n")) {
    if (!frame) continue;
    const content = contentOf(frame);
    if (!content) {
      close();
      merged.push(frame);
    } else if (open && sameOwner(open, content)) {
      open = { ...open, id: content.id };
      deltas.push(content.event.delta);
    } else {
      close();
      open = content;
      deltas = [content.event.delta];
    }
  }
  close();
  return merged.map((frame) => `${frame}\n\n`).join("");
}

const sameOwner = ({ event: one }: Content, { event: other }: Content): boolean =>
  one.type === other.type && one.messageId === other.messageId && one.toolCallId === other.toolCallId;

function contentOf(frame: string): Content | null {
  const [, id = "", data] = /^(id: ?\d+\n)?data: ?(\{"type":"(?:TEXT_MESSAGE_CONTENT|REASONING_MESSAGE_CONTENT|TOOL_CALL_ARGS)".*)$/.exec(frame) ?? [];
  if (data === undefined) return null;
  try {
    const event = JSON.parse(data) as Content["event"];
    return typeof event.delta === "string" ? { id, event } : null;
  } catch {
    return null;
  }
}
