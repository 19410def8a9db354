/**
 * An answer in pieces that are cheap to show.
 *
 * Parsing Markdown and setting formulas costs more than the text's length: brackets, emphasis and quotations that are
 * never closed cost its square. So a text is parsed in pieces, each bounded in characters, in marks and in depth, and
 * what goes beyond a bound is shown as it was written. All but the last piece stay the same while a text grows.
 */

export interface Piece {
  kind: "markdown" | "code" | "plain";
  text: string;
  /** As written behind the fence of a block of code; empty for other pieces. */
  language: string;
  /** How much more work it is to show the piece than its text alone, in characters of ordinary Markdown. */
  cost: number;
}

/** The bounds, in characters and in counts. */
export const BOUNDS = {
  /** Of a text, from its beginning: what follows is shown as it was written. */
  text: 100_000,
  /** A piece ends at the first place that allows it once it costs this. */
  wanted: 4_000,
  /** Of one piece of Markdown. */
  piece: 8_000,
  /** Characters with a meaning in one piece of Markdown, formulas counted several times. */
  marks: 400,
  /** Quotations and lists within each other. */
  depth: 12,
  /** Cells that a table has room for: its columns, times the lines of its piece, which are filled up to them. */
  cells: 1_200,
  /** Of one piece that is shown as it was written: browsers pair the brackets of a paragraph in the square of its length. */
  plain: 1_000,
  /** Of one block of code. */
  code: 60_000,
  /** Of one line of code. */
  line: 2_000,
  /** Definitions of links and notes, which every piece may use, and the characters of each. */
  definitions: 40,
  definition: 300,
} as const;

const MARK_COST = 20;
const CELL_COST = 6;
const LINE_COST = 40;
/** The head of a block of code, its button, and finding its language. */
const CODE_COST = 400;
const FORMULA_MARKS = 4;
const FENCE = /^(`{3,}|~{3,})([^`\n]*)$/;
const ITEM = /^(?:[-*+]|\d{1,9}[.)])(?=\s|$)/;
const DEFINITION = /^ {0,3}(\[[^\]\n]{1,100}\]):[ \t]*\S/;

export function piecesOf(text: string): Piece[] {
  const whole = text.length <= BOUNDS.text;
  const head = whole ? text : text.slice(0, lastBreak(text, 0, BOUNDS.text));
  const reader = new Reader(definitionsOf(head));
  for (let from = 0; from < head.length; ) {
    const newline = head.indexOf("\n", from);
    const end = newline < 0 ? head.length : newline + 1;
    reader.take(head.slice(from, end));
    from = end;
  }
  return [...reader.end(), ...(whole ? [] : plainPieces(text.slice(head.length)))];
}

/** A text as it was written, in pieces of which each is laid out on its own. */
export function plainPieces(text: string): Piece[] {
  const pieces: Piece[] = [];
  for (let from = 0; from < text.length; ) {
    const end = lastBreak(text, from, from + BOUNDS.plain);
    pieces.push({ kind: "plain", text: text.slice(from, end), language: "", cost: 0 });
    from = end;
  }
  return pieces;
}

/** Where to cut before `end`: behind a line, behind a space, or between two characters. */
function lastBreak(text: string, from: number, end: number): number {
  if (end >= text.length) return text.length;
  const half = from + (end - from) / 2;
  for (const mark of ["\n", " "]) {
    const at = text.lastIndexOf(mark, end - 1) + 1;
    if (at > half) return at;
  }
  return /[\ud800-\udbff]/.test(text.charAt(end - 1)) ? end - 1 : end;
}

function hasLongLine(text: string): boolean {
  for (let from = 0; from >= 0 && text.length - from > BOUNDS.line; ) {
    const end = text.indexOf("\n", from);
    if (end < 0 || end - from > BOUNDS.line) return true;
    from = end + 1;
  }
  return false;
}

/** Lines that define links and notes, by what stands for them in the text. */
function definitionsOf(text: string): Map<string, string> {
  const found = new Map<string, string>();
  if (!text.includes("]:")) return found;
  for (let at = text.indexOf("]:"); at >= 0 && found.size < BOUNDS.definitions; at = text.indexOf("]:", at + 2)) {
    const from = text.lastIndexOf("\n", at) + 1;
    const end = text.indexOf("\n", at);
    if (end < 0) break; // it may still be growing
    if (end - from > BOUNDS.definition) continue;
    const line = text.slice(from, end);
    const name = DEFINITION.exec(line)?.[1];
    if (name !== undefined && !found.has(name)) found.set(name, line);
  }
  return found;
}

/** What parsing costs more for than for ordinary characters. */
interface Work {
  characters: number;
  lines: number;
  marks: number;
  depth: number;
  columns: number;
}

const NO_WORK: Work = { characters: 0, lines: 0, marks: 0, depth: 0, columns: 0 };

/** Counts a line of Markdown; pipes are counted as cells, since a row is filled up to the width of its table. */
function workOf(line: string): Work {
  let marks = 0;
  let pipes = 0;
  for (let at = 0; at < line.length; at++) {
    switch (line.charCodeAt(at)) {
      case 0x24: // $
        marks += FORMULA_MARKS;
        break;
      case 0x5c: // \
        marks += line[at + 1] === "[" || line[at + 1] === "(" ? FORMULA_MARKS : 1;
        break;
      case 0x7c: // |
        pipes++;
        break;
      case 0x21: case 0x26: case 0x2a: case 0x3c: case 0x3e: case 0x40: case 0x5b: case 0x5d: case 0x5f: case 0x60: case 0x7e: // ! & * < > @ [ ] _ ` ~
        marks++;
    }
  }
  const before = /^(?:[\s>]|[-*+](?=\s)|\d{1,9}[.)](?=\s))*/.exec(line)?.[0] ?? "";
  const containers = before.replaceAll(/\d+/g, "").replaceAll(/\s/g, "").length;
  const indent = /^ */.exec(before)?.[0].length ?? 0;
  return { characters: line.length, lines: 1, marks, depth: containers + (containers ? Math.floor(indent / 2) : 0), columns: pipes && pipes + 1 };
}

const sum = (a: Work, b: Work): Work => ({
  characters: a.characters + b.characters,
  lines: a.lines + b.lines,
  marks: a.marks + b.marks,
  depth: Math.max(a.depth, b.depth),
  columns: Math.max(a.columns, b.columns),
});

const exceeds = ({ characters, lines, marks, depth, columns }: Work): boolean =>
  characters > BOUNDS.piece || marks > BOUNDS.marks || depth > BOUNDS.depth || columns * lines > BOUNDS.cells;

const costOf = ({ characters, lines, marks, columns }: Work): number => characters + LINE_COST * lines + MARK_COST * marks + CELL_COST * columns * lines;

/** Cuts lines into pieces: at fences, between paragraphs, and between the items of a list. */
class Reader {
  #pieces: Piece[] = [];
  #lines: string[] = [];
  #work = NO_WORK;
  #fence: { marks: string; language: string } | null = null;
  #blank = true;
  readonly #definitions: ReadonlyMap<string, string>;

  constructor(definitions: ReadonlyMap<string, string>) {
    this.#definitions = definitions;
  }

  take(line: string): void {
    const bare = line.trimEnd();
    if (this.#fence) return this.#code(line, bare);
    const [, marks, language] = FENCE.exec(bare) ?? [];
    if (marks !== undefined) {
      this.#cut();
      this.#fence = { marks, language: language?.trim().split(/\s/, 1)[0] ?? "" };
      return;
    }
    const work = workOf(line);
    if (this.#mayCut(bare) && (costOf(this.#work) >= BOUNDS.wanted || exceeds(sum(this.#work, work)))) this.#cut();
    this.#lines.push(line);
    this.#work = sum(this.#work, work);
    this.#blank = bare === "";
  }

  end(): Piece[] {
    if (this.#fence) this.#closeFence();
    else this.#cut();
    return this.#pieces;
  }

  /** A line that begins something of its own, so that what is before it is the same without it. */
  #mayCut(line: string): boolean {
    const inList = ITEM.test(this.#lines[0] ?? "");
    if (inList && ITEM.test(line)) return true;
    return this.#blank && line !== "" && !/^\s/.test(line) && !ITEM.test(line);
  }

  #code(line: string, bare: string): void {
    const { marks } = this.#fence as { marks: string };
    if (bare.length >= marks.length && bare === marks.charAt(0).repeat(bare.length)) this.#closeFence();
    else this.#lines.push(line);
  }

  #closeFence(): void {
    const text = this.#lines.join("").replace(/\n$/, "");
    this.#lines = [];
    if (text.length > BOUNDS.code || hasLongLine(text)) this.#pieces.push(...plainPieces(text));
    else this.#pieces.push({ kind: "code", text, language: this.#fence?.language ?? "", cost: CODE_COST + text.length });
    this.#fence = null;
    this.#blank = true;
  }

  #cut(): void {
    const text = this.#lines.join("");
    const work = this.#work;
    this.#lines = [];
    this.#work = NO_WORK;
    this.#blank = true;
    if (!text.trim()) return;
    if (exceeds(work)) this.#pieces.push(...plainPieces(text));
    else this.#pieces.push({ kind: "markdown", text: this.#defined(text), language: "", cost: costOf(work) });
  }

  /** With the definitions that it uses and does not hold itself. */
  #defined(text: string): string {
    const used = [...this.#definitions].filter(([name, line]) => text.includes(name) && !text.includes(line));
    return used.length ? `${text}\n\n${used.map(([, line]) => line).join("\n")}` : text;
  }
}

/** How many pieces may be shown, from the first, when `shown` are: one step of work more, and at least one piece. */
export function nextStep(pieces: readonly Piece[], shown: number, step: number): number {
  let next = Math.min(shown, pieces.length);
  for (let cost = 0; next < pieces.length; next++) {
    cost += pieces[next]?.cost ?? 0;
    if (cost > step && next > shown) break;
  }
  return next;
}
