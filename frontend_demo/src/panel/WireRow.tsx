/** One entry of the stream: an event or the pieces of one message, and what that is on the other wire. */

import { chunkText, chunkWords, deltaOf, hue, pretty, preview, quote, quoteEnd } from "../stream/describe";
import { excerptOf, type Group } from "../stream/fold";
import type { Row } from "../stream/record";
import { Copy } from "../ui/copy";
import { Icon } from "../ui/icons";

interface Props {
  /** Numbers of the rows that are open; for pieces, of the first. */
  open: ReadonlySet<number>;
  numbered: boolean;
  fresh: boolean;
  onToggle: (sequence: number) => void;
}

/** writing: pieces may still follow. */
export function Entry({ group, writing, ...props }: Props & { group: Group; writing: boolean }) {
  const [first, ...others] = group;
  if (!others.length) return <WireRow row={first} {...props} />;
  const opened = props.open.has(first.sequence);
  const shown = writing ? quoteEnd : quote;
  const chunks = group.flatMap((row) => row.chunks);
  const part = writing ? "end" : "beginning";
  return (
    <li className={`wire-row many hue-${hue(first.event.type)} ${props.fresh ? "fresh" : ""}`} data-sequence={first.sequence} data-type={first.event.type}>
      <button aria-expanded={opened} onClick={() => props.onToggle(first.sequence)}>
        <At row={first} numbered={props.numbered} />
        <span className="cell"><span className="kind"><span>{first.event.type}</span> <b>×{group.length}</b><Icon name="chevron" className="chevron" /></span><span className="payload">{shown(excerptOf(group, ({ event }) => deltaOf(event), part))}</span></span>
        {chunks[0] === undefined ? <Nothing /> : <span className="cell"><span className="kind"><span>{chunkWords(chunks[0])[0]}</span> <b>×{chunks.length}</b></span><span className="payload">{shown(excerptOf(chunks, chunkText, part))}</span></span>}
      </button>
      {opened && <ol className="pieces" aria-label="Pieces">{group.map((row) => <WireRow key={row.sequence} row={row} inner {...props} />)}</ol>}
    </li>
  );
}

/** inner: one of several pieces; the first shares its number with all of them, so it is open by the number's negative. */
function WireRow({ row, inner = false, open, numbered, fresh, onToggle }: Props & { row: Row; inner?: boolean }) {
  const { event, chunks, sequence } = row;
  const key = inner ? -sequence : sequence;
  return (
    <li className={`wire-row hue-${hue(event.type)} ${fresh ? "fresh" : ""}`} data-sequence={sequence} data-type={event.type}>
      <button aria-expanded={open.has(key)} onClick={() => onToggle(key)}>
        <At row={row} numbered={numbered} />
        <span className="cell"><span className="kind">{event.type}</span><span className="payload">{preview(event)}</span></span>
        <OtherWire chunks={chunks} />
      </button>
      {open.has(key) && <Detail row={row} />}
    </li>
  );
}

function At({ row: { at, sequence }, numbered }: { row: Row; numbered: boolean }) {
  if (numbered) return <span className="at">{sequence}</span>;
  return <span className="at">{at < 10_000 ? at.toFixed(0) : `${(at / 1000).toFixed(1)}s`}</span>;
}

const Nothing = () => <span className="cell none" aria-label="nothing on the OpenAI wire">·</span>;

function OtherWire({ chunks }: { chunks: string[] }) {
  const first = chunks[0];
  if (first === undefined) return <Nothing />;
  const [kind, payload] = chunkWords(first);
  return (
    <span className="cell">
      <span className="kind">{kind}</span>
      <span className="payload">{payload}{chunks.length > 1 ? ` +${chunks.length - 1}` : ""}</span>
    </span>
  );
}

function Detail({ row }: { row: Row }) {
  const json = JSON.stringify(row.event, null, 2);
  return (
    <div className="wire-detail">
      <div>
        <p className="part">AG-UI event {row.sequence}<Copy text={json} label="Copy event" /></p>
        <pre tabIndex={0}>{json}</pre>
      </div>
      <div>
        <p className="part">On the OpenAI wire{row.chunks.length > 0 && <Copy text={row.chunks.map((chunk) => `data: ${chunk}`).join("\n\n")} label="Copy chunks" />}</p>
        {row.chunks.length
          ? <pre tabIndex={0}>{row.chunks.map((chunk) => `data: ${pretty(chunk)}`).join("\n\n")}</pre>
          : <p>Nothing. This wire has no word for it.</p>}
      </div>
    </div>
  );
}
