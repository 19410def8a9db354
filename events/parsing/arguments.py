"""Reading the arguments of a call, in each of the styles of `events.formats.output_format.Arguments`.

Every reader starts after the call's header, writes JSON text through the call, and stops before the end of the
arguments. An object without a valid first key, or any other text, is not a call (`NoCall`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from events.formats.output_format import Arguments
from events.parsing.json_output import quoted
from events.parsing.json_text import JsonText, word_to_json
from events.parsing.schema import ANY, Schema, item_schema, property_schema, resolved, types
from events.parsing.source import Reading, Scanner, Source, is_token, scanner_for
from events.parsing.syntax import CallSyntax, Syntax, is_special, substantial
from events.parsing.typed_value import TypedValue, value_types

NAME_LIMIT = 1024
"""The most characters of an argument's name."""


class NoCall(Exception):
    """The text is not a call. incomplete: it is well-formed but has no name or no arguments."""

    def __init__(self, message: str, incomplete: bool = False) -> None:
        super().__init__(message)
        self.incomplete = incomplete


class ArgumentContext(Protocol):
    """The call that is being read. `write` adds JSON text; the first write announces the call."""

    source: Source
    syntax: Syntax
    calls: CallSyntax
    schema: Schema

    def write(self, text: str) -> None: ...


def argument_ends(calls: CallSyntax) -> tuple[str, ...]:
    """Return the markers that end a list of tagged arguments."""
    following = (calls.name_prefix,) if substantial(calls.name_prefix) else ()
    return tuple(dict.fromkeys((*calls.ends, *calls.starts, *following)))


_DEPTH = 64
_UNLIMITED = 1 << 62
_NESTS = frozenset({"object", "array", "null"})


def nested_arguments(call: ArgumentContext) -> Reading[None]:
    """Read elements named after their keys, `<city>Paris</city>`, with text, further elements or items. Anything else
    ends the arguments; those before it stay."""
    call_ends = call.syntax.scanner(*argument_ends(call.calls))
    opened: list[str] = []  # the brackets that must be closed
    try:
        while True:
            yield from call.source.space()
            if (yield from call.source.ahead(call_ends)):
                break
            key = yield from _element_start(call)
            if not key:
                break
            call.write(f"{', ' if opened else '{'}{quoted(key)}: ")
            opened[:] = ["}"]
            yield from _element(call, key, property_schema(call.schema, key, call.schema), opened)
    except NoCall:
        # Before the first argument the call may still be text. After that it must end as a valid call.
        if not opened:
            raise
        call.write("".join(reversed(opened)))
        _, marker = yield from call.source.until(call_ends, _UNLIMITED)
        call.source.position -= len(marker)
        return
    if opened or not call.source.final:
        call.write("}" if opened else "{}")


def _element_start(call: ArgumentContext) -> Reading[str]:
    """Read the opening tag of an element. Return its name, or "" if there is none."""
    source = call.source
    prefix = call.calls.tools.arguments.element_prefix
    if not (yield from source.match(call.syntax.scanner(prefix + "<"))):
        if (yield from source.peek()):
            raise NoCall("text where an argument should begin")
        return ""
    if (yield from source.peek()) == "/":
        raise NoCall("an element closes that was not opened")
    name, _ = yield from source.until(call.syntax.scanner(">"), NAME_LIMIT)
    return name.strip()


def _element(call: ArgumentContext, name: str, schema: Schema, opened: list[str]) -> Reading[None]:
    """Read the rest of an element: a value, elements or items, and its end."""
    prefix = call.calls.tools.arguments.element_prefix
    schema = resolved(schema, call.schema)
    kinds = types(schema, call.schema)
    # A string is text whatever it contains; nested elements are read only if the schema does not exclude them.
    if len(opened) < _DEPTH and (kinds == ANY or kinds <= _NESTS or (prefix and kinds & _NESTS)):
        yield from call.source.space()
        tag = yield from call.source.ahead(call.syntax.scanner(prefix + "<", prefix + "</"))
        if tag == prefix + "<":
            yield from _children(call, name, schema, opened)
            return
        # An element that closes at once is an empty object or list if the schema requires one, otherwise empty text.
        if tag and "string" not in kinds and kinds & {"object", "array"}:
            call.write("{}" if "object" in kinds else "[]")
            kinds = frozenset()
    # Without a prefix an element ends only with its full closing tag, since `</` may be part of a value. A prefix that
    # is spelled out may be as well: then an opening tag is text, and so is another element's closing tag before text.
    ends = argument_ends(call.calls)
    spelled_prefix = prefix if prefix and not any(map(is_token, prefix)) else ""
    end = prefix + "</" if prefix else f"</{name}>"
    scanner = call.syntax.scanner(end, *(ends if prefix and not spelled_prefix else ()))
    source, value = call.source, TypedValue(kinds)  # without kinds the value is already written
    while True:
        stop, marker = scanner.find(source.text, source.position, source.final)
        value.write(source.text[source.position : stop])
        source.position = stop
        if marker and spelled_prefix:
            marker = yield from _closing_tag(source, spelled_prefix, name)
            if not marker:
                value.write(end)
                source.position += len(end)
                continue
        if marker or source.final:
            break
        if value.parts and kinds:
            call.write(value.take())
        yield
    value.end()
    if kinds:
        call.write(value.take())
    # The call's end before the element's is left for the call's reader.
    if marker and marker not in ends:
        source.position += len(marker)
        if prefix and not spelled_prefix:
            yield from source.until(call.syntax.scanner(">"), NAME_LIMIT)


def _closing_tag(source: Source, prefix: str, name: str) -> Reading[str]:
    """Return the closing tag that begins here, which is not consumed, or "" if it is part of a value: it is not that of
    the element `name`, and neither another tag nor the end of the output follows it."""
    closing = re.compile(re.escape(prefix) + r"</([^<>\s]*)(>?)")
    while True:
        match = closing.match(source.text, source.position)
        assert match is not None, "the caller has found the tag's beginning"
        behind = source.text[match.end() : match.end() + _LOOK_AHEAD]
        following = behind.lstrip()
        if match[2]:
            if match[1] == name or following.startswith(prefix) or (source.final and not following):
                return match.group()
            if source.final or len(behind) == _LOOK_AHEAD or not prefix.startswith(following):
                return ""
        elif behind or source.final or len(match.group()) > NAME_LIMIT:
            return "" if behind else match.group()
        yield


def _children(call: ArgumentContext, name: str, schema: Schema, opened: list[str]) -> Reading[None]:
    """Read elements within an element: a list if they are items, otherwise an object."""
    a = call.calls.tools.arguments
    end = call.syntax.scanner(f"{a.element_prefix}</{name}>")
    key = yield from _element_start(call)
    is_list = key == a.item and types(schema, call.schema) != {"object"}
    call.write("[" if is_list else "{")
    opened.append("]" if is_list else "}")
    while key:
        if is_list:
            yield from _element(call, key, item_schema(schema, call.schema), opened)
            key = yield from _next_element(call, end)
        else:
            key = yield from _member(call, key, property_schema(schema, key, call.schema), opened, end)
        call.write(", " if key else opened.pop())


def _next_element(call: ArgumentContext, end: Scanner) -> Reading[str]:
    """Return the name of the next element within an element, or "" at its end, which is consumed."""
    yield from call.source.space()
    return "" if (yield from call.source.match(end)) else (yield from _element_start(call))


def _member(call: ArgumentContext, key: str, schema: Schema, opened: list[str], end: Scanner) -> Reading[str]:
    """Read an element within an element and return the name of the next one.

    If no schema gives its type, several elements with one name are a list, so the first one is held until the next.
    """
    call.write(f"{quoted(key)}: ")
    if types(schema, call.schema) != ANY:
        yield from _element(call, key, schema, opened)
        return (yield from _next_element(call, end))
    first = _HeldCall(call)
    try:
        yield from _element(first, key, schema, opened)
        following = yield from _next_element(call, end)
    except NoCall:
        call.write("".join(first.parts))
        raise
    call.write(("[" if following == key else "") + "".join(first.parts))
    if following == key:
        opened.append("]")
        while following == key:
            call.write(", ")
            yield from _element(call, key, schema, opened)
            following = yield from _next_element(call, end)
        call.write(opened.pop())
    return following


class _HeldCall:
    """A stand-in for a call that collects argument text in `parts`."""

    def __init__(self, call: ArgumentContext) -> None:
        self.source, self.syntax, self.calls, self.schema = call.source, call.syntax, call.calls, call.schema
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)


_LOOK_AHEAD = 64
_WRAPPERS = frozenset({"arguments", "parameters", "input", "args"})
_FIRST_KEY = re.compile(r'\{\s*(?:"([^"\\]*)"|\})')
_CDATA = scanner_for(("<![CDATA[",))


def read_arguments(call: ArgumentContext) -> Reading[None]:
    """Read the arguments in the format's style."""
    style = call.calls.tools.arguments.style
    if style == "json" or (style == "tagged" and (yield from call.source.space()) == "{"):
        yield from json_arguments(call)
    elif style == "tagged":
        yield from tagged_arguments(call)
    elif style == "nested":
        yield from nested_arguments(call)
    else:
        yield from object_arguments(call)


def stream(call: ArgumentContext, value: JsonText, verbatim: bool) -> Reading[None]:
    """Read one value and write it as it arrives. A value that the end of the output cuts off is completed, unless it is
    the model's own JSON (`verbatim`), of which exactly the text is passed on."""
    source, output = call.source, value.output
    while True:
        source.position = value.consume(source.text, source.position, source.final)
        # Nothing is written before the first key, so the whole text can still be shown.
        if value.failed:
            raise NoCall("the arguments are not an object")
        if value.stopped or (source.final and not value.done and value.committed):
            value.flush() if verbatim and not value.stopped else value.close()
            call.write(output.take())
            return
        if value.committed and output.parts:
            call.write(output.take())
        if value.done or source.final:
            return
        try:
            yield
        except GeneratorExit:  # the output was cut off here
            if verbatim and value.committed:
                value.flush()
                call.write(output.take())
            raise


def json_arguments(call: ArgumentContext) -> Reading[None]:
    """Read a JSON object; no arguments at all are an empty one."""
    if (yield from call.source.space()) == "{":
        yield from stream(call, JsonText(stops=call.calls.ends, eager=True), verbatim=True)
    else:
        yield from no_arguments(call)


def no_arguments(call: ArgumentContext) -> Reading[None]:
    """Read a call without arguments, which must be followed by the end of the call or of the output, or the word
    null."""
    source, calls = call.source, call.calls
    if (yield from source.match(call.syntax.scanner("null", "None"))):
        yield from source.space()
    ends = call.syntax.scanner(*calls.ends, *calls.starts)
    if (yield from source.peek()) and not (yield from source.ahead(ends)) and (calls.call_end or calls.section_end):
        raise NoCall("the arguments are not an object")
    if not source.final or source.position < len(source.text):
        call.write("{}")


def object_arguments(call: ArgumentContext) -> Reading[None]:
    """Read Python keyword arguments or an object with bare keys; both end with their bracket."""
    a, calls = call.calls.tools.arguments, call.calls
    untyped = a.untyped

    def coerce(word: str, schema: Schema) -> str:
        kinds = value_types(schema, call.schema, "", untyped)
        value = TypedValue(kinds)
        value.write(word)
        value.end()
        return value.take()

    python = a.style == "python"
    bracket = "(" if python else (yield from call.source.space())
    if bracket not in ("{", "("):
        yield from no_arguments(call)
        return
    if bracket == "(" and not python:  # some models write the object like a Python call
        call.source.position += 1
    value = JsonText(
        keywords=bracket == "(",
        quote=a.quote,
        stops=calls.ends,
        coerce_string=coerce,
        schema=call.schema,
        coerce=word_to_json if python else coerce,
    )
    yield from stream(call, value, verbatim=False)


def tagged_arguments(call: ArgumentContext) -> Reading[None]:
    """Read one block per argument, in any order; text between blocks is left out. A format that announces only complete
    calls also refuses arguments that do not fit the tool."""
    source, calls = call.source, call.calls
    ends = argument_ends(calls)
    blocks = call.syntax.scanner(calls.argument_name, *ends)
    strict = calls.tools.commit == "call"
    read_keys: set[str] = set()
    properties = call.schema.get("properties") if isinstance(call.schema, Mapping) else None
    while True:
        between, marker = yield from source.until(blocks, NAME_LIMIT)
        if strict and between.strip():
            raise NoCall("text between arguments")
        if call.syntax.canonical(marker) != calls.argument_name:
            source.position -= len(marker)
            # GLM sometimes writes the call's opener in place of an argument's.
            misspelt = bool(marker) and call.syntax.canonical(marker) == calls.call_start
            if not (
                misspelt and isinstance(properties, Mapping) and (yield from _begins_argument(call, marker, read_keys))
            ):
                break
            source.position += len(marker)
        header = yield from _argument_header(call, ends)
        if header is None:
            break
        key, declared = header
        # All arguments in one, as JSON: only if the tool has no such argument and the JSON has one that the tool has.
        may_wrap = key in _WRAPPERS and isinstance(properties, Mapping) and bool(properties) and key not in properties
        if not read_keys and may_wrap and (yield from source.space()) == "{" and (yield from _wraps(call)):
            yield from stream(call, JsonText(stops=(calls.argument_end, *calls.ends)), verbatim=True)
            yield from source.space()
            yield from source.match(call.syntax.scanner(calls.argument_end))
            return
        if strict and (key in read_keys or (call.schema is not None and not _is_property(call, key))):
            raise NoCall(f"{key[:40]!r} is not an argument of the tool or occurs twice")
        call.write(f"{', ' if read_keys else '{'}{quoted(key)}: ")
        read_keys.add(key)
        kinds = value_types(
            property_schema(call.schema, key, call.schema), call.schema, declared, calls.tools.arguments.untyped
        )
        yield from _tagged_value(call, kinds, ends, read_keys)
    if read_keys or not source.final or source.position < len(source.text):
        call.write("}" if read_keys else "{}")


def _wraps(call: ArgumentContext) -> Reading[bool]:
    """Return whether the object that begins here has the tool's arguments: its first key is one of them or it is
    empty."""
    source = call.source
    while True:
        beginning = source.text[source.position : source.position + NAME_LIMIT]
        if match := _FIRST_KEY.match(beginning):
            return match[1] is None or match[1] in call.schema["properties"]
        if source.final or len(beginning) == NAME_LIMIT:
            return False
        yield


def _argument_header(call: ArgumentContext, ends: tuple[str, ...]) -> Reading[tuple[str, str] | None]:
    """Read name and declared type of an argument after its opener, or return None if the call ends instead. An opener
    without a value is skipped."""
    source, calls = call.source, call.calls
    scanner = call.syntax.scanner(calls.argument_value, calls.argument_name, *ends)
    while True:
        header, marker = yield from source.until(scanner, NAME_LIMIT)
        canonical_marker = call.syntax.canonical(marker)
        if canonical_marker == calls.argument_name:
            continue
        if canonical_marker != calls.argument_value:
            source.position -= len(marker)
            return None
        line, line_break, rest = header.partition("\n")
        # The opener's bracket may be missing.
        if line_break and canonical_marker.strip() == ">" and _is_property(call, line.strip()):
            source.unread(line_break + rest + marker)
            header = line
        return _name_and_type(calls.tools.arguments, call.syntax.in_canonical_spelling(header))


def _is_property(call: ArgumentContext, key: str) -> bool:
    return call.schema is not None and property_schema(call.schema, key, call.schema) is not None


def _name_and_type(a: Arguments, header: str) -> tuple[str, str]:
    """Split a header: `city" type="string"` → ("city", "string")."""
    suffix, before = a.name_suffix.strip(), a.type_prefix.strip()
    quote = a.name_prefix.strip()[-1:]
    end = quote if quote in ("'", '"') else suffix
    name, _, rest = header.partition(end) if end and end in header else (header, "", "")
    declared = ""
    if before and before in (end + rest):
        declared = (end + rest).partition(before)[2].partition(a.type_suffix.strip())[0]
    return name.strip(), declared.strip()


def _tagged_value(
    call: ArgumentContext, kinds: frozenset[str], ends: tuple[str, ...], read_keys: set[str]
) -> Reading[None]:
    """Read a value up to its end marker or, if the model forgot it, up to the next argument or the call's end.

    A string may contain a marker, so a marker counts only if a part of the call follows it.
    """
    source, calls, a = call.source, call.calls, call.calls.tools.arguments
    lead = a.value_prefix[len(a.value_prefix.rstrip()) :] if a.value_prefix.strip() else a.value_prefix
    tail = a.value_suffix[: len(a.value_suffix) - len(a.value_suffix.lstrip())]
    if lead:
        yield from source.match(call.syntax.scanner(lead))
    end = calls.argument_end
    if (yield from source.match(_CDATA)):
        end, tail = "]]>" + end, ""
    inner = (end, calls.argument_name, *calls.ends)
    scanner = call.syntax.scanner(*inner, *(tail + each for each in inner))
    nexts = tuple(mark for mark in (calls.argument_name, a.separator.strip()) if mark)
    following = call.syntax.scanner(*nexts, *ends)
    value = TypedValue(kinds)
    while True:
        stop, marker = scanner.find(source.text, source.position, source.final)
        if stop > source.position:
            value.write(source.text[source.position : stop])
            source.position = stop
        if marker is not None:
            marker_end = stop + len(marker)
            canonical_marker = call.syntax.canonical(marker.strip())
            if canonical_marker == calls.argument_name:
                counts = _opens_next(call, marker_end, read_keys)
            elif canonical_marker == end:
                counts = _follows(source, following, nexts, marker_end)
            else:
                counts = _ends_output(call, marker_end)
            # False: the marker is part of the value. None: the text after it decides.
            if counts is False:
                value.write(marker)
            if counts is not None:
                source.position = stop if counts and canonical_marker != end else marker_end
            if counts:
                break
        if value.parts:
            call.write(value.take())
        if source.final and source.position >= len(source.text):
            break
        if marker is None or counts is None:
            yield
    value.end()
    call.write(value.take())


def _begins_argument(call: ArgumentContext, marker: str, read_keys: set[str]) -> Reading[bool]:
    """Return whether the marker that stands here opens an argument, see `_opens_next`."""
    while (begins := _opens_next(call, call.source.position + len(marker), read_keys)) is None:
        yield
    return begins


def _opens_next(call: ArgumentContext, position: int, read_keys: set[str]) -> bool | None:
    """Return whether an argument's opener that ends at `position`, within a value, begins the next argument; None if
    undecided.

    It does if the tool has the argument and it was not read yet or, for a tool without properties, if the opener is a
    special token.
    """
    source, calls = call.source, call.calls
    scanner = call.syntax.scanner(calls.argument_value, calls.argument_end, *calls.ends)
    stop, marker = scanner.find(source.text, position, source.final)
    if stop - position > _LOOK_AHEAD:
        return False
    if marker is None:
        return False if source.final else None
    if call.syntax.canonical(marker) != calls.argument_value:
        return False
    key = _name_and_type(calls.tools.arguments, call.syntax.in_canonical_spelling(source.text[position:stop]))[0]
    properties = call.schema.get("properties") if isinstance(call.schema, Mapping) else None
    if isinstance(properties, Mapping):
        return key in properties and key not in read_keys
    return is_special(calls.argument_name) and key not in read_keys


def _ends_output(call: ArgumentContext, position: int) -> bool | None:
    """Return whether a call's end marker that ends at `position`, within a value, ends the call: only further end
    markers or another call follow. None if undecided."""
    source, calls = call.source, call.calls
    ends, starts = call.syntax.scanner(*calls.ends), call.syntax.scanner(*calls.starts)
    text, farthest = source.text, position + _LOOK_AHEAD
    while True:
        while position < min(len(text), farthest) and text[position].isspace():
            position += 1
        if position >= farthest:
            return True
        if position >= len(text):
            return True if source.final else None
        end = ends.match(text, position, source.final)
        if isinstance(end, str):
            position += len(end)
        elif end is True:
            return None
        else:
            start = starts.match(text, position, source.final)
            return None if start is True else bool(start)


def _follows(source: Source, following: Scanner, nexts: tuple[str, ...], position: int) -> bool | None:
    """Return whether a part of the call or the end is at `position`: a marker before the next argument (`nexts`) after
    any white space, or an end marker directly or on a new line. None if undecided."""
    text, start = source.text, position
    while position < len(text) and text[position].isspace():
        position += 1
    if position - start > _LOOK_AHEAD:
        return True
    if position >= len(text):
        return True if source.final else None
    marker = following.match(text, position, source.final)
    if marker is True:
        return None
    return marker in nexts or (bool(marker) and (position == start or "\n" in text[start:position]))
