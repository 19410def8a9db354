"""Reading an untrusted request body: limits, decoding, single values, what is left out with a warning, and the result.

Errors name the field in the client's own numbering.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import accumulate
from typing import Any, NamedTuple, TypeGuard, TypeVar, get_args

import msgspec
from ag_ui.core import Message, RunAgentInput, TextPart

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


MAX_SHOWN_NAME = 64
MOST_WARNINGS = 32
"""Of one request; a body may have any number of unknown fields."""
MEANT: Mapping[str, str] = {
    "chat_template": "the model's own template is used",
    "tools": "this endpoint has no tools",
    "functions": "this endpoint has no tools",
    "messages": "this endpoint takes no messages",
    "system": "give a system message",
    "instructions": "give a system message",
    "format": "use response_format",
    "options": "parameters stand beside the messages",
    "regex": "use structured_outputs",
    "ebnf": "use structured_outputs",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
}
"""Fields of other endpoints and servers that say what the answer is to be, with what to do instead: an answer that is
given without them is a wrong one, so they are refused where they are unknown."""
_NUMBERS = re.compile(r"\.\d+(?=\.|$)")


class Notes:
    """The notes of one request. strict: unknown fields are refused. count: called with the name of each unknown field,
    without the numbers of list items."""

    def __init__(self, *, strict: bool = False, count: Callable[[str], None] = lambda name: None) -> None:
        self.warnings: list[str] = []
        self.unknown: list[str] = []
        self._strict = strict
        self._count = count

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(sentence)

    def ignore(self, name: str) -> None:
        """Leave out an unknown field. RequestError where the server is strict."""
        shown = name[-MAX_SHOWN_NAME:]
        if self._strict:
            raise RequestError("invalid_request", f"{shown} is not a field of this request.", param=shown)
        if shown in self.unknown or len(self.unknown) >= MOST_WARNINGS:
            return
        self.unknown.append(shown)
        self._count(_NUMBERS.sub("", shown))
        self.warn(f"{shown} is not a field of this request and was ignored.")


_NOTES: ContextVar[Notes | None] = ContextVar("request_notes", default=None)


@contextmanager
def noting(notes: Notes) -> Iterator[Notes]:
    """Take notes of what is read in this block."""
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def notes_of_request() -> Notes:
    """Return the notes of the current request, or notes that are discarded outside of one."""
    return _NOTES.get() or Notes()


def known_only(values: Mapping[str, T], known: Container[str], at: str = "") -> dict[str, T]:
    """The values whose names are in `known`; the others are left out with a note."""
    notes = notes_of_request()
    found: dict[str, T] = {}
    for name, value in values.items():
        if name in known:
            found[name] = value
        elif not at and name in MEANT and value not in (None, [], {}, ""):
            raise RequestError("invalid_request", f"{name} is not supported here: {MEANT[name]}.", param=name)
        else:
            notes.ignore(f"{at}.{name}".lstrip("."))
    return found


T = TypeVar("T")
MAX_NAME = 80
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<kind>[\w |]+)`")


def read_object(body: bytes, limits: Limits, *, shape: object = dict) -> dict[str, object]:
    """A JSON object; `shape` is a msgspec type with what it must have at least. Raises RequestError."""
    value: dict[str, Any] = read_json(body, limits, shape=shape)
    return value


class Lenient(msgspec.Struct, frozen=True):
    """A part of a request in which unknown fields are left out with a note; see `adapters.body`."""


def convert(value: object, kind: type[T] | object, at: str) -> T:
    """`value` as `kind`, a msgspec type. Unknown fields of the `Lenient` structs in it are noted. Raises RequestError
    naming the innermost place under `at`."""
    _note_unknown(value, kind, at)
    try:
        result: T = msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        raise _named(error, at) from None
    return result


def _note_unknown(value: object, kind: object, at: str) -> None:
    if isinstance(value, list):
        for each in get_args(kind):
            for i, item in enumerate(value):
                _note_unknown(item, each, f"{at}.{i}")
    elif isinstance(value, dict):
        struct = next((each for each in (kind, *get_args(kind)) if _is_lenient(each)), None)
        if struct is not None:
            known_only(value, struct.__struct_encode_fields__, at)
            for field in msgspec.structs.fields(struct):
                _note_unknown(value.get(field.encode_name), field.type, f"{at}.{field.encode_name}")


def _is_lenient(kind: object) -> TypeGuard[type[Lenient]]:
    return isinstance(kind, type) and issubclass(kind, Lenient)


def wrong(at: str, what: str) -> RequestError:
    return RequestError("invalid_request", f"{at} {what}.", param=at)


def flag(values: dict[str, object], name: str, default: bool = False) -> bool:
    """A boolean field; null and absent are `default`."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value


def _named(error: msgspec.ValidationError, at: str) -> RequestError:
    text, _, path = str(error).partition(" - at `$")
    where = (at + _INDEX.sub(r".\1", path.rstrip("`"))).lstrip(".")
    if unknown := _UNKNOWN.search(text):
        return wrong(f"{where}.{unknown['name'][:MAX_NAME]}".lstrip("."), "is not a known field")
    if missing := _MISSING.search(text):
        return wrong(f"{where}.{missing['name']}".lstrip("."), "is required")
    if expected := _EXPECTED.search(text):
        return wrong(where or "The body", f"must be of type {expected['kind']}")
    return wrong(where or "The body", "has a value that is not allowed")


Reader = Callable[[str, object], object]

MAX_NAMES = 1024
MAX_STRING = 64 * 1024


def boolean(path: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(path, "must be true or false")
    return value


def integer(path: str, value: object) -> int:
    """A whole number; 3.0 is one, as JSON has a single number type."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(path, "must be a whole number")
    if abs(value) >= 2**64:
        raise wrong(path, "must fit 64 bits")
    return value


def number(path: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(path, "must be a number")
    if isinstance(value, int) and abs(value) >= 2**64:
        raise wrong(path, "is too large")
    return float(value)


def string(path: str, value: object) -> str:
    if not isinstance(value, str):
        raise wrong(path, "must be a string")
    if len(value) > MAX_STRING:
        raise wrong(path, f"must be at most {MAX_STRING} characters long")
    return value


def mapping(path: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise wrong(path, "must be an object")
    if len(value) > MAX_NAMES:
        raise wrong(path, f"must have at most {MAX_NAMES} keys")
    return value


def sequence(path: str, value: object) -> list[object]:
    if not isinstance(value, list):
        raise wrong(path, "must be an array")
    if len(value) > MAX_NAMES:
        raise wrong(path, f"must have at most {MAX_NAMES} items")
    return value


def one_of(*allowed: str) -> Callable[[str, object], str]:
    def read(path: str, value: object) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise wrong(path, f"must be one of {', '.join(allowed)}")
        return value

    return read


def optional(read: Callable[[str, object], T], path: str, value: object) -> T | None:
    return None if value is None else read(path, value)


def strings(path: str, value: object) -> tuple[str, ...]:
    """A string or an array of strings; empty strings are dropped."""
    values = [value] if isinstance(value, str) else sequence(path, value)
    return tuple(text for i, item in enumerate(values) if (text := string(f"{path}.{i}", item)))


def token_ids(path: str, value: object) -> tuple[int, ...]:
    ids = tuple(integer(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value)))
    if any(not 0 <= token < 2**31 for token in ids):
        raise wrong(path, "must hold token ids")
    return ids


def token_numbers(path: str, value: object) -> dict[int, float]:
    """Token ids, which JSON spells as strings, and a number for each."""
    found = {}
    for key, amount in mapping(path, value).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise wrong(path, "must map token ids to numbers")
        found[int(key)] = number(f"{path}.{key}", amount)
    return found


KINDS = ("image", "audio", "video", "document")
"""Of content besides text, by AG-UI's names."""


def not_taken(kind: str, takes: Collection[str], at: str) -> RequestError:
    """A part of a kind that is not taken; `at`: where it is in the request."""
    others = " and ".join(["text", *(known for known in KINDS if known in takes)])
    return wrong(at, f"is {kind} content, and what is taken here is {others}")


def first_asked(roles: Iterable[str]) -> int:
    """The place of the first message behind the last of an assistant's, by their roles: from there on users ask now.
    What stands before it, as what tools said anywhere, is history, in which the model is told of a part that it does
    not take, with a warning: a refusal would end the conversation for good."""
    return max((place + 1 for place, role in enumerate(roles) if role == "assistant"), default=0)


def check_parts(messages: Sequence[Message], takes: Collection[str]) -> None:
    """Raises RequestError for the first part that is not taken of what users ask now."""
    asked = first_asked(message.role for message in messages)
    for i, message in enumerate(messages):
        content = message.content if message.role == "user" and i >= asked else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, TextPart) and part.type not in takes:
                raise not_taken(part.type, takes, f"messages.{i}.content.{j}")
