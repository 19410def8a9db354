"""The header of a call whose name stands outside of JSON: the name, the id around it, and what ends them."""

from __future__ import annotations

from html import unescape

from events.parsing.argument_context import NoCall
from events.parsing.open_call import CutOff, OpenCall
from events.parsing.scanner import Scanner
from events.parsing.source import Reading
from events.parsing.syntax import is_tag, self_closing

NAME_LIMIT = 256
"""Characters of a function's name or a call's id, at most."""
_NOT_IN_NAMES = frozenset("<>{}[]()\"'")


class HeaderReader:
    """Reads headers, one after the other, and tells the call its name and id."""

    def __init__(self, call: OpenCall) -> None:
        self.call = call
        self.source = call.source
        self.syntax = call.syntax
        self.calls = call.calls
        self.tools = call.tools
        self._without_arguments = False

    def read(self, prefix_read: bool) -> Reading[bool]:
        """The header that begins here, up to the arguments; whether its tag closes itself, so that there are none.
        prefix_read: what precedes the name was read already. Raises NoCall where there is no name, CutOff where the
        output ends within it."""
        if self.tools.id.position == "before_name":
            yield from self._id_before_name()
        prefix_read = prefix_read or bool((yield from self._match(self.calls.name_prefix)))
        if not prefix_read and is_tag(self.calls.name_prefix):
            raise NoCall("no function's name where a call should be")
        self._without_arguments = False
        self._take_name((yield from self._header()))
        return self._without_arguments

    def _id_before_name(self) -> Reading[None]:
        """An id between the call's opener and the name; it may be missing with its markers."""
        prefix, suffix = self.tools.id.prefix.strip(), self.tools.id.suffix.strip()
        if prefix and not (yield from self._match(prefix)):
            return
        ends = self._scanner(suffix or self.calls.name_prefix, *self.calls.ends)
        text, marker = yield from self.source.until(ends, NAME_LIMIT)
        if self.syntax.canonical(marker) != suffix:
            self.source.position -= len(marker)
        self.call.id = text.strip()
        yield from self.source.space()

    def _header(self) -> Reading[str]:
        """The text that holds the name, up to what ends it; an id behind it is read too."""
        source, calls, call_id = self.source, self.calls, self.tools.id
        id_prefix = call_id.prefix.strip() if call_id.position == "between" else ""
        opener = self._argument_opener()
        bracket = "(" if self.tools.arguments.style == "object" else ""
        tags = self_closing(calls.name_end)
        ends = (calls.name_end, *tags, id_prefix, opener, bracket, calls.arguments_start, *calls.ends, *calls.starts)
        text, found = yield from source.until(self._scanner(*ends), NAME_LIMIT)
        if not found:
            self._unfinished_name(text)
        self._without_arguments = found in tags
        if self._without_arguments:
            return text
        marker = self.syntax.canonical(found)
        if id_prefix and marker == id_prefix:
            yield from self._id_behind_name(opener)
        elif marker != calls.name_end or marker == opener:
            source.position -= len(found)
        # Python's call needs its parenthesis; without one the text is a word.
        if self.tools.arguments.style == "python" and marker not in (calls.name_end, id_prefix):
            raise NoCall("a function without parentheses")
        return text

    def _id_behind_name(self, opener: str) -> Reading[None]:
        """An id between name and arguments, and what ends the header behind it."""
        source, name_end, suffix = self.source, self.calls.name_end, self.tools.id.suffix.strip()
        text, found = yield from source.until(self._scanner(suffix, name_end, opener), NAME_LIMIT)
        self.call.id = text.strip()
        marker = self.syntax.canonical(found)
        if suffix and marker == suffix and marker != name_end:
            yield from source.space()
            if name_end != opener:  # else it is the arguments' own bracket
                yield from self._match(name_end)
        elif marker != name_end or marker == opener:
            source.position -= len(found)

    def _argument_opener(self) -> str:
        """What begins the arguments, where a header may lack its end."""
        a = self.tools.arguments
        openers = {"json": "{", "object": "{", "tagged": self.calls.argument_name, "nested": a.element_prefix + "<"}
        return openers.get(a.style, "")

    def _unfinished_name(self, text: str) -> None:
        """The output ended, or ran on, where the name should have ended."""
        if not self.source.final:
            raise NoCall("a function's name without an end")
        if self.call.setting("truncated") == "name" and text.strip():
            self._take_name(text)
        raise CutOff

    def _take_name(self, text: str) -> None:
        """Take the name out of the header's text: `functions.get_weather:0`, `get_weather" index="1"`."""
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
        # Some models write only the call's number; the arguments will tell which tool is meant.
        if in_name and name.isdigit() and self.call.policy.tools:
            self.call.nameless = True
        elif not name or name.isdigit() or any(c.isspace() or c in _NOT_IN_NAMES for c in name):
            raise NoCall(f"{name[:40]!r} is no function's name")
        else:
            self.call.declare(name)

    def _scanner(self, *markers: str) -> Scanner:
        return self.syntax.scanner(*markers)

    def _match(self, marker: str) -> Reading[str]:
        return self.source.match(self.syntax.scanner(marker))
