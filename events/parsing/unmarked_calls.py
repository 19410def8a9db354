"""Calls without their format's markers: JSON that is bare, fenced or in another family's markers.

Such a block counts at the beginning of an answer or directly after another call, if every object in it names a declared
tool and its arguments fit that tool's schema. Bare JSON and fences must also end the message; with text after them they
are examples, all of them. A fence after text counts if that text announces it (`announces_call`) and nothing in the
call had to be repaired. A block is held back while it may still become a call; everything else is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from events.parsing.json_text import JsonText
from events.parsing.open_call import ROLES, WRAPPERS, begins_call, without_namespace
from events.parsing.schema import Schema, item_schema, property_schema, resolved, type_of, types
from events.parsing.source import Reading, Scanner, Source, is_token, scanner_for

FENCES = ("```json", "```JSON", "```tool_call", "```tool_code", "```")
_TAGS = ("tools", "tool_call", "tool_calls", "function_call", "function_calls")
_CLOSERS = {
    **dict.fromkeys(FENCES, "```"),
    **{f"<{tag}>": f"</{tag}>" for tag in _TAGS},
    **dict.fromkeys(("[TOOL_CALLS]", "<|python_tag|>"), ""),
}
OPENERS = scanner_for(tuple(_CLOSERS))
_DOUBLED_BRACE = scanner_for(("{{",))
_TOOL_CALLS = "tool_calls"
MOST_PROSE = 300
"""The most characters of text before a fence that may contain a call."""
MOST_OPENING = 256
"""Characters within which the first key of a possible call must begin."""
_PARAGRAPH = re.compile(r"\n[ \t]*\n|^[ \t]*([#>*|-]|\d+[.)])|```", re.MULTILINE)
ANNOUNCES = re.compile(r"\b(I(['’]ll| will|['’]m going to| am going to)|let me)\b", re.IGNORECASE)
_SHOWS = re.compile(
    r"\b(examples?|e\.g|for instance|such as|like|samples?|snippets?|templates?|placeholders?|formats?|schemas?|json"
    r"|docs?|documentation|responses?|returns?|outputs?|would|could|might|should|you can|you may|you need|your"
    r"|if|when|not|never|cannot|instead|wrong|invalid|errors?|fail(s|ed)?|previous(ly)?|earlier|was|were|wrote|sent"
    r"|said|called|used|user|means?|logs?|answers?|step)\b|n't\b|[?`<\"“”]",
    re.IGNORECASE,
)


class UnmarkedCall(NamedTuple):
    """A call of a declared tool. arguments: JSON text."""

    name: str
    arguments: str


def announces_call(prose: str, *, within_line: bool = False) -> bool:
    """Return whether the text before a block announces a call ("I'll look that up:") instead of an example.

    The text must be one short paragraph that ends its line (or may end `within_line`) in which the speaker is about to
    act, without words of explanation, condition, report or quotation. The words are English: after text in another
    language, and after a heading or a caption ("The saved file contains:"), a block is an example.
    """
    text = prose.strip()
    ends_line = within_line or prose.rstrip(" \t").endswith("\n")
    if not text or not ends_line or len(text) > MOST_PROSE or _PARAGRAPH.search(text) or _SHOWS.search(text):
        return False
    return within_line or ANNOUNCES.search(text) is not None


def read_block(
    source: Source, tools: Mapping[str, Schema], ends: Scanner, *, exact: bool = False
) -> Reading[list[UnmarkedCall]]:
    """Read the calls of the block that begins here with an opening marker or with bare JSON, and of the blocks directly
    after a fence or bare JSON; [] if one of these is not such a block.

    `source` remembers the consumed text. ends: markers of the format that may follow. exact: refuse calls that need
    repairs or have arguments that the schema does not name.
    """
    calls: list[UnmarkedCall] = []
    while True:
        opener = yield from source.match(OPENERS)
        alone = not opener or opener in FENCES
        block = yield from _block_calls(source, tools, opener, exact)
        if not block:
            return []
        calls += block
        if not alone:
            while (char := (yield from source.peek())) in ("\r", "\t", " "):
                source.position += 1
            return calls if char in ("", "\n", "<") or is_token(char) else []
        char = yield from source.space()
        # If the output was cut off, text might have followed.
        if (not char and not source.cut) or is_token(char) or (yield from source.ahead(ends)):
            return calls
        if not (yield from source.ahead(OPENERS)):
            return []


def _block_calls(source: Source, tools: Mapping[str, Schema], opener: str, exact: bool) -> Reading[list[UnmarkedCall]]:
    """Read the calls of one block through its closing marker; [] if it has anything else. opener: its opening marker,
    which was consumed; "" for bare JSON."""
    closers = [_CLOSERS.get(opener, "")]
    char = yield from source.space()
    if char == "<" and (inner := (yield from source.match(OPENERS))):
        closers.insert(0, _CLOSERS[inner])
        char = yield from source.space()
    calls: list[UnmarkedCall] = []
    while char and char in "{[":
        # Qwen2.5-Coder's template shows the braces of a call doubled. Its models write what it shows, and sometimes
        # close more braces than they opened.
        doubled = yield from source.ahead(_DOUBLED_BRACE)
        if doubled:
            source.position += 1
        value = yield from _value(source)
        if doubled:
            closed = 0
            while (yield from source.space()) == "}":
                source.position += 1
                closed += 1
            if not closed:
                return []
        if isinstance(value, dict) and set(value) == {_TOOL_CALLS}:
            value = value[_TOOL_CALLS]
        items = value if isinstance(value, list) else [value]
        valid_calls = [call for item in items if (call := _call(item, tools, exact)) is not None]
        if not items or len(valid_calls) < len(items):
            return []
        calls += valid_calls
        char = yield from source.space(",;")
    for closer in filter(None, closers):
        yield from source.space()
        if not (yield from source.match(scanner_for((closer,)))):
            char = yield from source.peek()
            if source.cut or not (char == "" or is_token(char)):  # a model may end without closing a fence
                return []
    return calls


def count_calls(text: str, tools: Mapping[str, Schema]) -> int:
    """Return the number of calls of which a whole answer consists, bare or in fences; 0 if it has anything else."""
    source = Source()
    source.add(text.strip())
    source.final = True
    try:
        next(read_block(source, tools, scanner_for(())))
    except StopIteration as end:
        return len(end.value)
    return 0


def _value(source: Source) -> Reading[object]:
    """Read the JSON value that begins here; None if it is not one or cannot contain calls."""
    value, may_be_call = JsonText(), False
    while True:
        # Other data in a fence is streamed as text, so its first key must decide.
        if not may_be_call:
            beginning = source.text[source.position : source.position + MOST_OPENING]
            likely = begins_call(beginning)
            if likely is False:
                key, listing = beginning.lstrip("{[ \t\r\n"), f'"{_TOOL_CALLS}'
                likely = True if key.startswith(listing) else None if listing.startswith(key) else False
            if likely is False or (likely is None and len(beginning) == MOST_OPENING):
                return None
            may_be_call = likely is True
        if may_be_call or source.final:
            source.position = value.consume(source.text, source.position, source.final)
            if value.done:
                return _loaded(value.take())
            if value.failed or value.stopped or source.final:
                return None
        yield


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call(value: object, tools: Mapping[str, Schema], exact: bool) -> UnmarkedCall | None:
    """Return the call that a JSON object is, or None if it is not a valid call of a declared tool."""
    if not isinstance(value, dict):
        return None
    for key in WRAPPERS:
        if isinstance(value.get(key), dict):
            return _call(value[key], tools, exact)
    parts = {ROLES[key]: part for key, part in value.items() if key in ROLES}
    name, arguments = parts.get("name"), parts.get("arguments")
    arguments = _loaded(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    name = without_namespace(name, tools)
    if name not in tools:
        return None
    schema = tools[name]
    repaired = _repaired(arguments, schema, schema)
    text = json.dumps(repaired, ensure_ascii=False)
    if exact:
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        declared = properties.keys() if isinstance(properties, Mapping) else set()
        if text != json.dumps(arguments, ensure_ascii=False) or not arguments.keys() <= declared:
            return None
    return UnmarkedCall(name, text) if fits(repaired, schema, schema) else None


def _repaired(value: Any, schema: Schema, root: Schema) -> Any:
    """Convert numbers, booleans and JSON that are strings in the value to the types of the schema, and leave out null
    for optional properties that cannot be null."""
    allowed = types(schema, root)
    if isinstance(value, dict):
        own = resolved(schema, root)
        required = own.get("required") if isinstance(own, Mapping) else None
        needed = required if isinstance(required, list) else ()
        inner = {key: property_schema(schema, key, root) for key in value}
        return {
            key: _repaired(item, inner[key], root)
            for key, item in value.items()
            if item is not None or key in needed or "null" in types(inner[key], root)
        }
    if isinstance(value, list):
        return [_repaired(item, item_schema(schema, root), root) for item in value]
    if isinstance(value, str) and "string" not in allowed:
        parsed = _loaded(value.lower() if value in ("True", "False") else value)
        return value if parsed is None and "null" not in allowed else parsed
    if isinstance(value, float) and value.is_integer() and "number" not in allowed and "integer" in allowed:
        return int(value)
    return value


def fits(value: Any, schema: Schema, root: Schema) -> bool:
    """Return whether a JSON value has the types, required properties and enumerated values of the schema."""
    own = resolved(schema, root)
    if not isinstance(own, Mapping):
        return own is not False
    kind = type_of(value)
    accepted = {kind}
    if kind == "integer" or (kind == "number" and value.is_integer()):
        accepted = {"integer", "number"}
    if not accepted & types(schema, root):
        return False
    options = own.get("enum")
    if isinstance(options, list) and value not in options:
        return False
    if "const" in own and value != own["const"]:
        return False
    if isinstance(value, list):
        return all(fits(item, item_schema(schema, root), root) for item in value)
    if not isinstance(value, dict):
        return True
    required, properties = own.get("required"), own.get("properties")
    if isinstance(required, list) and any(name not in value for name in required):
        return False
    if (
        own.get("additionalProperties") is False
        and isinstance(properties, Mapping)
        and value.keys() - properties.keys()
    ):
        return False
    return all(fits(item, property_schema(schema, name, root), root) for name, item in value.items())
