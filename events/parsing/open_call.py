"""The call that is being read: its name, id and arguments, and when it is announced."""

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
"""Keys of a call that is one JSON object: those of the formats and their usual synonyms."""
WRAPPERS = frozenset({"function", "tool_call", "function_call"})
IGNORED = frozenset({"type", "index"})
_KEYS = frozenset({*ROLES, *WRAPPERS, *IGNORED})
_NAMESPACES = frozenset({"functions", "function", "tools", "tool", "default_api"})
_FUNCTION = re.compile(r"\s*([\w.-]*)(?:(\()|$)")
_FIRST_KEY = re.compile(r"[\s\[]*(?:\{\s*(?:[\"'](\w*)([\"'])?|$)|$)")


def begins_call(text: str) -> bool | None:
    """Return whether text begins an object whose first key is one of a call's, or None if the text is too short."""
    match = _FIRST_KEY.match(text)
    if not match:
        return False
    key, closing_quote = match[1] or "", match[2]
    if closing_quote:
        return key in _KEYS
    return None if match.end() == len(text) and any(call_key.startswith(key) for call_key in _KEYS) else False


def begins_python_call(text: str, names: Collection[str]) -> bool | None:
    """Return whether text after a bracket looks like a list of Python calls whose first function has one of these
    names, or None if the text is too short."""
    match = _FUNCTION.match(text)
    if match and match[2]:
        return match[1] in names
    return None if match and any(name.startswith(match[1]) for name in names) else False


def without_namespace(name: str, tools: Mapping[str, Schema] | None) -> str:
    """Remove a namespace that models put before a function's name: the name itself, or a word for tools. A declared
    name is not changed."""
    space, mark, short = name.rpartition(":" if ":" in name else ".")
    if not mark or (tools is not None and (name in tools or short not in tools)):
        return name
    return short if space == short or (tools is not None and space in _NAMESPACES) else name


class CutOff(Exception):
    """The output ended within a call that was not announced."""


class OpenCall:
    """Emits calls one after the other: `begin`, `declare` the name, `write` arguments, `finish`.

    The first argument text announces a call, unless its id is still missing because the format writes it last, or the
    format announces only complete calls. count: announced calls. has_arguments: whether argument text of the current
    call was emitted. over: whether its end was emitted.
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
        self.announced = self.has_arguments = self.closed = self.nameless = self.over = False
        self._muted = False
        self._unannounced: list[str] = []
        self._pieces: list[Piece] = []

    def declare(self, name: str) -> None:
        """Set the name. A call without an opening marker must name a declared tool. Raises NoCall."""
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
        """Add argument text. The first text announces the call."""
        id_follows = self.tools.id.position == "after_arguments" and self.policy.wait_for_id and not self.id
        if self.nameless or (id_follows and not self.announced):
            self._unannounced.append(text)
            return
        # From the first argument text on, the call cannot turn out to be prose.
        if not self.announced:
            self._announce()
        if text:
            self.has_arguments = True
            self._say(ArgumentText(text))

    def finish(self) -> None:
        """End the call. A call without argument text gets an empty object."""
        ended = self.source.final and self.source.position >= len(self.source.text)
        closes = bool(self.calls.call_end) or substantial(self.calls.arguments_end)
        # If the format has an end marker and the output ends without it, the call was cut off.
        complete = self.closed or not (ended and closes)
        arguments = "".join(self._unannounced)
        if self.nameless:
            # A call with a number instead of a name means the only tool that its arguments fit.
            self.nameless = False
            try:
                keys = set(json.loads(arguments))
            except (ValueError, TypeError, RecursionError):
                keys = {""}
            fitting: list[str] = []
            for name, schema in (self.policy.tools or {}).items():
                properties = schema.get("properties") if isinstance(schema, dict) else None
                required = schema.get("required") if isinstance(schema, dict) else None
                names = set(required if isinstance(required, list) else ())
                if isinstance(properties, dict) and names <= keys <= set(properties):
                    fitting.append(name)
            # Guessing between several tools could call the wrong one.
            if len(fitting) != 1:
                raise NoCall("a call without a name", incomplete=True)
            self.declare(fitting[0])
        if not self.announced:
            if not arguments and not complete and self.setting("truncated") == "drop":
                raise CutOff
            self._announce()
            self.write(arguments or ("" if self.source.cut else "{}"))
        self.end(complete)

    def end(self, complete: bool) -> None:
        """Emit the end of the call; a format that announces only complete calls emits the whole call now. A call that
        ends because the output was cut off is incomplete, even if the format has no end marker."""
        complete = complete and not self.source.cut
        if self.tools.commit == "call" and not complete:
            raise NoCall("the output ended within a call")
        # A call without arguments gets an empty object, since its argument text must be valid JSON.
        if complete and not self.has_arguments:
            self.write("{}")
        self._say(CallEnd(complete))
        self.over = True
        self.source.forget()
        self._say_whole()
        self.count += not self._muted

    def say(self, arguments: str) -> None:
        """Emit the declared call with its complete arguments."""
        self._announce()
        self.has_arguments = True
        self._say(ArgumentText(arguments))
        self._say(CallEnd(True))
        self.over = True
        self._say_whole()
        self.count += not self._muted

    def abandon(self) -> None:
        """End an announced call at which the output was cut off. Its arguments are not completed."""
        self.warn("the output ended within a call")
        if self.tools.commit == "call":  # never emitted in part
            self._pieces.clear()
        else:
            self._say(CallEnd(False))
            self.count += not self._muted
        self.over = True

    def cut_off(self) -> str:
        """Handle the end of the output within the call: end an announced call, or emit one of which the name is enough.
        Return the text to be shown if the call cannot be emitted."""
        self.warn("the output ended within a call")
        visible_text = ""
        if self.tools.commit == "call":
            visible_text = self.source.remembered if self.setting("failed") == "content" else ""
        elif self.unmarked and "{" in (text := self.source.remembered) and begins_call(text) is False:
            visible_text = text
        elif self.announced or (self.name and self.setting("truncated") != "drop" and self.tools.style == "tag"):
            if not self.announced:
                self._announce()
                self.write("".join(self._unannounced) or ("" if self.source.cut else "{}"))
            self.end(False)
        self.source.forget()
        return visible_text

    def keep_as_text(self, text: str) -> None:
        """Emit a call whose arguments cannot be parsed, with their unchanged text."""
        self._announce()
        self.write(text)
        self.end(True)

    def warn(self, message: str, kind: str = "tool_call") -> None:
        self._emit(ParseWarning(kind, message))

    def setting(self, name: str) -> str:
        """Return the request's setting, or else the format's."""
        return getattr(self.policy, name) or str(getattr(self.tools, name))

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
        """Emit a call that was held back, with its arguments as one piece."""
        pieces, self._pieces = self._pieces, []
        if pieces and not self._muted:
            self._emit(pieces[0])
            self._emit(ArgumentText("".join(piece.text for piece in pieces if isinstance(piece, ArgumentText))))
            self._emit(pieces[-1])


_KEY_LIMIT = 256
MOST_BRACES = 2
"""How many braces may open a call: templates with an example in doubled braces (Qwen2.5) teach models to write two."""


def read_json_call(call: OpenCall) -> Reading[None]:
    """Read a call that is a JSON object and begins here. Arguments before the name are held back until it is known."""
    source = call.source
    ends = call.syntax.scanner(*call.calls.ends)
    arguments: str | None = None
    depth = 0
    has_key = False
    while True:
        char = yield from source.space(",")
        if char == "{" and not has_key and depth < MOST_BRACES:
            source.position += 1
            depth += 1
        elif char == "}":
            source.position += 1
            depth -= 1
            if depth <= 0:
                break
        elif char not in ('"', "'") and (yield from source.ahead(ends)):
            break
        else:
            key = yield from _key(call)
            has_key = True
            char = yield from source.space()
            role = _role(call, key, char)
            if role == "wrapper":
                source.position += 1
                depth += 1
            elif role == "arguments":
                arguments = yield from _arguments(call, char)
            else:
                value = json.loads((yield from _value(call)))
                if role == "name" and not value:
                    raise NoCall("the name is empty")
                if role == "name":
                    call.declare(str(value))
                elif role == "id":
                    call.id = str(value)
            if arguments and _can_announce(call):
                call.write(arguments)
                arguments = ""
            elif role in ("name", "id"):
                # A marked call with name and id, of which more follows: prose does not begin like that, so the call can
                # be announced before its arguments begin.
                identified = bool(call.name and call.id and call.tools.json.id)
                may_announce = identified and not call.unmarked and not call.announced
                if may_announce and (yield from source.space()) == ",":
                    call.write("")
    required = call.tools.json.arguments_required or (call.unmarked and call.policy.tools is None)
    has_no_arguments = arguments is None and not call.has_arguments and required
    if not call.name or has_no_arguments:
        raise NoCall("a call without a name or without arguments", incomplete=True)
    if arguments or not call.has_arguments:
        call.write(arguments or "{}")


def _key(call: OpenCall) -> Reading[str]:
    """Read a key of the object and the colon after it."""
    source = call.source
    if (yield from source.peek()) in ('"', "'"):
        key = str(json.loads((yield from _value(call))))
    else:
        key, marker = yield from source.until(call.syntax.scanner(":", *call.calls.ends), _KEY_LIMIT)
        source.position -= len(marker)
    if not (yield from source.space()):
        raise CutOff
    if not (yield from source.match(call.syntax.scanner(":"))):
        raise NoCall("no colon after a key")
    return key.strip()


def _role(call: OpenCall, key: str, char: str) -> str:
    """Return what a key's value is: "name", "id", "arguments", a "wrapper" of these, or "" for anything else."""
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
        raise NoCall(f"unexpected key {key[:40]!r} in a call")
    return role


def _arguments(call: OpenCall, char: str) -> Reading[str | None]:
    """Read the arguments. Write them as they arrive if the call can be announced, otherwise return them. A string may
    contain them."""
    if char == "{":
        if not _can_announce(call):
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
    """Read one JSON value to its end."""
    source, value = call.source, JsonText(stops=call.calls.ends)
    while True:
        source.position = value.consume(source.text, source.position, source.final)
        if value.failed or value.stopped:
            raise NoCall("no JSON value after a key")
        if value.done:
            return value.output.take()
        if source.final:
            raise CutOff
        yield


def _can_announce(call: OpenCall) -> bool:
    """Return whether the call's name is known, and its id if the format writes one."""
    waits = bool(call.tools.json.id) and call.policy.wait_for_id and not call.id
    return bool(call.name) and not waits
