"""Reading tool calls: one section of them, from its opening marker to what ends it.

A call is announced with its first argument text and not before: until then what was read is remembered, and if it
turns out to be no call it is treated as the format's `failed` setting says.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from html import unescape

from events.formats.output_format import Tools
from events.parsing.arguments import NoCall, read_arguments, stream
from events.parsing.json_text import JsonText
from events.parsing.pieces import ArgumentText, CallEnd, CallStart, ParseWarning, Piece
from events.parsing.policy import Policy
from events.parsing.schema import Schema
from events.parsing.source import Reading, Source
from events.parsing.syntax import Syntax, distinctive, substantial

_NAME_LIMIT = 256
_ROLES = {
    "name": "name", "tool_name": "name", "function_name": "name", "function": "name", "tool": "name",
    "arguments": "arguments", "parameters": "arguments", "args": "arguments", "input": "arguments",
    "id": "id", "tool_call_id": "id", "call_id": "id",
}  # fmt: skip
_WRAPPERS = frozenset({"function", "tool_call", "function_call"})
_IGNORED = frozenset({"type", "index"})


class CutOff(Exception):
    """The output ended within a call that was not announced."""


class CallReader:
    """Reads calls from `source` and hands pieces to `emit`. `shown(text)` gives text back as content."""

    def __init__(
        self,
        source: Source,
        syntax: Syntax,
        policy: Policy,
        emit: Callable[[Piece], None],
        shown: Callable[[str], None],
    ) -> None:
        assert syntax.calls is not None
        self.source = source
        self.syntax = syntax
        self.calls = syntax.calls
        self.tools: Tools = syntax.calls.tools
        self.schema: Schema = None
        self.count = 0
        self._policy = policy
        self._emit = emit
        self._shown = shown
        self._name = ""
        self._id = ""
        self._announced = False
        self._muted = False
        self._bare = self._unmarked = self._array = self._closed = False
        self._pieces: list[Piece] = []

    # One section.

    def read(self, action: str, marker: str) -> Reading[None]:
        """The calls behind a marker that was just consumed (`action`: section, call, name), or that begin without one
        (`bare`, where marker is ""). Returns behind the last call."""
        self._bare, self._unmarked = action in ("bare", "name"), action == "bare"
        array = self.calls.opens_array and action == "section"
        while True:
            self.source.remember(marker)
            try:
                array = yield from self._call(action, array)
            except NoCall as failure:
                if self._is_cut_off():
                    self._cut_off()
                else:
                    yield from self._failed(failure)
                return
            except CutOff:
                self._cut_off()
                return
            if not (yield from self._another(array)):
                return
            action, marker = "section", ""

    def read_message(self, name: str, header: str) -> Reading[None]:
        """A call that is the body of a message: its arguments where the header has the name, else a JSON object."""
        self._bare = self._unmarked = self._array = False
        self.source.remember(header)
        self._begin()
        try:
            char = yield from self.source.space()
            if self.tools.style == "json":
                if char != "{":
                    raise NoCall("no JSON object where a call should be")
                yield from self._json_call()
            else:
                self._declare(name)
                yield from read_arguments(self)
            yield from self._close_call()
        except NoCall as failure:
            yield from self._failed(failure)
        except CutOff:
            self._cut_off()

    def _call(self, action: str, array: bool) -> Reading[bool]:
        """One call; returns whether the following ones stand in the same JSON array."""
        source, calls = self.source, self.calls
        self._begin()
        inside = action in ("call", "name")
        char = yield from source.space()
        if not inside and calls.call_start and (yield from source.match(self.syntax.scanner(calls.call_start))):
            inside = True
            char = yield from source.space()
        if char == "[" and not array and action != "name":
            source.position += 1
            array = True
            char = yield from source.space()
        self._array = array
        if not char:
            raise CutOff
        if action != "name" and (yield from source.ahead(self.syntax.scanner(*calls.ends))):
            source.forget()
            return array
        if array and char == "]":
            source.forget()
            return array
        opened = inside or not calls.call_start or array
        if char != "{" and (array or action == "bare") and self.tools.arguments.style != "python":
            raise NoCall("no JSON object where a call should be")
        if char == "{" and action != "name":
            if self.tools.json.array_only and not array:
                raise NoCall("a call outside of a list")
            yield from self._json_call()
        elif self.tools.style == "tag" and (opened or (yield from self._at_name())):
            yield from self._tag_call(action == "name")
        else:
            raise NoCall("no JSON object where a call should be")
        yield from self._close_call()
        return array

    def _at_name(self) -> Reading[bool]:
        """Whether what precedes a name stands here, where the call's own opener is missing."""
        prefix = self.calls.name_prefix
        return distinctive(prefix) and bool((yield from self.source.ahead(self.syntax.scanner(prefix))))

    def _another(self, array: bool) -> Reading[bool]:
        """Whether a further call of the same section follows; consumes what separates or ends."""
        source, calls = self.source, self.calls
        if array:
            char = yield from source.space()
            source.position += char in (",", "]")
            if char == ",":
                return True
        if not (calls.separator or calls.section_end):
            return False
        skipped = yield from source.blank()
        char = yield from source.peek()
        if calls.separator and (yield from source.match(self.syntax.scanner(calls.separator))):
            return True
        if calls.section_end and (yield from source.match(self.syntax.scanner(calls.section_end))):
            return False
        again = calls.call_start or calls.name_prefix
        if calls.section_end and again:
            follows = bool((yield from source.ahead(self.syntax.scanner(again))))
        else:
            follows = bool(calls.section_end) and (char == "{" or (char.isidentifier() and self.tools.style == "tag"))
        if not follows:
            source.unread(skipped)
        return follows

    # The two kinds of calls.

    def _tag_call(self, prefix_read: bool) -> Reading[None]:
        """Header and arguments of a call whose name stands outside of JSON."""
        yield from self._header(prefix_read)
        if self.calls.arguments_start:
            yield from self.source.space()
            yield from self.source.match(self.syntax.scanner(self.calls.arguments_start))
        yield from read_arguments(self)

    def _header(self, prefix_read: bool) -> Reading[None]:
        """The name, and an id before or behind it."""
        source, calls, call_id = self.source, self.calls, self.tools.id
        id_opens = call_id.position == "before_name"
        if id_opens and call_id.prefix.strip():  # without a prefix the id follows the call's opening at once
            id_opens = bool((yield from source.match(self.syntax.scanner(call_id.prefix.strip()))))
        if id_opens:
            self._id, _ = yield from source.until(self.syntax.scanner(call_id.suffix.strip()), _NAME_LIMIT)
            yield from source.space()
        prefix_read = prefix_read or bool((yield from source.match(self.syntax.scanner(calls.name_prefix))))
        if not prefix_read and substantial(calls.name_prefix) and "<" in calls.name_prefix:
            raise NoCall("no function's name where a call should be")
        id_prefix = call_id.prefix.strip() if call_id.position == "between" else ""
        opener = self._argument_opener()
        ends = (calls.name_end, id_prefix, opener, calls.arguments_start, *calls.ends, *calls.starts)
        text, marker = yield from source.until(self.syntax.scanner(*ends), _NAME_LIMIT)
        if not marker:
            self._unfinished_name(text)
        if marker == id_prefix and id_prefix:
            id_ends = (call_id.suffix.strip() or calls.name_end, calls.name_end, opener)
            self._id, marker = yield from source.until(self.syntax.scanner(*id_ends), _NAME_LIMIT)
            self._id = self._id.strip()
        if marker != calls.name_end or marker == opener:
            source.position -= len(marker)
        if marker != calls.name_end and self.tools.arguments.style == "python":
            raise NoCall("a function without parentheses")
        self._named(text)

    def _argument_opener(self) -> str:
        """What begins the arguments, where a header may lack its end."""
        a = self.tools.arguments
        return {
            "json": "{",
            "object": "{",
            "python": "",
            "tagged": self.calls.argument_name,
            "nested": a.element_prefix + "<",
        }[a.style]

    def _unfinished_name(self, text: str) -> None:
        """The output ended, or ran on, where the name should have ended."""
        if not self.source.final:
            raise NoCall("a function's name without an end")
        if self._setting("truncated") == "name" and text.strip():
            self._named(text)
        raise CutOff

    def _named(self, text: str) -> None:
        """Take the name out of the header's text: `functions.get_weather:0`, `get_weather" index="1"`."""
        calls = self.calls
        name = text.strip()
        if self.tools.id.position == "in_name":
            self._id = name if name.startswith(calls.name_prefix) else calls.name_prefix + name
        name = name.removeprefix(calls.name_prefix)
        if calls.name_prefix[-1:] in ("'", '"'):
            name = name.partition(calls.name_prefix[-1])[0]
        if len(calls.name_parts) > 1 and calls.name_parts[0] in name:
            name = name.rpartition(calls.name_parts[0])[0]
        name = name.removesuffix("\\n")
        name = (unescape(name) if self.tools.name_entities else name).strip()
        if self.tools.id.position == "in_name" and name.isdigit() and self._policy.tools:
            self._nameless = True
        elif not name or any(c.isspace() or c in "<>{}[]()\"'" for c in name):
            raise NoCall(f"{name[:40]!r} is no function's name")
        else:
            self._declare(name)

    def _json_call(self) -> Reading[None]:
        """A call that is one JSON object, its keys in any order."""
        source = self.source
        depth = 0
        arguments: list[str] | None = None
        ends = self.syntax.scanner(*self.calls.ends)
        while True:
            char = yield from source.space(",")
            if char == "{" and not depth:
                source.position += 1
                depth += 1
                continue
            if char == "}":
                source.position += 1
                depth -= 1
                if depth <= 0:
                    break
                continue
            if char not in ('"', "'") and (yield from source.ahead(ends)):
                break
            key = yield from self._key()
            char = yield from source.space()
            role = self._role(key, char)
            if role == "wrapper":
                source.position += 1
                depth += 1
            elif role == "name":
                name = str(json.loads((yield from self._whole())))
                if not name:
                    raise NoCall("the name is empty")
                self._declare(name)
            elif role == "id":
                self._id = str(json.loads((yield from self._whole())))
            elif role == "arguments":
                arguments = yield from self._json_arguments(char)
            else:
                yield from self._whole()
            if arguments and self._ready():
                self._write_all(arguments)
                arguments = []
        if not self._name or (arguments is None and not self._announced and self.tools.json.arguments_required):
            raise NoCall("a call without a name or without arguments", incomplete=True)
        self._write_all(arguments if arguments is not None else [] if self._announced else ["{}"])

    def _key(self) -> Reading[str]:
        """A key of the call's object, and the colon behind it."""
        source = self.source
        if (yield from source.peek()) in ("'", '"'):
            key = str(json.loads((yield from self._whole())))
        else:
            key, marker = yield from source.until(self.syntax.scanner(":", *self.calls.ends), _NAME_LIMIT)
            source.position -= len(marker)
        if not (yield from source.space()):
            raise CutOff
        if not (yield from source.match(self.syntax.scanner(":"))):
            raise NoCall("no colon behind a key")
        return key.strip()

    def _role(self, key: str, char: str) -> str:
        keys = self.tools.json
        if keys.name_is_key and not self._name and char == "{":
            self._declare(key)
            return "arguments"
        if char == "{" and (key in _WRAPPERS or (keys.wrapper and key == keys.wrapper)):
            return "wrapper"
        own = {keys.name: "name", keys.arguments: "arguments", keys.id or "id": "id"}
        role = own.get(key) or _ROLES.get(key, "")
        if role == "name" and char not in ('"', "'"):
            raise NoCall("the name is not a string", incomplete=True)
        if self._bare and not role and key not in _IGNORED:
            raise NoCall("a key that no call has")
        return role

    def _whole(self) -> Reading[str]:
        """One JSON value, read to its end."""
        source, value = self.source, JsonText(stops=self.calls.ends)
        while True:
            source.position = value.consume(source.text, source.position, source.final)
            if value.done:
                text = value.take()
                return text
            if value.failed or value.stopped:
                raise NoCall("no JSON value behind a key")
            if source.final:
                raise CutOff
            yield

    def _json_arguments(self, char: str) -> Reading[list[str] | None]:
        """The value of the arguments' key: written as it comes where the name is known, else held and returned."""
        if char == "{" and self._ready():
            yield from stream(self, JsonText(stops=self.calls.ends), verbatim=True)
            return None
        if char == "{":
            return [(yield from self._whole())]
        text = json.loads((yield from self._whole()))
        if text is None:
            return ["{}"]
        try:
            inner = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            inner = None
        if not isinstance(inner, dict):
            raise NoCall("the arguments are not an object", incomplete=True)
        return [text]

    def _ready(self) -> bool:
        """Whether the call may be announced: its name is known, and its id if one will come."""
        waits = bool(self.tools.json.id) and self._policy.wait_for_id and not self._id
        return bool(self._name) and not waits

    def _write_all(self, texts: list[str]) -> None:
        for text in texts:
            self.write(text)

    def _close_call(self) -> Reading[None]:
        """What is left of a call behind its arguments: surplus brackets, its end markers, an id."""
        source, calls, call_id = self.source, self.calls, self.tools.id
        self._closed = yield from self._end_marker(calls.arguments_end)
        if call_id.position == "after_arguments" and (
            yield from source.match(self.syntax.scanner(call_id.prefix.strip()))
        ):
            yield from source.until(self.syntax.scanner(call_id.suffix.strip() or calls.call_end), _NAME_LIMIT)
        if calls.call_end:
            self._closed = yield from self._end_marker(calls.call_end)
        self._finish_call()

    def _end_marker(self, marker: str) -> Reading[bool]:
        """Consume `marker` if it stands here, behind white space and stray closing brackets."""
        if not substantial(marker):
            return False
        scanner = self.syntax.scanner(marker)
        char = yield from self.source.space()
        while not (found := (yield from self.source.match(scanner))):
            if not char or char not in "})]" or self._array:
                break
            self.source.position += 1
            char = yield from self.source.space()
        return bool(found)

    # What becomes of a call.

    def _begin(self) -> None:
        self._name = self._id = ""
        self.schema = None
        self._announced = self._muted = self._closed = self._nameless = False
        self._unsaid: list[str] = []
        self._pieces = []

    def _declare(self, name: str) -> None:
        """The name is known: is it a tool's?"""
        tools = self._policy.tools
        self._name = name
        if tools is None:
            if self._bare and self._setting("bare") != "always":
                raise NoCall("a call without its marker, and no tools are declared")
            return
        if name in tools:
            self.schema = tools[name]
        elif self._bare or (setting := self._setting("undeclared")) == "content":
            raise NoCall(f"{name[:40]!r} is not a declared tool")
        else:
            self._emit(ParseWarning("tool_call", f"the tool {name[:40]!r} was not declared"))
            self._muted = setting == "drop"

    def write(self, text: str) -> None:
        """Argument text. The first announces the call."""
        if self._nameless:
            self._unsaid.append(text)
            return
        if not self._announced:
            self._announce()
        if text:
            self._say(ArgumentText(text))

    def _infer_name(self) -> None:
        """A call that gives its number in place of its name means the one tool that its arguments fit."""
        self._nameless = False
        text = "".join(self._unsaid)
        try:
            given = set(json.loads(text))
        except (ValueError, TypeError):
            given = {""}
        fitting = [name for name, schema in (self._policy.tools or {}).items() if _fits(given, schema)]
        if len(fitting) != 1:
            raise NoCall("a call without a name", incomplete=True)
        self._declare(fitting[0])
        self.write(text)

    def _announce(self) -> None:
        self._announced = True
        if self.count and not self._policy.parallel:
            self._muted = True
            self._emit(ParseWarning("tool_call", "a further call was left out: parallel calls are off"))
        if self.tools.commit == "arguments":
            self.source.forget()
        self._say(CallStart(self._name, self._id))

    def _say(self, piece: Piece) -> None:
        if self.tools.commit == "call":
            self._pieces.append(piece)
        elif not self._muted:
            self._emit(piece)

    def _finish_call(self) -> None:
        """The call is over; one that was read without any argument text has no arguments."""
        ended = self.source.final and self.source.position >= len(self.source.text)
        if self._nameless:
            self._infer_name()
        closes = bool(self.calls.call_end) or substantial(self.calls.arguments_end)
        complete = self._closed or not (ended and closes)
        if not self._announced:
            if not complete and self._setting("truncated") == "drop":
                raise CutOff
            self.write("{}")
        self._end(complete)

    def _end(self, complete: bool) -> None:
        """Say that the call is over; a call that is only announced whole is announced now."""
        if self.tools.commit == "call" and not complete:
            raise NoCall("the output ended within a call")
        self._say(CallEnd(complete))
        self.source.forget()
        for piece in self._pieces if not self._muted else ():
            self._emit(piece)
        self._pieces = []
        self.count += not self._muted

    def _is_cut_off(self) -> bool:
        """Whether nothing is left but the beginning of a marker of calls."""
        source, calls, a = self.source, self.calls, self.tools.arguments
        if not source.final:
            return False
        markers = (*calls.starts, *calls.ends, calls.name_prefix, calls.argument_name, a.element_prefix + "<")
        return self.syntax.scanner(*markers).cut_off(source.text, source.position) == source.position < len(source.text)

    def _cut_off(self) -> None:
        """The output ended within a call: an announced one is over, of another the name may be enough."""
        self._emit(ParseWarning("tool_call", "the output ended within a call"))
        if self.tools.commit == "call":
            self._shown(self.source.remembered if self._setting("failed") == "content" else "")
        elif self._announced or (self._name and self._setting("truncated") != "drop" and self.tools.style == "tag"):
            self.write("" if self._announced else "{}")
            self._end(False)
        self.source.forget()

    def _failed(self, failure: NoCall) -> Reading[None]:
        """What was read is no call: show it or leave it out, up to the end of what it pretended to be. A call that
        was announced before ends here."""
        text = self.source.remembered
        self.source.forget()
        strict = (self._policy.failed or "") == "error" and not self._bare
        self._emit(ParseWarning("tool_call_error" if strict else "tool_call", str(failure)))
        setting = "content" if self._bare else "drop" if failure.incomplete else self._setting("failed")
        if self._unmarked:
            self._shown(text)
        elif self._announced and self.tools.commit == "arguments":
            yield from self._pass_over(lambda _: None)
            self._end(True)
        elif setting == "call" and self._name:
            parts = [text]
            yield from self._pass_over(parts.append)
            self.write(self._without_markers("".join(parts)))
            self._end(True)
        else:
            show = self._shown if setting in ("content", "text") else lambda _: None
            show(self._without_markers(text) if setting == "text" else text)
            markers = setting == "content"
            yield from self._pass_over(show, markers, to_the_end=setting not in ("content", "text"))

    def _pass_over(self, take: Callable[[str], None], markers: bool = True, to_the_end: bool = False) -> Reading[None]:
        """Hand over what follows, through the end marker of the failed call (which is handed over too if `markers`)
        or up to a further start. A format without end markers: nothing, or everything (`to_the_end`)."""
        source, calls = self.source, self.calls
        ends = tuple(marker for marker in (calls.call_end, calls.section_end) if marker) or calls.ends
        if not ends and not to_the_end:
            return
        scanner = self.syntax.scanner(*ends, *calls.starts)
        while True:
            stop, marker = scanner.find(source.text, source.position, source.final)
            take(source.text[source.position : stop])
            source.position = stop
            if marker in ends:
                source.position += len(marker or "")
                take(marker if marker and markers else "")
            if marker is not None or source.final:
                return
            yield

    def _without_markers(self, text: str) -> str:
        calls = self.calls
        for marker in (*calls.starts, *calls.ends):
            text = text.replace(marker, "")
        return text.strip()

    def _setting(self, name: str) -> str:
        return getattr(self._policy, name) or str(getattr(self.tools, name))


def _fits(given: set[str], schema: Schema) -> bool:
    """Whether these are arguments that a tool with this schema can have."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return False
    required = schema.get("required")
    return set(required if isinstance(required, list) else ()) <= given <= set(schema["properties"])
