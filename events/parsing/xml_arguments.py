"""Arguments that are elements named after their keys, which nest: `<city>Paris</city>`."""

from __future__ import annotations

from events.parsing.argument_context import NAME_LIMIT, ArgumentContext, NoCall, argument_ends
from events.parsing.literals import quoted
from events.parsing.scanner import Scanner
from events.parsing.schema import ANY, Schema, item_schema, property_schema, resolved, types
from events.parsing.source import Reading
from events.parsing.typed_value import TypedValue

_DEPTH = 64
_UNLIMITED = 1 << 62
_NESTS = frozenset({"object", "array", "null"})


def nested_arguments(call: ArgumentContext) -> Reading[None]:
    """Elements named after their keys: `<city>Paris</city>`, which hold text, further elements or items. What is no
    element ends the arguments: those before it stay."""
    call_ends = call.syntax.scanner(*argument_ends(call.calls))
    opened: list[str] = []
    try:
        yield from _elements(call, call_ends, opened)
    except NoCall:
        # Nothing was told of the call yet, so it may still be text. Once an argument was told, the call must end well.
        if not opened:
            raise
        call.write("".join(reversed(opened)))
        _, marker = yield from call.source.until(call_ends, _UNLIMITED)
        call.source.position -= len(marker)
        return
    if opened or not call.source.final:
        call.write("}" if opened else "{}")


def _elements(call: ArgumentContext, call_ends: Scanner, opened: list[str]) -> Reading[None]:
    """Arguments up to the call's end. `opened`: the brackets that are to be closed."""
    while True:
        yield from call.source.space()
        if (yield from call.source.ahead(call_ends)):
            return
        key = yield from _element_start(call)
        if not key:
            return
        call.write(f"{', ' if opened else '{'}{quoted(key)}: ")
        opened[:] = ["}"]
        yield from _element(call, key, property_schema(call.schema, key, call.schema), opened)


def _element_start(call: ArgumentContext) -> Reading[str]:
    """The name of the element that opens here, else ""."""
    source = call.source
    prefix = call.calls.tools.arguments.element_prefix
    if not (yield from source.match(call.syntax.scanner(prefix + "<"))):
        if (yield from source.peek()):
            raise NoCall("text where an argument should open")
        return ""
    if (yield from source.peek()) == "/":
        raise NoCall("an element closes that was not opened")
    name, _ = yield from source.until(call.syntax.scanner(">"), NAME_LIMIT)
    return name.strip()


def _element(call: ArgumentContext, name: str, schema: Schema, opened: list[str]) -> Reading[None]:
    """The rest of an element: a value, elements, or items; and its end."""
    prefix = call.calls.tools.arguments.element_prefix
    schema = resolved(schema, call.schema)
    kinds = types(schema, call.schema)
    # A string is text whatever it contains: only what the schema lets nest, or says nothing of, is looked into.
    if len(opened) < _DEPTH and (kinds == ANY or kinds <= _NESTS or (prefix and kinds & _NESTS)):
        yield from call.source.space()
        tag = yield from call.source.ahead(call.syntax.scanner(prefix + "<", prefix + "</"))
        if tag == prefix + "<":
            yield from _children(call, name, schema, opened)
            return
        # It closes at once. Where the schema asks for an object or a list that is an empty one, and no text.
        if tag and "string" not in kinds and kinds & {"object", "array"}:
            call.write("{}" if "object" in kinds else "[]")
            kinds = frozenset()
    # Without a prefix of its own an element ends by its name alone, since `</` may be part of a value.
    ends = argument_ends(call.calls)
    end = prefix + "</" if prefix else f"</{name}>"
    found = yield from _text_value(call, kinds, call.syntax.scanner(end, *(ends if prefix else ())))
    # The call's end came before the element's: it is left for who reads the call.
    if found in ends:
        call.source.position -= len(found)
    elif prefix:
        yield from call.source.until(call.syntax.scanner(">"), NAME_LIMIT)


def _text_value(call: ArgumentContext, kinds: frozenset[str], ends: Scanner) -> Reading[str]:
    """A value up to its end marker, which is consumed and returned. No kinds: the value is written already."""
    source, value = call.source, TypedValue(kinds)
    while True:
        stop, found = ends.find(source.text, source.position, source.final)
        value.write(source.text[source.position : stop])
        source.position = stop + len(found or "")
        if found or source.final:
            break
        if value.parts and kinds:
            call.write(value.take())
        yield
    value.end()
    if kinds:
        call.write(value.take())
    return found or ""


def _children(call: ArgumentContext, name: str, schema: Schema, opened: list[str]) -> Reading[None]:
    """Elements within an element: a list where they are items, else an object."""
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
    """The name of the element that follows within one; "" behind its end."""
    yield from call.source.space()
    return "" if (yield from call.source.match(end)) else (yield from _element_start(call))


def _member(call: ArgumentContext, key: str, schema: Schema, opened: list[str], end: Scanner) -> Reading[str]:
    """An element within an element, and the name of the one behind it. Several of one name are a list, where no schema
    says what they are; so the first waits for the next."""
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
    """A call whose argument text is kept in `parts`."""

    def __init__(self, call: ArgumentContext) -> None:
        self.source, self.syntax, self.calls, self.schema = call.source, call.syntax, call.calls, call.schema
        self.parts: list[str] = []

    def write(self, text: str) -> None:
        self.parts.append(text)
