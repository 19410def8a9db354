/** A run at a glance: what it did when. Each span leads to its first event. */

import { useMemo } from "react";
import type { Recording } from "../stream/record";
import { timelineOf, type Span } from "../stream/timeline";

interface Props {
  recording: Recording;
  version: number;
  onShow: (sequence: number) => void;
}

export function Timeline({ recording, version, onShow }: Props) {
  const { spans, duration } = useMemo(() => timelineOf(recording), [recording, version]);
  if (!spans.length) return null;
  const name = (span: Span) => (duration === null ? span.label : `${span.label}, ${inWords(span.from * duration)} to ${inWords(span.to * duration)}`);
  return (
    <div className="timeline" role="group" aria-label="Timeline of the run">
      <div className="spans">
        {spans.map((span) => (
          <button key={`${span.sequence} ${span.label}`} type="button" className={`hue-${span.hue}`} data-waits={span.label === "Tool at work"} title={name(span)} aria-label={name(span)}
            style={{ left: `${span.from * 100}%`, width: `${(span.to - span.from) * 100}%` }} onClick={() => onShow(span.sequence)} />
        ))}
      </div>
      <span className="length">{duration === null ? `${recording.rows.length} events` : inWords(duration)}</span>
    </div>
  );
}

const inWords = (milliseconds: number): string => (milliseconds < 1_000 ? `${milliseconds.toFixed(0)} ms` : `${(milliseconds / 1_000).toFixed(1)} s`);
