import type { ToolProps } from "./status";

interface Poem {
  japanese?: unknown;
  english?: unknown;
}

const lines = (value: unknown): string[] => (Array.isArray(value) ? value.filter((line): line is string => typeof line === "string") : []);

/** A poem appears line by line while its arguments stream. */
export function Haiku({ args }: ToolProps) {
  const { japanese, english } = args as Poem;
  const [left, right] = [lines(japanese), lines(english)];
  const count = Math.max(left.length, right.length);
  return (
    <section className="tool haiku" aria-label="Haiku">
      {Array.from({ length: count }, (_, index) => (
        <div className="line" key={index}>{left[index] ?? ""}<small>{right[index] ?? ""}</small></div>
      ))}
    </section>
  );
}
