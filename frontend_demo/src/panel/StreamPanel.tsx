/** The stream, seen: every AG-UI event as it arrives, and beside it what the same event is on the OpenAI wire. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { chunkWords, hue, pretty, preview } from "../stream/describe";
import { meters, toLog, type Recording, type Row } from "../stream/record";
import type { View } from "../stream/store";
import { Copy } from "../ui/copy";
import { Icon } from "../ui/icons";
import { saveFile } from "../ui/save";
import { Controls, type RunControls } from "./Controls";

const WINDOW = 400;
const NEAR = 40;

export function StreamPanel({ view, controls, top }: { view: View; controls: RunControls | null; top?: ReactNode }) {
  const { recording, version, trouble } = view;
  const live = recording.rows.length > 0 && !recording.over;
  return (
    <>
      {top}
      <Meters recording={recording} version={version} />
      {controls && <Controls controls={controls} live={live} onSave={recording.rows.length ? () => save(recording) : null} />}
      {recording.remains && <p className="remains" role="status">The events of this run are no longer kept. This is what its conversation still holds.</p>}
      <Rows recording={recording} version={version} live={live} trouble={trouble} />
    </>
  );
}

function Meters({ recording, version }: { recording: Recording; version: number }) {
  const found = useMemo(() => meters(recording), [recording, version]);
  return (
    <dl className="meters">
      <Meter name="First token" value={found.firstToken === null ? "–" : found.firstToken.toFixed(0)} unit={found.firstToken === null ? "" : "ms"} />
      <Meter name="Speed" value={found.tokensPerSecond === null ? "–" : speed(found.tokensPerSecond)} unit={found.tokensPerSecond === null ? "" : "tok/s"} />
      <Meter name={found.exact ? "Tokens" : "Tokens so far"} value={String(found.tokens)} unit="" />
      <Meter name="Events" value={String(recording.rows.length)} unit="" />
    </dl>
  );
}

const speed = (value: number): string => value.toFixed(value < 100 ? 1 : 0);

function Meter({ name, value, unit }: { name: string; value: string; unit: string }) {
  return <div className="meter"><dt>{name}</dt><dd>{value}{unit && <small>{unit}</small>}</dd></div>;
}

function Rows({ recording, version, live, trouble }: { recording: Recording; version: number; live: boolean; trouble: string | null }) {
  const list = useRef<HTMLOListElement>(null);
  const pinned = useRef(true);
  const [open, setOpen] = useState<number | null>(null);
  const [all, setAll] = useState(false);
  const shown = all ? recording.rows : recording.rows.slice(-WINDOW);
  const chunks = useMemo(() => recording.rows.reduce((sum, row) => sum + row.chunks.length, 0), [recording, version]);

  useEffect(() => {
    setOpen(null);
    setAll(false);
    pinned.current = true;
  }, [recording]);
  useLayoutEffect(() => {
    const box = list.current;
    if (box && pinned.current) box.scrollTop = box.scrollHeight;
  }, [version]);

  if (trouble && !recording.rows.length) return <Nothing title="The stream cannot be shown" text={trouble} />;
  if (!recording.rows.length) return <Nothing title="Nothing has run yet" text="Ask something. Each event appears here the moment it arrives, beside what the same event is for an OpenAI client." />;

  const scrolled = () => {
    const box = list.current;
    if (box) pinned.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  };
  const toggle = (sequence: number) => {
    pinned.current = false;
    setOpen((now) => (now === sequence ? null : sequence));
  };
  return (
    <>
      <div className="wires-head" aria-hidden="true">
        <span />
        <span>AG-UI <span className="count">{recording.rows.length} events</span></span>
        <span>OpenAI <span className="count">{chunks} chunks</span></span>
      </div>
      <ol className="wires" ref={list} onScroll={scrolled} aria-label="Events of the run" tabIndex={0}>
        {shown.length < recording.rows.length && (
          <li><button className="earlier" onClick={() => { pinned.current = false; setAll(true); }}>Show {recording.rows.length - shown.length} earlier</button></li>
        )}
        {shown.map((row) => <WireRow key={row.sequence} row={row} chunks={row.chunks.length} fresh={live} open={open === row.sequence} onToggle={toggle} />)}
      </ol>
    </>
  );
}

function WireRow({ row, open, fresh, onToggle }: { row: Row; chunks: number; fresh: boolean; open: boolean; onToggle: (sequence: number) => void }) {
  const { event, chunks } = row;
  const colour = `hue-${hue(event.type)}`;
  return (
    <li className={`wire-row ${colour} ${fresh ? "fresh" : ""}`} data-sequence={row.sequence} data-type={event.type}>
      <button aria-expanded={open} onClick={() => onToggle(row.sequence)}>
        <span className="at">{row.at < 10_000 ? `${row.at.toFixed(0)}` : `${(row.at / 1000).toFixed(1)}s`}</span>
        <span className="cell"><span className="kind">{event.type}</span><span className="payload">{preview(event)}</span></span>
        <OtherWire chunks={chunks} />
      </button>
      {open && <Detail row={row} />}
    </li>
  );
}

function OtherWire({ chunks }: { chunks: string[] }) {
  const first = chunks[0];
  if (first === undefined) return <span className="cell none" aria-label="nothing on the OpenAI wire">·</span>;
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

function Nothing({ title, text }: { title: string; text: string }) {
  return <div className="panel-empty"><Icon name="stream" /><h2>{title}</h2><p>{text}</p></div>;
}

const save = (recording: Recording): void => saveFile(`run-${recording.runId || "log"}.jsonl`, toLog(recording), "application/jsonl");
