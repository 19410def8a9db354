/** Formulas as models write them: finding them, and bringing them into the one form that the renderer reads. */

const CODE = /(```[\s\S]*?(?:```|$)|~~~[\s\S]*?(?:~~~|$)|`[^`\n]*`)/;
const DISPLAY = /\\\[([\s\S]+?)\\\]/g;
const INLINE = /\\\(([\s\S]+?)\\\)/g;
/** Pandoc's rule, which leaves prices alone: no space behind the first dollar nor before the second, no digit behind it. */
const DOLLARS = /(?<![\\$])\$(?![\s$])((?:[^$\n\\]|\\.)+?)(?<![\s\\])\$(?![\d$])/g;

/** Whether the plugins for formulas are worth fetching. */
export function mayHoldMath(text: string): boolean {
  return withDollars(text) !== text || text.includes("$$");
}

/** `\(x\)`, `\[x\]` and `$x$` as `$$x$$`, outside of code. */
export function withDollars(text: string): string {
  if (!/[$\\]/.test(text)) return text;
  return text.split(CODE).map((part, index) => (index % 2 ? part : prose(part))).join("");
}

function prose(text: string): string {
  return text
    .replace(DISPLAY, (_, formula: string) => `\n$$\n${formula.trim()}\n$$\n`)
    .replace(INLINE, (_, formula: string) => `$$${formula.trim()}$$`)
    .replace(DOLLARS, (_, formula: string) => `$$${formula}$$`);
}
