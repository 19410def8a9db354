"""The call that is being read: what is known of it, when it is announced, and what becomes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping

from events.formats.output_format import Tools
from events.parsing.arguments import NoCall, stream
from events.parsing.json_text import JsonText
from events.parsing.pieces import ArgumentText, CallEnd, CallStart, ParseWarning, Piece
from events.parsing.policy import Policy
from events.parsing.schema import Schema
from events.parsing.source import Reading, Source
from events.parsing.syntax import Syntax, substantial

ROLES = {
    "name": "name", "tool_name": "name", "function_name": "name", "function": "name", "tool": "name",
    "arguments": "arguments", "parameters": "arguments", "args": "arguments", "input": "arguments",
    "id": "id", "tool_call_id": "id", "call_id": "id",
}  # fmt: skip
"""Keys of a call that is one JSON object: those of the formats, and their usual synonyms."""
WRAPPERS = frozenset({"function", "tool_call", "function_call"})
IGNORED = frozenset({"type", "index"})
_KEYS = frozenset({*ROLES, *WRAPPERS, *IGNORED})
_NAMESPACES = frozenset({"functions", "function", "tools", "tool", "default_api"})
_FUNCTION = re.compile(r"\s*([\w.-]*)(?:(\()|$)")
_FIRST_KEY = re.compile(r"[\s\[]*(?:\{\s*(?:[\"'](\w*)([\"'])?|$)|$)")


def begins_call(text: str) -> bool | None:
    """Whether text begins an object whose first key is one of a call's. None: it is too short to tell."""
    found = _FIRST_KEY.match(text)
    if not found:
        return False
    key, closed = found[1] or "", found[2]
    if closed:
        return key in _KEYS
    return None if found.end() == len(text) and any(known.startswith(key) for known in _KEYS) else False


def begins_python_call(text: str, names: Collection[str]) -> bool | None:
    """Whether text goes on behind a bracket like a list of Python calls whose first function has one of these names.
    None: it is too short to tell."""
    found = _FUNCTION.match(text)
    if found and found[2]:
        return found[1] in names
    return None if found and any(name.startswith(found[1]) for name in names) else False


def without_namespace(name: str, tools: Mapping[str, Schema] | None) -> str:
    """A function's name without the namespace that models put in front of it: its own name once more, or a word for
    tools. A declared name is left alone."""
    space, dot, short = name.rpartition(".")
    if not dot or (tools is not None and (name in tools or short not in tools)):
        return name
    return short if space == short or (tools is not None and space in _NAMESPACES) else name


class CutOff(Exception):
    """The output ended within a call that was not announced."""


class OpenCall:
    """One call after the other: `begin`, `declare` its name, `write` its arguments, `finish`.

    The first argument text announces a call, unless something of the announcement is still to come (its id, where the
    format writes it last) or the format announces calls only whole. count: calls that were announced. begun: whether
    the current one's arguments were. over: whether the current one's end was said.
    """

    def __init__(self, source: Source, syntax: Syntax, policy: Policy, emit: Callable[[Piece], None]) -> None:
        assert syntax.calls is not None
        self.source = source
        self.syntax = syntax
        self.calls = syntax.calls
        self.tools: Tools = syntax.calls.tools
        self.policy = policy
        self.count = 0
        self.unmarked = False
        self._emit = emit
        self.begin()

    def begin(self) -> None:
        self.name = self.id = ""
        self.schema: Schema = None
        self.announced = self.begun = self.closed = self.nameless = self.over = False
        self._muted = False
        self._held: list[str] = []
        self._pieces: list[Piece] = []

    def declare(self, name: str) -> None:
        """The name is known: is it a tool's? A call without its opening marker must be one's."""
        tools = self.policy.tools
        self.name = name = without_namespace(name, tools)
        if tools is None:
            if self.unmarked and self.setting("bare") != "always":
                raise NoCall("a call without its marker, and no tools are declared")
        elif name in tools:
            self.schema = tools[name]
        elif self.unmarked or self.setting("undeclared") == "content":
            raise NoCall(f"{name[:40]!r} is not a declared tool")
        else:
            self.warn(f"the tool {name[:40]!r} was not declared")
            self._muted = self.setting("undeclared") == "drop"

    def write(self, text: str) -> None:
        """Argument text."""
        if self.nameless or (self._waits_for_id and not self.announced):
            self._held.append(text)
            return
        # The first text is the moment from which the call cannot turn out to be prose.
        if not self.announced:
            self._announce()
        if text:
            self.begun = True
            self._say(ArgumentText(text))

    def finish(self) -> None:
        """The call is over; one that was read without any argument text has no arguments."""
        ended = self.source.final and self.source.position >= len(self.source.text)
        closes = bool(self.calls.call_end) or substantial(self.calls.arguments_end)
        # An end marker that the format has and the output lacks means that the call was cut off.
        complete = self.closed or not (ended and closes)
        held = "".join(self._held)
        if self.nameless:
            # A call that gives its number in place of its name means the one tool that its arguments fit.
            self.nameless = False
            try:
                given = set(json.loads(held))
            except (ValueError, TypeError, RecursionError):
                given = {""}
            fitting = [name for name, schema in (self.policy.tools or {}).items() if _fits(given, schema)]
            # Guessing between several tools could call the wrong one.
            if len(fitting) != 1:
                raise NoCall("a call without a name", incomplete=True)
            self.declare(fitting[0])
        if not self.announced:
            if not held and not complete and self.setting("truncated") == "drop":
                raise CutOff
            self._announce()
            self.write(held or ("" if self.source.cut else "{}"))
        self.end(complete)

    def end(self, complete: bool) -> None:
        """Say that the call is over; a call that is only announced whole is announced now. One that ends only because
        the output was cut off is incomplete, even if the format has no end marker that could be missing."""
        complete = complete and not self.source.cut
        if self.tools.commit == "call" and not complete:
            raise NoCall("the output ended within a call")
        # A call without arguments has an empty object: what is sent must join to valid JSON.
        if complete and not self.begun:
            self.write("{}")
        self._say(CallEnd(complete))
        self.over = True
        self.source.forget()
        self._say_whole()
        self.count += not self._muted

    def say(self, arguments: str) -> None:
        """Say the declared call with all of its arguments, which are complete whatever follows."""
        self._announce()
        self.begun = True
        self._say(ArgumentText(arguments))
        self._say(CallEnd(True))
        self.over = True
        self._say_whole()
        self.count += not self._muted

    def abandon(self) -> None:
        """End an announced call where the output was cut off: its arguments stay as far as they were written, with
        nothing completed."""
        self.warn("the output ended within a call")
        if self.tools.commit == "call":  # never said in part
            self._pieces.clear()
        else:
            self._say(CallEnd(False))
            self.count += not self._muted
        self.over = True

    def cut_off(self) -> str:
        """The output ended within the call: an announced one is over, of another the name may be enough. Returns what
        is to be shown of one that cannot be said."""
        self.warn("the output ended within a call")
        shown = ""
        if self.tools.commit == "call":
            shown = self.source.remembered if self.setting("failed") == "content" else ""
        elif self.unmarked and "{" in (text := self.source.remembered) and begins_call(text) is False:
            shown = text
        elif self.announced or (self.name and self.setting("truncated") != "drop" and self.tools.style == "tag"):
            if not self.announced:
                self._announce()
                self.write("".join(self._held) or ("" if self.source.cut else "{}"))
            self.end(False)
        self.source.forget()
        return shown

    def keep_as_text(self, text: str) -> None:
        """A call whose arguments cannot be read, with their text as they are."""
        self._announce()
        self.write(text)
        self.end(True)

    def warn(self, message: str, kind: str = "tool_call") -> None:
        self._emit(ParseWarning(kind, message))

    def setting(self, name: str) -> str:
        """The request's setting of this name, else the format's."""
        return getattr(self.policy, name) or str(getattr(self.tools, name))

    @property
    def _waits_for_id(self) -> bool:
        last = self.tools.id.position == "after_arguments"
        return last and self.policy.wait_for_id and not self.id

    def _announce(self) -> None:
        self.announced = True
        if self.count and not self.policy.parallel:
            self._muted = True
            self.warn("a further call was left out: parallel calls are off")
        if self.tools.commit == "arguments":
            self.source.forget()
        self._say(CallStart(self.name, self.id))

    def _say(self, piece: Piece) -> None:
        if self.tools.commit == "call":
            self._pieces.append(piece)
        elif not self._muted:
            self._emit(piece)

    def _say_whole(self) -> None:
        """A call that was held back, its arguments in one piece."""
        pieces, self._pieces = self._pieces, []
        if pieces and not self._muted:
            self._emit(pieces[0])
            self._emit(ArgumentText("".join(piece.text for piece in pieces if isinstance(piece, ArgumentText))))
            self._emit(pieces[-1])


def _fits(given: set[str], schema: Schema) -> bool:
    """Whether these are arguments that a tool with this schema can have."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return False
    required = schema.get("required")
    return set(required if isinstance(required, list) else ()) <= given <= set(schema["properties"])


_KEY_LIMIT = 256


def read_json_call(call: OpenCall) -> Reading[None]:
    """The object that begins here. Arguments in front of the name are held until it is known."""
    source = call.source
    ends = call.syntax.scanner(*call.calls.ends)
    held: str | None = None
    depth = 0
    while True:
        char = yield from source.space(",")
        if char == "{" and not depth:
            source.position += 1
            depth = 1
        elif char == "}":
            source.position += 1
            depth -= 1
            if depth <= 0:
                break
        elif char not in ('"', "'") and (yield from source.ahead(ends)):
            break
        else:
            key = yield from _key(call)
            char = yield from source.space()
            role = _role(call, key, char)
            if role == "wrapper":
                source.position += 1
                depth += 1
            elif role == "arguments":
                held = yield from _arguments(call, char)
            else:
                yield from _member(call, role)
            if held and _ready(call):
                call.write(held)
                held = ""
            elif role in ("name", "id") and (yield from _goes_on(call)):
                call.write("")
    required = call.tools.json.arguments_required or (call.unmarked and call.policy.tools is None)
    lacking = held is None and not call.begun and required
    if not call.name or lacking:
        raise NoCall("a call without a name or without arguments", incomplete=True)
    if held or not call.begun:
        call.write(held or "{}")


def _goes_on(call: OpenCall) -> Reading[bool]:
    """Whether name and id of a marked call are both known and more of it follows: prose has no such beginning, so it
    is announced before its arguments begin."""
    if not (call.name and call.id and call.tools.json.id) or call.unmarked or call.announced:
        return False
    return (yield from call.source.space()) == ","


def _key(call: OpenCall) -> Reading[str]:
    """A key of the object, and the colon behind it."""
    source = call.source
    if (yield from source.peek()) in ('"', "'"):
        key = str(json.loads((yield from _value(call))))
    else:
        key, marker = yield from source.until(call.syntax.scanner(":", *call.calls.ends), _KEY_LIMIT)
        source.position -= len(marker)
    if not (yield from source.space()):
        raise CutOff
    if not (yield from source.match(call.syntax.scanner(":"))):
        raise NoCall("no colon behind a key")
    return key.strip()


def _role(call: OpenCall, key: str, char: str) -> str:
    """What the key's value is: name, id, arguments, a wrapper of them, or "" for anything else."""
    keys = call.tools.json
    if keys.name_is_key and not call.name and char == "{":
        call.declare(key)
        return "arguments"
    if char == "{" and (key in WRAPPERS or (keys.wrapper and key == keys.wrapper)):
        return "wrapper"
    own = {keys.name: "name", keys.arguments: "arguments", keys.id or "id": "id"}
    role = own.get(key) or ROLES.get(key, "")
    if role == "name" and char not in ('"', "'"):
        raise NoCall("the name is not a string", incomplete=True)
    if call.unmarked and not role and key not in IGNORED:
        raise NoCall("a key that no call has")
    return role


def _member(call: OpenCall, role: str) -> Reading[None]:
    value = json.loads((yield from _value(call)))
    if role == "name":
        if not value:
            raise NoCall("the name is empty")
        call.declare(str(value))
    elif role == "id":
        call.id = str(value)


def _arguments(call: OpenCall, char: str) -> Reading[str | None]:
    """The arguments: written as they come where the call may be announced, else returned. A string may hold them."""
    if char == "{":
        if not _ready(call):
            return (yield from _value(call))
        yield from stream(call, JsonText(stops=call.calls.ends, eager=True), verbatim=True)
        return ""
    value = json.loads((yield from _value(call)))
    if value is None:
        return "{}"
    try:
        inner = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        inner = None
    if not isinstance(inner, dict):
        raise NoCall("the arguments are not an object", incomplete=True)
    return str(value)


def _value(call: OpenCall) -> Reading[str]:
    """One JSON value, read to its end."""
    source, value = call.source, JsonText(stops=call.calls.ends)
    while True:
        source.position = value.consume(source.text, source.position, source.final)
        if value.failed or value.stopped:
            raise NoCall("no JSON value behind a key")
        if value.done:
            return value.output.take()
        if source.final:
            raise CutOff
        yield


def _ready(call: OpenCall) -> bool:
    """Whether the call may be announced: its name is known, and its id if the format writes one."""
    waits = bool(call.tools.json.id) and call.policy.wait_for_id and not call.id
    return bool(call.name) and not waits
