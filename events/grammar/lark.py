"""A structural tag as a Lark grammar in llguidance's dialect: each node becomes an expression.

Text that is bounded by its end becomes one terminal together with that, so that the lexer, which takes the longest
match, cannot run past the end. Free text before a trigger is a lazy terminal, which ends at the first trigger.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from events.grammar.ebnf import EBNFError, lark_of
from events.grammar.nodes import LINES, Node

ANY = "/(?s:.*)/"
JSON_OPTIONS = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
INDENTED_OPTIONS = {
    "whitespace_flexible": True,
    "whitespace_pattern": LINES["pattern"],
    "item_separator": ",",
    "key_separator": ":",
}
"""JSON as models are trained on it: one line, at most one space after a comma or colon."""


MAX_RULES = 1000
"""The most rules of a client's grammar, and twice the most references within schemas. The compiler follows them
recursively, and a stack overflow ends the process: it happened with 3,000 rules and with 900 references."""
_RULE = re.compile(r"^[ \t]*[!?]*\w+[^:\n\"/]*:", re.MULTILINE)


class Unwritable(ValueError):
    """A node has no counterpart in Lark."""


def lark(node: Node, control_tokens: Iterable[int] = ()) -> str:
    """Write a node as a Lark grammar. control_tokens: all ids that are not text, for free text that may contain
    some."""
    return LarkWriter(control_tokens).grammar(node)


class LarkWriter:
    """Rules and terminals of one grammar; equal nodes share a rule."""

    def __init__(self, control_tokens: Iterable[int]) -> None:
        self._control_tokens = frozenset(control_tokens)
        self._lines: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def grammar(self, node: Node) -> str:
        start = self._write(node)
        lines = [f"{name}: {body}" for name, body in self._lines.items()]
        return "\n".join(["%llguidance {}", f"start: {start}", *lines]) + "\n"

    def _define(self, kind: str, body: str, options: str = "") -> str:
        """Return the name of the rule (`r`) or terminal (`T`) with this body, which is defined if it is new."""
        key = f"{kind}{options}:{body}"
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._names)}"
            self._lines[self._names[key] + options] = body
        return self._names[key]

    def _write(self, node: Node) -> str:
        match node["type"]:
            case "const_string":
                return literal(node["value"])
            case "regex" if not node.get("excludes"):
                return regex(node["pattern"])
            case "token":
                return f"<[{int(node['token'])}]>"
            case "any_text" | "regex":
                return self._text(node)
            case "json_schema" if node.get("style", "json") == "json":
                # An inner grammar with its own definitions, so that references need not change.
                schema = node["json_schema"]
                if isinstance(schema, dict):
                    options = INDENTED_OPTIONS if node.get("max_whitespace_cnt", 1) > 1 else JSON_OPTIONS
                    schema = {**schema, "x-guidance": {**options, **schema.get("x-guidance", {})}}
                return self._rule("%json " + json.dumps(schema, ensure_ascii=True))
            case "sequence":
                return " ".join(self._write(part) for part in node["elements"])
            case "or":
                return self._rule(" | ".join(self._write(part) for part in node["elements"]))
            case "optional":
                return f"({self._write(node['content'])})?"
            case "star":
                return f"({self._write(node['content'])})*"
            case "plus":
                return f"({self._write(node['content'])})+"
            case "repeat":
                most = "" if node["max"] < 0 else node["max"]
                return f"({self._write(node['content'])}){{{node['min']},{most}}}"
            case "tag":
                return self._tag(node)
            case "triggered_tags":
                return self._triggered(node)
            case "token_triggered_tags":
                text = self._terminal(ANY)
                between = self._between(text, [*node.get("exclude_tokens", ()), *node["trigger_tokens"]])
                call = self._rule(f"{between} {text} ({' | '.join(self._tag(tag) for tag in node['tags'])})")
                return self._until_last(call, f"{between} {text}", node)
            case "tags_with_separator":
                # Tags one after the other, with something between any two.
                one = self._rule(" | ".join(self._tag(tag) for tag in node["tags"]))
                separator = literal(node["separator"]) if node.get("separator") else ""
                some = one if node.get("stop_after_first") else f"{one} ({separator} {one})*"
                return some if node.get("at_least_one") else f"({some})?"
            case "grammar":
                return self._grammar(node)
        style = f" in the style {node['style']!r}" if "style" in node else ""
        raise Unwritable(f"A grammar has no {str(node['type'])[:40]!r}{style}.")

    def _rule(self, body: str) -> str:
        return self._define("r", body)

    def _terminal(self, body: str) -> str:
        return self._define("T", body)

    def _grammar(self, node: Node, *, exact: bool = False) -> str:
        """Write a client's grammar as an inner grammar with its own names."""
        text = node["grammar"]
        if len(_RULE.findall(text)) > MAX_RULES or text.count("$ref") > MAX_RULES // 2:
            raise Unwritable(f"A grammar may have {MAX_RULES} rules and {MAX_RULES // 2} references at most.")
        if node.get("syntax", "ebnf") == "ebnf":
            try:
                text = lark_of(text, exact=exact)
            except EBNFError as error:
                raise Unwritable(str(error)) from error
        return self._rule(f"%lark {{\n{text}\n}}")

    def _text(self, node: Node) -> str:
        text = ANY if node["type"] == "any_text" else regex(node["pattern"])
        return self._terminal(without(text, node.get("excludes", ()), node.get("not_pattern", "")))

    def _tag(self, node: Node) -> str:
        begin, content, end = node["begin"], node["content"], node["end"]
        head = self._marker(begin)
        if isinstance(end, str) and end and content["type"] in ("any_text", "regex"):
            closed = self._terminal(f"{self._text(content)} {literal(end)}")
            closed = closed if node.get("greedy") else self._define("r", closed, "[lazy]")
            return f"{head} {closed}".strip()
        inner = self._grammar(content, exact=True) if content["type"] == "grammar" else self._write(content)
        return " ".join(part for part in (head, inner, self._marker(end)) if part)

    def _marker(self, marker: Any) -> str:
        if isinstance(marker, dict):
            return self._write(marker)
        return literal(marker) if marker else ""

    def _between(self, text: str, excluded: Iterable[int]) -> str:
        """Match text with control tokens other than those excluded; it ends with such a token or is empty."""
        allowed = self._control_tokens.difference(excluded)
        return f"({text} {tokens(sorted(allowed))})*" if allowed else ""

    def _triggered(self, node: Node) -> str:
        triggers: Sequence[str] = node["triggers"]
        text = self._terminal(without(ANY, triggers))
        between = self._between(text, node.get("exclude_tokens", ()))
        calls = []
        for trigger in triggers:
            head = self._define("r", self._terminal(f"{ANY} {literal(trigger)}"), "[lazy]")
            # A tag belongs to the longest trigger that it begins with; the head has matched that already.
            rests = [
                self._tag({**tag, "begin": tag["begin"][len(trigger) :]})
                for tag in node["tags"]
                if max((t for t in triggers if tag["begin"].startswith(t)), key=len, default="") == trigger
            ]
            calls.append(f"{head} ({' | '.join(rests)})")
        call = self._rule(f"{between} ({' | '.join(calls)})")
        return self._until_last(call, f"{between} {text}", node)

    def _until_last(self, call: str, text: str, node: Node) -> str:
        """Match calls with text around them, and text to the end; with `stop_after_first` nothing after a call."""
        if node.get("stop_after_first"):
            return self._rule(f"{call} | {text}")
        return f"{call}{'+' if node.get('at_least_one') else '*'} {text}"


def literal(text: str) -> str:
    """Write a Lark string, which has JSON's escapes."""
    return json.dumps(text, ensure_ascii=True)


def regex(pattern: str) -> str:
    """Write a pattern between slashes. Anchors are removed, since a terminal matches as a whole."""
    inner = ascii_classes(unanchored(pattern))
    return "/" + re.sub(r"(?<!\\)((?:\\\\)*)/", r"\1\\/", inner).replace("\n", "\\n") + "/"


_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}


def ascii_classes(pattern: str) -> str:
    """Replace \\d, \\w and \\s by their ASCII ranges, as JSON schema defines them."""
    pieces: list[str] = []
    inside = False
    for piece in re.findall(r"(?s)\\.|.", pattern):
        name = piece[1:] if len(piece) == 2 else ""
        if not name and piece in "[]":
            inside = piece == "["
        if name.lower() in _CLASSES and not (inside and name.isupper()):
            ranges = _CLASSES[name.lower()]
            piece = ranges if inside else f"[{'^' if name.isupper() else ''}{ranges}]"
        pieces.append(piece)
    return "".join(pieces)


def unanchored(pattern: str) -> str:
    """Remove ^ at the start and $ at the end, which have no meaning if the whole text is matched."""
    pattern = pattern.removeprefix("^")
    if pattern.endswith("$") and not re.search(r"(?<!\\)(?:\\\\)*\\\$$", pattern):
        pattern = pattern[:-1]
    return pattern


def without(text: str, excludes: Iterable[str], not_pattern: str = "") -> str:
    """Return a terminal's body: `text` that contains none of `excludes` and does not match `not_pattern` as a whole."""
    literals = [literal(each) for each in excludes if each]
    parts = [text]
    if literals:
        parts.append(f"~({ANY} ({' | '.join(literals)}) {ANY})")
    if not_pattern:
        parts.append(f"~{regex(not_pattern)}")
    return " & ".join(parts)


def tokens(ids: Sequence[int]) -> str:
    """Match any one of these tokens, as ranges."""
    ranges: list[list[int]] = []
    for number in ids:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "<[" + ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges) + "]>"
