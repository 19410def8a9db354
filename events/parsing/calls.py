"""Reading tool calls: a section of calls, from its opening marker to its end.

A call is announced with its first argument text: until then the text that was read is remembered, and if it turns out
not to be a call, the format's `failed` setting decides what happens to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Literal

from events.parsing.arguments import NoCall, read_arguments
from events.parsing.json_output import escaped
from events.parsing.open_call import CutOff, OpenCall, read_json_call
from events.parsing.pieces import Piece
from events.parsing.policy import Policy
from events.parsing.source import Reading, Scanner, Source, is_token
from events.parsing.syntax import Syntax, distinctive, is_tag, self_closing, substantial

NAME_LIMIT = 256
"""The most characters of a function's name or a call's id."""
_NOT_IN_NAMES = frozenset("<>{}[]()\"'`")


_IN_OTHER_ID = re.compile(r"(?:functions[._:]?)?(.+?)[._:]?\d+")
"""An id that was altered: `functions_get_weather_1` or `functionsget_weather1` for `functions.get_weather:1`. Clients
replace characters of ids, and models imitate the ids of the conversation."""


def _is_name(text: str) -> bool:
    """Return whether a text may be the name of a function. Numbers are ids or positions."""
    if not any(map(str.isalnum, text)) or text.isdigit():
        return False
    return not any(c.isspace() or c in _NOT_IN_NAMES or is_token(c) for c in text)


class HeaderReader:
    """Reads the headers of calls and sets a call's name and id."""

    def __init__(self, call: OpenCall) -> None:
        self.call = call
        self.source = call.source
        self.syntax = call.syntax
        self.calls = call.calls
        self.tools = call.tools
        self._without_arguments = False

    def read(self, prefix_read: bool) -> Reading[bool]:
        """Read the header that begins here, up to the arguments. Return whether its tag closes itself, so that there
        are no arguments.

        prefix_read: the prefix of the name was already read. Raises NoCall if there is no name, CutOff if the output
        ends within the header.
        """
        if self.tools.id.position == "before_name":
            # An id between the call's opener and the name. It may be missing together with its markers.
            prefix, suffix = self.tools.id.prefix.strip(), self.tools.id.suffix.strip()
            if not prefix or (yield from self._match(prefix)):
                ends = self._scanner(suffix or self.calls.name_prefix, *self.calls.ends)
                text, marker = yield from self.source.until(ends, NAME_LIMIT)
                if self.syntax.canonical(marker) != suffix:
                    self.source.position -= len(marker)
                self.call.id = text.strip()
                yield from self.source.space()
        prefix_read = prefix_read or bool((yield from self._match(self.calls.name_prefix)))
        if not prefix_read and is_tag(self.calls.name_prefix):
            raise NoCall("no function name where a call should begin")
        self._without_arguments = False
        self._take_name((yield from self._header()))
        return self._without_arguments

    def _header(self) -> Reading[str]:
        """Return the text with the name, up to its end. An id after the name is read as well."""
        source, calls, call_id = self.source, self.calls, self.tools.id
        id_prefix = call_id.prefix.strip() if call_id.position == "between" else ""
        # The beginning of the arguments, since a header may lack its end.
        a = self.tools.arguments
        openers = {"json": "{", "object": "{", "tagged": self.calls.argument_name, "nested": a.element_prefix + "<"}
        opener = openers.get(a.style, "")
        bracket = "(" if self.tools.arguments.style == "object" else ""
        tags = self_closing(calls.name_end)
        ends = (calls.name_end, *tags, id_prefix, opener, bracket, calls.arguments_start, *calls.ends, *calls.starts)
        text, raw_marker = yield from source.until(self._scanner(*ends), NAME_LIMIT)
        if not raw_marker:
            # The output ended or continued without an end of the name.
            if not self.source.final:
                raise NoCall("a function name without an end")
            if self.call.setting("truncated") == "name" and text.strip():
                self._take_name(text)
            if not self.source.cut and text.strip() and not _is_name(text.strip()):
                raise NoCall(f"{text.strip()[:40]!r} is not a function name")
            raise CutOff
        self._without_arguments = raw_marker in tags
        if self._without_arguments:
            return text
        marker = self.syntax.canonical(raw_marker)
        if id_prefix and marker == id_prefix:
            # An id between name and arguments, and the end of the header after it.
            suffix = call_id.suffix.strip()
            id_text, raw_end = yield from source.until(self._scanner(suffix, calls.name_end, opener), NAME_LIMIT)
            self.call.id = id_text.strip()
            end = self.syntax.canonical(raw_end)
            if suffix and end == suffix and end != calls.name_end:
                yield from source.space()
                if calls.name_end != opener:  # otherwise it is the arguments' own bracket
                    yield from self._match(calls.name_end)
            elif end != calls.name_end or end == opener:
                source.position -= len(raw_end)
        elif marker != calls.name_end or marker == opener:
            source.position -= len(raw_marker)
        # A Python call needs its parenthesis; without one the text is just a word.
        if self.tools.arguments.style == "python" and marker not in (calls.name_end, id_prefix):
            raise NoCall("a function without parentheses")
        return text

    def _take_name(self, text: str) -> None:
        """Extract the name from the header's text: `functions.get_weather:0`, `get_weather" index="1"`."""
        calls, name = self.calls, text.strip()
        in_name = self.tools.id.position == "in_name"
        if in_name:
            self.call.id = name if name.startswith(calls.name_prefix) else calls.name_prefix + name
        name = name.removeprefix(calls.name_prefix).removeprefix(":" if calls.name_prefix.endswith(":") else "")
        if calls.name_prefix[-1:] in ("'", '"'):
            name = name.partition(calls.name_prefix[-1])[0]
        if len(calls.name_parts) > 1 and calls.name_parts[0] in name:
            name = name.rpartition(calls.name_parts[0])[0]
        name = name.removesuffix("\\n").strip()
        name = unescape(name) if self.tools.name_entities else name
        declared = self.call.policy.tools
        if in_name and declared and name not in declared and (known := _IN_OTHER_ID.fullmatch(name)):
            name = known[1] if known[1] in declared else name
        # Some models write only the call's number; the arguments then determine the tool.
        if in_name and name.isdigit() and self.call.policy.tools:
            self.call.nameless = True
        elif not _is_name(name):
            raise NoCall(f"{name[:40]!r} is not a function name")
        else:
            self.call.declare(name)

    def _scanner(self, *markers: str) -> Scanner:
        return self.syntax.scanner(*markers)

    def _match(self, marker: str) -> Reading[str]:
        return self.source.match(self.syntax.scanner(marker))


Opener = Literal["section", "call", "name", "bare"]
_MOST_NOISE = 64


class CallReader:
    """Reads calls from `source`. emit: called with pieces. show: called with text that turned out not to be a call."""

    def __init__(
        self,
        source: Source,
        syntax: Syntax,
        policy: Policy,
        emit: Callable[[Piece], None],
        show: Callable[[str], None],
    ) -> None:
        self.call = OpenCall(source, syntax, policy, emit)
        self._header = HeaderReader(self.call)
        self.source = source
        self.syntax = syntax
        self.calls = self.call.calls
        self.tools = self.call.tools
        self._show_default = self._show = show
        self._bare = self._array = self._further = False  # further: not the first of its section
        self.mentioned = False
        """Whether the last marker was part of a text, which was not consumed behind it."""
        self._may_mention = False
        self._gap = ""

    def read(self, marker: str, *, of_model: bool = True) -> Reading[None]:
        """Read the calls after a marker that was just consumed, or that begin here without one (""), to the end of the
        last call. of_model: whether the model wrote the marker, not the prompt."""
        action: Opener = "name"
        opener = self.syntax.canonical(marker)
        if not marker:
            action = "bare"
        elif opener == self.calls.section_start:
            action = "section"
        elif opener == self.calls.call_start:
            action = "call"
        self._show, self.mentioned, self._may_mention = self._show_default, False, of_model and bool(marker)
        self.call.unmarked, self._bare = action in ("bare", "name"), action == "bare"
        self._array = self.calls.opens_array and action == "section" and marker.endswith("[")
        self._further = False
        while True:
            if not (yield from self._try_call(marker, self._call(action))):
                return
            if not (yield from self._another()):
                return
            action, marker, self._further = "section", self._gap, True

    def read_message(self, name: str, header: str, show: Callable[[str], None]) -> Reading[None]:
        """Read a call that is the body of a message: its arguments if the header has the name, otherwise a JSON
        object."""
        self._show, self._may_mention = show, False
        self.call.unmarked = self._bare = self._array = self._further = False
        yield from self._try_call(header, self._message(name))

    def read_text_message(self, name: str, header: str, show: Callable[[str], None]) -> Reading[None]:
        """Read a call that is the body of a message: its only argument, `text`, is the unchanged body."""
        self._show, self._may_mention = show, False
        self.call.unmarked = self._bare = self._array = self._further = False
        yield from self._try_call(header, self._text_message(name))

    def say_whole(self, name: str, arguments: str) -> None:
        """Emit a call that was read elsewhere. arguments: JSON text."""
        self.call.unmarked = False
        self.call.begin()
        self.call.declare(name)
        self.call.say(arguments)

    def _try_call(self, marker: str, reading: Reading[None]) -> Reading[bool]:
        """Read one call. Return whether it was one."""
        # Until the call is announced it may turn out to be text, so everything that is read is remembered.
        self.source.remember(marker)
        self.call.begin()
        try:
            yield from reading
            return True
        except NoCall as failure:
            # A partial marker at the end of the output is not the model's error: the output was cut off there.
            source, calls, a = self.source, self.calls, self.tools.arguments
            openers = (calls.name_prefix, calls.arguments_start, calls.argument_name, a.element_prefix + "<")
            markers = self._scanner(*calls.starts, *calls.ends, *openers)
            if source.final and markers.begins(source.text, source.position):
                self._show(self.call.cut_off())
                self.source.position = len(self.source.text)
                return False
            # Show or drop the text, through the end marker of the supposed call. A call that was already announced
            # ends here.
            call, text = self.call, source.remembered
            source.forget()
            setting = "drop" if failure.incomplete else call.setting("failed")
            # Text without a call's marker is part of the answer, regardless of the setting.
            if call.unmarked:
                setting = "content"
            elif setting == "content" and self._further:
                setting = "text"
            call.warn(str(failure), "tool_call_error" if setting == "error" else "tool_call")
            if self._bare:
                self._show(text)
            elif call.announced and self.tools.commit == "arguments":
                yield from self._pass_over(lambda _: None)
                call.end(True)
            elif setting == "call" and call.name:
                parts = [text]
                yield from self._pass_over(parts.append)
                call.keep_as_text(self._without_markers("".join(parts)))
            elif setting == "content" and self._may_mention and not (call.name or call.unmarked):
                # The text behind the marker is read as if it were not one.
                self.mentioned = True
                self._show(marker)
                source.unread(text.removeprefix(marker))
            elif setting in ("content", "text"):
                self._show(self._without_markers(text) if setting == "text" else text)
                yield from self._pass_over(self._show, markers=setting == "content")
            else:
                yield from self._pass_over(lambda _: None, to_the_end=True)
        except CutOff:
            self._show(self.call.cut_off())
        return False

    # One call.

    def _message(self, name: str) -> Reading[None]:
        char = yield from self.source.space()
        if self.tools.style == "tag":
            self.call.declare(name)
            yield from read_arguments(self.call)
        elif char == "{":
            yield from read_json_call(self.call)
        else:
            raise NoCall("no JSON object where a call should be")
        yield from self._close()

    def _text_message(self, name: str) -> Reading[None]:
        if not name:
            raise NoCall("a call without a name")
        self.call.declare(name)
        self.call.write('{"text": "')
        source, ends = self.source, self._scanner(*self.calls.ends)
        while True:
            stop, marker = ends.find(source.text, source.position, source.final)
            self.call.write(escaped(source.text[source.position : stop]))
            source.position = stop
            if marker is not None or source.final:
                break
            yield
        self.call.write('"}')
        yield from self._close()

    def _call(self, action: Opener) -> Reading[None]:
        """Read a call in a section, or nothing if the section ends at once."""
        inside = action == "call"
        if action == "name":
            yield from self._tag_call(prefix_read=True)
        else:
            char = yield from self.source.space()
            while action == "section" and not self._array and (yield from self._match(self.calls.section_start)):
                char = yield from self.source.space()  # written twice
            # The call's own opener may be missing after the section's.
            if not inside and (inside := bool((yield from self._match(self.calls.call_start)))):
                char = yield from self.source.space()
            # A list is accepted in every format: models trained on several mix them.
            if char == "[" and not self._array:
                self.source.position += 1
                self._array = True
                char = yield from self.source.space()
            if not char:
                raise CutOff
            # A section without calls is not shown.
            if (self._array and char == "]") or (yield from self.source.ahead(self._scanner(*self.calls.ends))):
                self.source.forget()
                return
            yield from self._by_style(char, inside)
        yield from self._close()

    def _by_style(self, char: str, inside: bool) -> Reading[None]:
        """Read a call as JSON if it begins like JSON, in formats of any style; otherwise in the format's style."""
        python, prefix = self.tools.arguments.style == "python", self.calls.name_prefix
        if char == "{":
            if self.tools.json.array_only and not self._array:
                raise NoCall("a call outside of a list")
            yield from read_json_call(self.call)
        elif self.tools.style == "json" or (not python and (self._array or self._bare)):
            raise NoCall("no JSON object where a call should be")
        elif (
            inside
            or self._array
            or not self.calls.call_start
            # The call's own opener is missing before the prefix of a name.
            or (distinctive(prefix) and (yield from self.source.ahead(self._scanner(prefix))))
        ):
            yield from self._tag_call(prefix_read=False)
        else:
            # A short text between a section's opener and the call's own opener is left out.
            source, scanner = self.source, self._scanner(*self.calls.starts, *self.calls.ends)
            stop, marker = yield from source.nearest(scanner, _MOST_NOISE)
            if marker is None or self.syntax.canonical(marker) != self.calls.call_start:
                raise NoCall("no call where one should be")
            self.call.warn(f"text before a call was left out: {source.text[source.position : stop].strip()!r}")
            source.position = stop + len(marker)
            yield from self._by_style((yield from source.space()), True)

    def _tag_call(self, prefix_read: bool) -> Reading[None]:
        """Read header and arguments of a call whose name is outside of JSON."""
        if (yield from self._header.read(prefix_read)):
            self.call.write("{}")
            return
        if self.calls.arguments_start:
            yield from self.source.space()
            yield from self._match(self.calls.arguments_start)
        yield from read_arguments(self.call)

    # After a call.

    def _close(self) -> Reading[None]:
        """Read the rest of a call after its arguments: surplus brackets, an id, its end markers."""
        self.call.closed = yield from self._end_marker(self.calls.arguments_end)
        if self.tools.id.position == "after_arguments" and (yield from self._match(self.tools.id.prefix.strip())):
            ends = self._scanner(self.tools.id.suffix.strip(), *self.calls.ends)
            text, marker = yield from self.source.until(ends, NAME_LIMIT)
            self.call.id = text.strip()
            if marker in self.calls.ends:
                self.source.position -= len(marker)
        if self.calls.call_end:
            self.call.closed = yield from self._end_marker(self.calls.call_end)
        self.call.finish()

    def _end_marker(self, marker: str) -> Reading[bool]:
        """Consume `marker` if it is here, after white space and stray closing brackets."""
        if not substantial(marker):
            return False
        char = yield from self.source.space()
        # Models write one closing bracket too many before the end marker; in an array a bracket has a meaning.
        while not (matched := (yield from self._match(marker))):
            if not char or char not in "})]" or self._array:
                break
            self.source.position += 1
            char = yield from self.source.space()
        return bool(matched)

    def _another(self) -> Reading[bool]:
        """Return whether another call of the same section follows. Consumes the separator or end marker."""
        source, calls = self.source, self.calls
        self._gap = ""
        if self._array:
            char = yield from source.space()
            source.position += char in (",", "]")
            self._array = char == ","
            if self._array:
                return True
            if self._bare and self.tools.arguments.style == "python":
                skipped = yield from source.blank()
                if not (calls.section_end and (yield from self._match(calls.section_end))):
                    source.unread(skipped)
                return False
        # The end marker is missing: another call in the same tag, or stray text before the marker.
        if self.tools.style == "json" and calls.call_end and not self.call.closed:
            skipped = yield from source.blank()
            if (yield from source.peek()) == ",":
                source.position += 1
                skipped += "," + (yield from source.blank())
            if (yield from source.peek()) == "{":
                return True
            if not (yield from source.ahead(self._scanner(calls.call_end))):
                source.unread(skipped)
            if (yield from self._match(calls.call_end)):
                return (yield from self._another())
        if not (calls.separator or calls.section_end or self._bare):
            return False
        skipped = yield from source.blank()
        if calls.separator and (yield from self._match(calls.separator)):
            return True
        if calls.section_end and (yield from self._match(calls.section_end)):
            return False
        if calls.section_end:
            # A call may begin here, within the section.
            if again := calls.call_start or calls.name_prefix:
                follows = bool((yield from source.ahead(self._scanner(again))))
            else:
                char = yield from source.peek()
                follows = char == "{" or (char.isidentifier() and self.tools.style == "tag")
            if follows:
                return True
        # Without markers only another object can be distinguished from text.
        if self._bare and (yield from source.peek()) == "{":  # on the next line, as Llama 3 writes several
            self._gap = skipped  # shown if the object is not a call
            return True
        source.unread(skipped)
        return False

    # Text that is not a call.

    def _pass_over(self, take: Callable[[str], None], markers: bool = True, to_the_end: bool = False) -> Reading[None]:
        """Consume text through the end marker of the failed call, or up to another start, and pass it to `take`.

        markers: pass the end marker as well. to_the_end: in a format without end markers, consume everything instead of
        nothing.
        """
        source, calls = self.source, self.calls
        ends = tuple(marker for marker in (calls.call_end, calls.section_end) if marker) or calls.ends
        if not ends and not to_the_end:
            return
        scanner = self._scanner(*ends, *calls.starts)
        while True:
            stop, marker = scanner.find(source.text, source.position, source.final)
            take(source.text[source.position : stop])
            source.position = stop
            if marker is not None and self.syntax.canonical(marker) in ends:
                source.position += len(marker)
                take(marker if markers else "")
            if marker is not None or source.final:
                return
            yield

    def _without_markers(self, text: str) -> str:
        for marker in (*self.calls.starts, *self.calls.ends):
            text = text.replace(marker, "")
        return text.strip()

    def _scanner(self, *markers: str) -> Scanner:
        return self.syntax.scanner(*markers)

    def _match(self, marker: str) -> Reading[str]:
        return self.source.match(self.syntax.scanner(marker))
