"""Read an untrusted request body: size limits, decoding, readers of single values, and warnings about ignored fields.

Errors name the field by its path in the client's own body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import accumulate
from typing import Any, TypeVar, get_args

import msgspec
from ag_ui.core import Message, RunAgentInput, TextPart

from adapters.errors import RequestError
from events.options import GenerationOptions


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request, checked before any object is built from it.

    body: bytes. values: JSON values in the body, over-estimated from its punctuation. containers: arrays and objects,
    which are far more expensive to build than numbers. depth: their nesting. messages, tools, parts, tool_calls,
    context, resume: items per list. name: characters of an id or a name. schema: bytes of one tool's JSON schema.
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
    """A request in this server's terms. extra: what the same wire's outbound side needs (flags, echoed values)."""

    input: RunAgentInput
    options: GenerationOptions = GenerationOptions()
    stream: bool = True
    extra: Any = None


def read_json(body: bytes, limits: Limits = DEFAULT_LIMITS, *, shape: object = None) -> Any:
    """Decode the JSON value in `body`. Raises RequestError, whose message never quotes the body.

    RFC 8259 is applied strictly: UTF-8 without a byte order mark, no NaN, no lone surrogates.

    shape: a msgspec type with the fields that the body must have at least. A body without them is refused at the first
    fault, so that a list of a hundred thousand empty objects costs no more than its first item. Lists of the shape are
    also checked against the limit of the same name before the rest of the body is built.
    """
    if len(body) > limits.body:
        raise RequestError("payload_too_large", f"The body is larger than {limits.body} bytes.")
    opened = body.count(b"[") + body.count(b"{")
    if body.count(b",") + opened > limits.values:
        raise RequestError("payload_too_large", f"The body holds more than {limits.values} JSON values.")
    if opened > limits.depth:  # fewer brackets cannot nest deeper
        _check_nesting(body, limits)
    try:
        if shape is not None:
            head = msgspec.json.decode(body, type=shape)
            for name in getattr(head, "__struct_fields__", ()):
                items, most = getattr(head, name), getattr(limits, name, None)
                if isinstance(items, list) and most is not None and len(items) > most:
                    raise RequestError("invalid_request", f"{name} must have at most {most} items.", param=name)
        value = msgspec.json.decode(body)
    except msgspec.ValidationError as error:
        raise _shape_error(str(error)) from None
    except UnicodeDecodeError as error:
        where = f" (bad UTF-8 at byte {error.start} of a string)"
        raise RequestError("invalid_request", f"The body is not valid JSON in UTF-8{where}.") from None
    except msgspec.DecodeError as error:
        match = re.search(r"\(byte (\d+)\)", str(error))
        where = f" (at byte {match[1]})" if match else " (it ends too early, or a character escape is broken)"
        raise RequestError("invalid_request", f"The body is not valid JSON in UTF-8{where}.") from None
    except RecursionError:
        raise _too_deep(limits) from None
    return value


_OTHERS = bytes(set(range(256)) - set(b'[{]}"'))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Opening brackets become 1 and closing ones -1, as signed bytes."""
_STRINGS = re.compile(rb'"[^"]*"')


def _check_nesting(body: bytes, limits: Limits) -> None:
    """Raise RequestError if the body has too many arrays and objects or nests them too deeply.

    Counting 200,000 of them in the text takes 15 ms; building them in order to count them takes 150 ms. Invalid JSON
    is left to the parser.
    """
    if b"\\" in body:  # an escaped quote does not end a string; an escaped backslash escapes nothing
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _OTHERS).replace(b'""', b"")  # most strings are empty now and need no regex
    steps = _STRINGS.sub(b"", marks).replace(b'"', b"").translate(_STEPS)
    if max(accumulate(memoryview(steps).cast("b")), default=0) > limits.depth:
        raise _too_deep(limits)
    if steps.count(b"\x01") > limits.containers:
        raise RequestError("payload_too_large", f"The body holds more than {limits.containers} arrays and objects.")


def _too_deep(limits: Limits) -> RequestError:
    return RequestError("invalid_request", f"The body nests deeper than {limits.depth} levels.")


_JSON_TYPES = {"str": "a string", "object": "an object", "array": "an array", "int": "a whole number"} | {
    "float": "a number",
    "bool": "true or false",
    "null": "null",
}


def _shape_error(text: str) -> RequestError:
    """Translate msgspec's error, which names fields of the shape and positions but never keys or values of the data."""
    message, _, where = text.partition(" - at `$")
    path = ".".join(re.findall(r"[A-Za-z_]\w*|\d+", where))
    missing = re.search(r"missing required field `(\w+)`", message)
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return RequestError("invalid_request", f"{path} is required.", param=path)
    type_match = re.match(r"Expected `(\w+)[^`]*`", message)
    if type_match:
        kind = _JSON_TYPES.get(type_match[1], type_match[1])
        return RequestError("invalid_request", f"{path or 'The body'} must be {kind}.", param=path or None)
    if message.startswith("Invalid enum value"):
        return RequestError("invalid_request", f"{path} has a value that is not known here.", param=path)
    return RequestError("invalid_request", "A number in the body is out of range.", param=path or None)


MAX_SHOWN_NAME = 64
MOST_WARNINGS = 32
"""Warnings kept for one request; a body may have any number of unknown fields."""
ALTERNATIVES: Mapping[str, str] = {
    "chat_template": "the model's own template is used",
    "tools": "this endpoint has no tools",
    "functions": "this endpoint has no tools",
    "messages": "this endpoint takes no messages",
    "system": "give a system message",
    "instructions": "give a system message",
    "format": "use response_format",
    "options": "give parameters at the top level of the body",
    "regex": "use structured_outputs",
    "ebnf": "use structured_outputs",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
}
"""Fields of other endpoints and servers that would change the answer, with what to use instead. Ignoring them would
give a wrong answer, so they are refused where they are not supported."""
_NUMBERS = re.compile(r"\.\d+(?=\.|$)")


class Notes:
    """Collects the warnings of one request. strict: refuse unknown fields. count: called with the name of each unknown
    field, without list indices."""

    def __init__(self, *, strict: bool = False, count: Callable[[str], None] = lambda name: None) -> None:
        self.warnings: list[str] = []
        self.unknown: list[str] = []
        self._strict = strict
        self._count = count

    def warn(self, sentence: str) -> None:
        if sentence not in self.warnings and len(self.warnings) < MOST_WARNINGS:
            self.warnings.append(sentence)

    def ignore(self, name: str) -> None:
        """Warn that an unknown field is ignored. Raises RequestError if `strict` is set."""
        short_name = name[-MAX_SHOWN_NAME:]
        if self._strict:
            raise RequestError("invalid_request", f"{short_name} is not a field of this request.", param=short_name)
        if short_name in self.unknown or len(self.unknown) >= MOST_WARNINGS:
            return
        self.unknown.append(short_name)
        self._count(_NUMBERS.sub("", short_name))
        self.warn(f"{short_name} is not a field of this request and was ignored.")


_NOTES: ContextVar[Notes | None] = ContextVar("request_notes", default=None)


@contextmanager
def noting(notes: Notes) -> Iterator[Notes]:
    """Use `notes` for all that is read in this block."""
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def notes_of_request() -> Notes:
    """Return the notes of the current request; outside of a request, notes that are discarded."""
    return _NOTES.get() or Notes()


def known_only(values: Mapping[str, T], known_names: Container[str], at: str = "") -> dict[str, T]:
    """Return the values whose names are in `known_names`; the others are omitted with a warning."""
    notes = notes_of_request()
    known_values: dict[str, T] = {}
    for name, value in values.items():
        if name in known_names:
            known_values[name] = value
        elif not at and name in ALTERNATIVES and value not in (None, [], {}, ""):
            raise RequestError("invalid_request", f"{name} is not supported here: {ALTERNATIVES[name]}.", param=name)
        else:
            notes.ignore(f"{at}.{name}".lstrip("."))
    return known_values


T = TypeVar("T")
MAX_NAME = 80
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_EXPECTED = re.compile(r"Expected `(?P<kind>[\w |]+)`")


def read_object(body: bytes, limits: Limits, *, shape: object = dict) -> dict[str, object]:
    """Decode a JSON object. shape: a msgspec type with the fields it must have at least. Raises RequestError."""
    value: dict[str, Any] = read_json(body, limits, shape=shape)
    return value


class Lenient(msgspec.Struct, frozen=True):
    """Base of request structs whose unknown fields are ignored with a warning; see `convert`."""


def convert(value: object, kind: type[T] | object, at: str) -> T:
    """Convert `value` to `kind`, a msgspec type, with a warning for each unknown field of its `Lenient` structs.

    at: the path of `value` in the request. Raises RequestError, which names the innermost faulty field.
    """
    _note_unknown(value, kind, at)
    try:
        result: T = msgspec.convert(value, type=kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        where = (at + _INDEX.sub(r".\1", path.rstrip("`"))).lstrip(".")
        if unknown := _UNKNOWN.search(text):
            raise wrong(f"{where}.{unknown['name'][:MAX_NAME]}".lstrip("."), "is not a known field") from None
        if missing := _MISSING.search(text):
            raise wrong(f"{where}.{missing['name']}".lstrip("."), "is required") from None
        if expected := _EXPECTED.search(text):
            raise wrong(where or "The body", f"must be of type {expected['kind']}") from None
        raise wrong(where or "The body", "has a value that is not allowed") from None
    return result


_fields = cache(msgspec.structs.fields)
"""The fields of a class; msgspec evaluates its annotations anew for each call."""


def _note_unknown(value: object, kind: object, at: str) -> None:
    if isinstance(value, list):
        for each in get_args(kind):
            for i, item in enumerate(value):
                _note_unknown(item, each, f"{at}.{i}")
    elif isinstance(value, dict):
        types = [each for each in (kind, *get_args(kind)) if isinstance(each, type)]
        struct = next((each for each in types if issubclass(each, Lenient)), None)
        if struct is not None:
            known_only(value, struct.__struct_encode_fields__, at)
            for field in _fields(struct):
                _note_unknown(value.get(field.encode_name), field.type, f"{at}.{field.encode_name}")


def wrong(at: str, what: str) -> RequestError:
    return RequestError("invalid_request", f"{at} {what}.", param=at)


def flag(values: dict[str, object], name: str, default: bool = False) -> bool:
    """Read a boolean field; null and a missing field give `default`."""
    value = values.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong(name, "must be true or false")
    return value


Reader = Callable[[str, object], object]

MAX_NAMES = 1024
MAX_STRING = 64 * 1024


def boolean(path: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(path, "must be true or false")
    return value


def integer(path: str, value: object) -> int:
    """Read a whole number. 3.0 is accepted, since JSON has a single number type."""
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
    """Read a string or an array of strings; empty strings are dropped."""
    values = [value] if isinstance(value, str) else sequence(path, value)
    return tuple(text for i, item in enumerate(values) if (text := string(f"{path}.{i}", item)))


def token_ids(path: str, value: object) -> tuple[int, ...]:
    ids = tuple(integer(f"{path}.{i}", item) for i, item in enumerate(sequence(path, value)))
    if any(not 0 <= token < 2**31 for token in ids):
        raise wrong(path, "must hold token ids")
    return ids


def token_numbers(path: str, value: object) -> dict[int, float]:
    """Read an object of numbers by token id; JSON spells the ids as strings."""
    numbers = {}
    for key, amount in mapping(path, value).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise wrong(path, "must map token ids to numbers")
        numbers[int(key)] = number(f"{path}.{key}", amount)
    return numbers


KINDS = ("image", "audio", "video", "document")
"""AG-UI's kinds of content besides text."""


def check_media(kind: str, takes: Collection[str], at: str) -> None:
    """Raise RequestError for a content part of a kind that the model does not take. at: the part's path."""
    if kind not in takes:
        others = " and ".join(["text", *(name for name in KINDS if name in takes)])
        raise wrong(at, f"is {kind} content; this model takes {others}")


def current_turn_start(roles: Iterable[str]) -> int:
    """Return the index of the first message after the last assistant message, where the current turn begins.

    Messages before it, and tool results anywhere, are history. An unsupported content part in history is replaced by a
    note for the model, with a warning, since refusing it would make the conversation unusable.
    """
    return max((place + 1 for place, role in enumerate(roles) if role == "assistant"), default=0)


def check_parts(messages: Sequence[Message], takes: Collection[str]) -> None:
    """Raise RequestError for the first content part of the current turn that the model does not take."""
    turn_start = current_turn_start(message.role for message in messages)
    for i, message in enumerate(messages):
        content = message.content if message.role == "user" and i >= turn_start else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, TextPart):
                check_media(part.type, takes, f"messages.{i}.content.{j}")
