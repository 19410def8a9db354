"""What every wire's inbound parser returns, the limits it reads under, and the reading of untrusted JSON."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from events.options import GenerationOptions


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request, checked before anything is built from it.

    body: bytes. values: JSON values in the body, over-estimated from its punctuation. containers: arrays and objects,
    which cost far more than numbers to build. depth: their nesting. messages, tools, parts, tool_calls, context,
    resume: items per list. name: characters of an id or a name. schema: bytes of one tool's JSON schema.
    """

    body: int = 16 * 1024 * 1024
    values: int = 250_000
    containers: int = 100_000
    depth: int = 64
    messages: int = 4096
    tools: int = 512
    parts: int = 256
    tool_calls: int = 256
    context: int = 256
    resume: int = 64
    name: int = 512
    schema: int = 256 * 1024


DEFAULT_LIMITS = Limits()


class Inbound(msgspec.Struct, frozen=True, kw_only=True):
    """A request as the house sees it. `extra` is what the wire's own outbound side needs back (flags, echo values)."""

    input: RunAgentInput
    options: GenerationOptions = GenerationOptions()
    stream: bool = True
    extra: Any = None


class ReadMessage(NamedTuple):
    """A WebSocket message that was read and not acted on yet.

    kind: its `type`. fields: its other fields. inbound: the run that it asks for, or what is wrong with that; None for
    a message that asks for none.
    """

    kind: object
    fields: dict[str, Any]
    inbound: Inbound | RequestError | None = None


def read_json(body: bytes, limits: Limits = DEFAULT_LIMITS, *, shape: object = None) -> Any:
    """The JSON value in `body`, as plain Python data. Raises RequestError that says what to mend, quoting nothing.

    RFC 8259 to the letter: UTF-8 without a byte order mark, no NaN, no lone surrogates. `shape` is a msgspec type with
    the fields that the body must have at least; a body that lacks them is refused at its first fault, so that a list of
    a hundred thousand empty objects costs no more than its first item. Lists of the shape are also held to the limit of
    the same name, before the rest of the body is built.
    """
    if len(body) > limits.body:
        raise RequestError("payload_too_large", f"The body is larger than {limits.body} bytes.")
    opened = body.count(b"[") + body.count(b"{")
    if body.count(b",") + opened > limits.values:
        raise RequestError("payload_too_large", f"The body holds more than {limits.values} JSON values.")
    if opened > limits.depth:  # what opens no more than that cannot nest deeper
        _check_nesting(body, limits)
    try:
        if shape is not None:
            _check_lists(msgspec.json.decode(body, type=shape), limits)
        value = msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise _shape_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError("invalid_request", f"The body is not valid JSON in UTF-8{_position(error)}.") from None
    except RecursionError:
        raise _too_deep(limits) from None
    return value


CLOSING = ("payload_too_large", "unsupported_media_type")
"""Faults of a WebSocket message after which its connection is closed: the client's next one would have them too."""


def read_text(data: str | bytes, limits: Limits) -> dict[str, object]:
    """The JSON object in a WebSocket message. Raises RequestError; bytes are a binary message, which none of the
    protocols has."""
    if isinstance(data, bytes):
        raise RequestError("unsupported_media_type", "Messages are JSON text, not binary.")
    fields: dict[str, Any] = read_json(data.encode("utf-8", "surrogatepass"), limits, shape=dict)
    return fields


def _check_lists(head: object, limits: Limits) -> None:
    for name in getattr(head, "__struct_fields__", ()):
        value, most = getattr(head, name), getattr(limits, name, None)
        if isinstance(value, list) and most is not None and len(value) > most:
            raise RequestError("invalid_request", f"{name} must have at most {most} items.", param=name)


_OTHERS = bytes(set(range(256)) - set(b'[{]}"'))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""One down for what opens, one up for what closes, as signed bytes."""
_STRINGS = re.compile(rb'"[^"]*"')


def _check_nesting(body: bytes, limits: Limits) -> None:
    """Raise RequestError for too many arrays and objects, or too deep ones, before any is built: counting 200,000 of
    them in the text takes 15 ms here, and building them to count them 150. What is no JSON is left to the parser."""
    if b"\\" in body:  # a quote behind a backslash ends no string, but for a backslash that is itself behind one
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _OTHERS).replace(b'""', b"")  # most strings are empty now, and need no expression
    steps = _STRINGS.sub(b"", marks).replace(b'"', b"").translate(_STEPS)
    if max(accumulate(memoryview(steps).cast("b")), default=0) > limits.depth:
        raise _too_deep(limits)
    if steps.count(b"\x01") > limits.containers:
        raise RequestError("payload_too_large", f"The body holds more than {limits.containers} arrays and objects.")


def _too_deep(limits: Limits) -> RequestError:
    return RequestError("invalid_request", f"The body nests deeper than {limits.depth} levels.")


def _position(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f" (bad UTF-8 at byte {error.start} of a string)"
    found = re.search(r"\(byte (\d+)\)", str(error))
    return f" (at byte {found[1]})" if found else " (it ends too early, or a character escape is broken)"


_JSON_TYPES = {"str": "a string", "object": "an object", "array": "an array", "int": "a whole number"} | {
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


def _shape_error(text: str) -> RequestError:
    """msgspec names fields of the shape and positions, never keys or values of the data."""
    message, _, where = text.partition(" - at `$")
    path = ".".join(re.findall(r"[A-Za-z_]\w*|\d+", where))
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError("invalid_request", f"{path} is required.", param=path)
    wanted = re.match(r"Expected `(\w+)[^`]*`", message)
    if wanted:
        kind = _JSON_TYPES.get(wanted[1], wanted[1])
        return RequestError("invalid_request", f"{path or 'The body'} must be {kind}.", param=path or None)
    return RequestError("invalid_request", "A number in the body is out of range.", param=path or None)
