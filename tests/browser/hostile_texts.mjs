// Texts that cost a careless renderer more than their length: each generator gives about `size` characters.
const repeated = (piece) => (size) => piece.repeat(Math.ceil(size / piece.length)).slice(0, size);

/** Pieces of growing length, as long as there is room. */
const growing = (piece) => (size) => {
  let text = "";
  for (let length = 1; text.length < size; length++) text += piece(length);
  return text.slice(0, size);
};

const nested = (before, after, around = ["", ""]) => (size) => {
  const depth = Math.floor(size / (before.length + after.length));
  return around[0] + before.repeat(depth) + "a" + after.repeat(depth) + around[1];
};

const grid = (size) => {
  const columns = Math.floor(size / 8);
  return `${"|a".repeat(columns)}|\n${"|-".repeat(columns)}|\n${"|\n".repeat(size / 4)}`;
};

const references = (size) => `${"[a]".repeat(size / 6)}\n\n[a]: https://example.com/${"x".repeat(size / 2)}\n`;
const footnotes = (size) => `${"[^a]".repeat(size / 4)}\n\n[^a]: note\n`;

export const HOSTILE = {
  "display math never closed": repeated("\\["),
  "inline math never closed": repeated("\\("),
  "dollars": repeated("$$a"),
  "a price list": repeated("$5 "),
  "runs of dollars": growing((length) => `${"$".repeat(length)}a`),
  "many formulas": repeated("$$x^2$$ "),
  "deep roots": nested("\\sqrt{", "}", ["$$", "$$"]),
  "deep powers": nested("a^{", "}", ["$$", "$$"]),
  "brackets": repeated("["),
  "nested brackets": nested("[", "]"),
  "images never closed": repeated("!["),
  "links never closed": repeated("[a]("),
  "nested links": nested("[a", "](b)"),
  "references": references,
  "footnotes": footnotes,
  "emphasis never closed": repeated("*a **b _c "),
  "emphasis closed elsewhere": repeated("*a_ "),
  "nested emphasis": nested("*a ", " a*"),
  "struck through": repeated("a~~b~"),
  "growing code spans": growing((length) => `${"`".repeat(length)}a`),
  "quotations": repeated(">"),
  "quotations in every line": repeated(`${">".repeat(60)}a\n`),
  "list in list in one line": repeated("- "),
  "list in list": growing((length) => `${"  ".repeat(length)}- a\n`),
  "a long list": repeated("- a\n"),
  "a long list of tasks": repeated("- [ ] *a*\n"),
  "a wide table": grid,
  "a long table": (size) => `|a|b|\n|-|-|\n${"|*a*|`b`|\n".repeat(size / 10)}`,
  "less than": repeated("<"),
  "tags": repeated("<a b='"),
  "comments never closed": repeated("<!--"),
  "addresses": repeated("a@"),
  "links without scheme": repeated("www.a "),
  "entities": repeated("&#x41;"),
  "backslashes": repeated("\\"),
  "definitions": repeated("[a]: b\n"),
  "code never closed": (size) => `\`\`\`js\n${"x = `${y}`; /* [\n".repeat(size / 17)}`,
  "code of brackets": (size) => `\`\`\`js\n${"[".repeat(size)}\n\`\`\``,
  "many blocks of code": repeated("```js\n[x]\n```\n"),
  "short paragraphs": repeated("a\n\n"),
  "short lines": repeated("a\n"),
  "headings": repeated("# a\n"),
  "hard breaks": repeated("a  \n"),
  "one word": repeated("x"),
  "one line": repeated("word "),
  "spaces": (size) => `a${" ".repeat(size)}b`,
  "combining marks": repeated("\u0301"),
  "right to left": repeated("\u202e\u05d0 "),
};
