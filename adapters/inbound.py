"""What every wire's inbound parser returns, the limits it reads under, and the reading of untrusted JSON."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from events.options import GenerationOptions


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one request, checked before anything is built from it.

    body: bytes. values: JSON values in the body, over-estimated from its punctuation. depth: nesting of arrays and
    objects. messages, tools, parts, tool_calls, context, resume: items per list. name: characters of an id or a name.
    schema: bytes of one tool's JSON schema.
    """

    body: int = 16 * 1024 * 1024
    values: int = 250_000
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
    if opened > limits.depth:  # what opens no more than that cannot nest deeper
        check_depth(value, limits)
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


def check_depth(value: object, limits: Limits) -> None:
    """Raise RequestError when arrays and objects nest deeper than `limits.depth`."""
    level: list[Any] = [value]
    for _ in range(limits.depth + 1):
        level = [child for node in level if node for child in _children(node) if isinstance(child, dict | list)]
        if not level:
            return
    raise _too_deep(limits)


def _children(node: object) -> Any:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list) else ()


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
