/** The events of a run as they arrive: pieces of one message folded, filtered by kind, searched, and each opened to all
 * that it says. */

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { Hue } from "../stream/describe";
import { countsOf, fold, sought, unfolded } from "../stream/fold";
import type { Recording } from "../stream/record";
import { Icon } from "../ui/icons";
import { Timeline } from "./Timeline";
import { Entry } from "./WireRow";
import "../styles/events.css";

const WINDOW = 400;
const NEAR = 40;
const NAMES: Record<Hue, string> = { run: "Run", reasoning: "Reasoning", tool: "Tools", text: "Text", state: "State", error: "Error" };

interface Props {
  recording: Recording;
  version: number;
  live: boolean;
  trouble: string | null;
}

export function Events({ recording, version, live, trouble }: Props) {
  const { rows } = recording;
  const [text, setText] = useState("");
  const [without, setWithout] = useState<ReadonlySet<Hue>>(new Set());
  const [folds, setFolds] = useState(true);
  const [shown, setShown] = useState<number | null>(null);
  const groups = useMemo(() => (folds ? fold(rows) : unfolded(rows)), [recording, version, folds]);
  const found = useMemo(() => sought(groups, { text, without }), [groups, text, without]);
  const counts = useMemo(() => countsOf(rows), [recording, version]);
  const chunks = useMemo(() => rows.reduce((sum, row) => sum + row.chunks.length, 0), [recording, version]);
  useEffect(() => setShown(null), [recording]);

  if (trouble && !rows.length) return <Nothing title="The stream cannot be shown" text={trouble} />;
  if (!rows.length) return <Nothing title="Nothing has run yet" text="Ask something. Each event appears here the moment it arrives, beside what the same event is for an OpenAI client." />;

  const all = () => {
    setText("");
    setWithout(new Set());
  };
  const toggle = (kind: Hue) => setWithout((now) => new Set(now.has(kind) ? [...now].filter((each) => each !== kind) : [...now, kind]));
  const show = (sequence: number) => {
    if (!found.some((group) => group.some((row) => row.sequence === sequence))) all();
    setShown(sequence);
  };
  return (
    <>
      <Timeline recording={recording} version={version} onShow={show} />
      <div className="finder" role="search" aria-label="Events">
        <input className="field" type="search" placeholder="Search events" aria-label="Search events" value={text} onChange={(event) => setText(event.target.value)} />
        <button type="button" className="button small" aria-pressed={folds} title="Pieces of one message in one row" onClick={() => setFolds(!folds)}>Fold</button>
        <div className="kinds" role="group" aria-label="Kinds of events">
          {counts.map(([kind, count]) => (
            <button key={kind} type="button" className={`hue-${kind}`} aria-pressed={!without.has(kind)} onClick={() => toggle(kind)}><i />{NAMES[kind]}<span className="count">{count}</span></button>
          ))}
        </div>
      </div>
      <div className="wires-head" aria-hidden="true">
        <span />
        <span>AG-UI <span className="count">{rows.length} events</span></span>
        <span>OpenAI <span className="count">{chunks} chunks</span></span>
      </div>
      {found.length
        ? <List key={recording.runId} groups={found} version={version} numbered={recording.joined} live={live} shown={shown} />
        : <div className="panel-empty" role="status"><Icon name="search" /><h2>No event is like that</h2><p>Of {rows.length} events none has these words and kinds.</p><button className="button small" onClick={all}>Show all</button></div>}
    </>
  );
}

interface ListProps {
  groups: ReturnType<typeof sought>;
  version: number;
  /** The events' numbers are shown in place of their times. */
  numbered: boolean;
  live: boolean;
  /** The event that is opened and brought into view. */
  shown: number | null;
}

function List({ groups, version, numbered, live, shown }: ListProps) {
  const list = useRef<HTMLOListElement>(null);
  const pinned = useRef(true);
  const [open, setOpen] = useState<ReadonlySet<number>>(new Set());
  const [whole, setWhole] = useState(false);
  const listed = whole ? groups : groups.slice(-WINDOW);

  useLayoutEffect(() => {
    const box = list.current;
    if (box && pinned.current) box.scrollTop = box.scrollHeight;
  }, [version]);
  useEffect(() => {
    const group = groups.find((each) => each.some((row) => row.sequence === shown));
    if (shown === null || !group) return;
    pinned.current = false;
    setWhole(true);
    setOpen((now) => new Set(now).add(group[0].sequence));
    requestAnimationFrame(() => list.current?.querySelector(`[data-sequence="${group[0].sequence}"]`)?.scrollIntoView({ block: "nearest" }));
  }, [shown]);

  const scrolled = () => {
    const box = list.current;
    if (box) pinned.current = box.scrollHeight - box.scrollTop - box.clientHeight < NEAR;
  };
  const toggle = (sequence: number) => {
    pinned.current = false;
    setOpen((now) => new Set(now.has(sequence) ? [...now].filter((each) => each !== sequence) : [...now, sequence]));
  };
  return (
    <ol className="wires" ref={list} onScroll={scrolled} aria-label="Events of the run" tabIndex={0}>
      {listed.length < groups.length && (
        <li><button className="earlier" onClick={() => { pinned.current = false; setWhole(true); }}>Show {groups.length - listed.length} earlier</button></li>
      )}
      {listed.map((group, index) => (
        <Entry key={group[0].sequence} group={group} numbered={numbered} fresh={live} writing={live && index === listed.length - 1} open={open} onToggle={toggle} />
      ))}
    </ol>
  );
}

function Nothing({ title, text }: { title: string; text: string }) {
  return <div className="panel-empty"><Icon name="stream" /><h2>{title}</h2><p>{text}</p></div>;
}
