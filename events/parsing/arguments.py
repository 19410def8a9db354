"""Reading the arguments of a call, in each of the styles of `events.formats.output_format.Arguments`.

Every reader starts behind the call's header, writes JSON text through the call, and stops in front of what ends the
arguments. An object whose first key does not open, or a text that is something else, is no call (`NoCall`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from events.formats.output_format import Arguments
from events.parsing.argument_context import NAME_LIMIT, ArgumentContext, NoCall, argument_ends
from events.parsing.json_text import JsonText, word_to_json
from events.parsing.literals import quoted
from events.parsing.scanner import Scanner, scanner_for
from events.parsing.schema import Schema, property_schema
from events.parsing.source import Reading, Source
from events.parsing.syntax import is_special
from events.parsing.typed_value import TypedValue, value_types
from events.parsing.xml_arguments import nested_arguments

_LOOK_AHEAD = 64
_WRAPPERS = frozenset({"arguments", "parameters", "input", "args"})
_FIRST_KEY = re.compile(r'\{\s*(?:"([^"\\]*)"|\})')
_CDATA = scanner_for(("<![CDATA[",))


def read_arguments(call: ArgumentContext) -> Reading[None]:
    """The arguments in the format's own style."""
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
    """Read one value and write it as it comes. What the end of the output cuts off is completed, unless it is the
    model's own JSON (`verbatim`), of which exactly what was written is passed on."""
    source, output = call.source, value.output
    while True:
        source.position = value.consume(source.text, source.position, source.final)
        # Before the first key nothing was written, so the whole text can still be shown.
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
        except GeneratorExit:  # the output was cut off here, and no reader goes on
            if verbatim and value.committed:
                value.flush()
                call.write(output.take())
            raise


def json_arguments(call: ArgumentContext) -> Reading[None]:
    """A JSON object; nothing at all is an empty one."""
    if (yield from call.source.space()) == "{":
        yield from stream(call, JsonText(stops=call.calls.ends, eager=True), verbatim=True)
    else:
        yield from no_arguments(call)


def no_arguments(call: ArgumentContext) -> Reading[None]:
    """A call without arguments, which only the call's end or the output's may follow; or the word null."""
    source, calls = call.source, call.calls
    if (yield from source.match(call.syntax.scanner("null", "None"))):
        yield from source.space()
    ends = call.syntax.scanner(*calls.ends, *calls.starts)
    if (yield from source.peek()) and not (yield from source.ahead(ends)) and (calls.call_end or calls.section_end):
        raise NoCall("the arguments are not an object")
    if not source.final or source.position < len(source.text):
        call.write("{}")


def object_arguments(call: ArgumentContext) -> Reading[None]:
    """Python keyword arguments, or an object with bare keys; both end with their bracket."""
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
    if bracket == "(" and not python:  # some write the object as if it were a call of Python's
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
    """One block for each argument, in any order; text between blocks is left out. A format that announces calls only
    whole also refuses what does not fit the tool."""
    source, calls = call.source, call.calls
    ends = argument_ends(calls)
    blocks = call.syntax.scanner(calls.argument_name, *ends)
    strict = calls.tools.commit == "call"
    seen: set[str] = set()
    while True:
        between, marker = yield from source.until(blocks, NAME_LIMIT)
        if strict and between.strip():
            raise NoCall("text between arguments")
        if call.syntax.canonical(marker) != calls.argument_name:
            source.position -= len(marker)
            break
        header = yield from _argument_header(call, ends)
        if header is None:
            break
        key, declared = header
        # All arguments in one, as JSON: only if the tool has no such argument, and the JSON names one that it has.
        if not seen and _may_wrap(call, key) and (yield from source.space()) == "{" and (yield from _wraps(call)):
            yield from _wrapped_arguments(call)
            return
        if strict and (key in seen or (call.schema is not None and not _is_property(call, key))):
            raise NoCall(f"{key[:40]!r} is no argument of the tool, or is given twice")
        call.write(f"{', ' if seen else '{'}{quoted(key)}: ")
        seen.add(key)
        kinds = value_types(
            property_schema(call.schema, key, call.schema), call.schema, declared, calls.tools.arguments.untyped
        )
        yield from _tagged_value(call, kinds, ends, seen)
    if seen or not source.final or source.position < len(source.text):
        call.write("}" if seen else "{}")


def _may_wrap(call: ArgumentContext, key: str) -> bool:
    """Whether a model may have put all its arguments into one that the tool does not have."""
    properties = call.schema.get("properties") if isinstance(call.schema, Mapping) else None
    return key in _WRAPPERS and isinstance(properties, Mapping) and bool(properties) and key not in properties


def _wraps(call: ArgumentContext) -> Reading[bool]:
    """Whether the object that begins here has the tool's arguments: its first key is one, or it has none."""
    source = call.source
    while True:
        beginning = source.text[source.position : source.position + NAME_LIMIT]
        if found := _FIRST_KEY.match(beginning):
            return found[1] is None or found[1] in call.schema["properties"]
        if source.final or len(beginning) == NAME_LIMIT:
            return False
        yield


def _wrapped_arguments(call: ArgumentContext) -> Reading[None]:
    """All arguments as one JSON object in a tag."""
    yield from stream(call, JsonText(stops=(call.calls.argument_end, *call.calls.ends)), verbatim=True)
    yield from call.source.space()
    yield from call.source.match(call.syntax.scanner(call.calls.argument_end))


def _argument_header(call: ArgumentContext, ends: tuple[str, ...]) -> Reading[tuple[str, str] | None]:
    """Name and declared type of an argument whose opener was read; None if the call ends instead. An opener without
    a value is passed over."""
    source, calls = call.source, call.calls
    scanner = call.syntax.scanner(calls.argument_value, calls.argument_name, *ends)
    while True:
        header, marker = yield from source.until(scanner, NAME_LIMIT)
        found = call.syntax.canonical(marker)
        if found == calls.argument_name:
            continue
        if found != calls.argument_value:
            source.position -= len(marker)
            return None
        line, line_break, rest = header.partition("\n")
        if (
            line_break and found.strip() == ">" and _is_property(call, line.strip())
        ):  # the opener's bracket is forgotten
            source.unread(line_break + rest + marker)
            header = line
        return _name_and_type(calls.tools.arguments, call.syntax.in_canonical_spelling(header))


def _is_property(call: ArgumentContext, key: str) -> bool:
    return call.schema is not None and property_schema(call.schema, key, call.schema) is not None


def _name_and_type(a: Arguments, header: str) -> tuple[str, str]:
    """`city" type="string"` → ("city", "string")."""
    suffix, before = a.name_suffix.strip(), a.type_prefix.strip()
    quote = a.name_prefix.strip()[-1:]
    end = quote if quote in ("'", '"') else suffix
    name, _, rest = header.partition(end) if end and end in header else (header, "", "")
    declared = ""
    if before and before in (end + rest):
        declared = (end + rest).partition(before)[2].partition(a.type_suffix.strip())[0]
    return name.strip(), declared.strip()


def _tagged_value(call: ArgumentContext, kinds: frozenset[str], ends: tuple[str, ...], seen: set[str]) -> Reading[None]:
    """A value up to its end marker, or up to the next argument or the call's end where the model forgot it. A marker
    only counts where something that belongs to the call follows it: a string may contain it."""
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
            behind = stop + len(marker)
            found = call.syntax.canonical(marker.strip())
            if found == calls.argument_name:
                after = _opens_next(call, behind, seen)
            elif found == end:
                after = _follows(source, following, nexts, behind)
            else:
                after = _ends_output(call, behind)
            # The marker is part of the value. None waits: the text behind it decides.
            if after is False:
                value.write(marker)
            if after is not None:
                source.position = stop if after and found != end else behind
            if after:
                break
        if value.parts:
            call.write(value.take())
        if source.final and source.position >= len(source.text):
            break
        if marker is None or after is None:
            yield
    value.end()
    call.write(value.take())


def _opens_next(call: ArgumentContext, position: int, seen: set[str]) -> bool | None:
    """Whether the argument's opener that ends at `position`, within a value, begins the next argument: one that the
    tool has and that was not given yet, or any where the opener is no text. None: undecided."""
    source, calls = call.source, call.calls
    scanner = call.syntax.scanner(calls.argument_value, calls.argument_end, *calls.ends)
    stop, found = scanner.find(source.text, position, source.final)
    if stop - position > _LOOK_AHEAD:
        return False
    if found is None:
        return False if source.final else None
    if call.syntax.canonical(found) != calls.argument_value:
        return False
    key = _name_and_type(calls.tools.arguments, call.syntax.in_canonical_spelling(source.text[position:stop]))[0]
    properties = call.schema.get("properties") if isinstance(call.schema, Mapping) else None
    if isinstance(properties, Mapping):
        return key in properties and key not in seen
    return is_special(calls.argument_name) and key not in seen


def _ends_output(call: ArgumentContext, position: int) -> bool | None:
    """Whether a call's end marker that ends at `position`, within a value, ends the call: only further end markers
    follow, or another call. None: undecided."""
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
        found = ends.match(text, position, source.final)
        if isinstance(found, str):
            position += len(found)
        elif found is True:
            return None
        else:
            opened = starts.match(text, position, source.final)
            return None if opened is True else bool(opened)


def _follows(source: Source, following: Scanner, nexts: tuple[str, ...], position: int) -> bool | None:
    """Whether what belongs to the call stands at `position`, or the end: what leads to the next argument (`nexts`)
    behind any white space, an end marker at once or on a new line. None: undecided."""
    text, start = source.text, position
    while position < len(text) and text[position].isspace():
        position += 1
    if position - start > _LOOK_AHEAD:
        return True
    if position >= len(text):
        return True if source.final else None
    found = following.match(text, position, source.final)
    if found is True:
        return None
    return found in nexts or (bool(found) and (position == start or "\n" in text[start:position]))
