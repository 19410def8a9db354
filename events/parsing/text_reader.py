"""Reading text and its markers: the actions of the table in `events.parsing.syntax`.

Readers of other outputs use this reader's methods as well (`events.parsing.machine`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from events.formats.output_format import OutputFormat
from events.parsing.calls import CallReader
from events.parsing.open_call import begins_call, begins_python_call
from events.parsing.pieces import OutputWriter
from events.parsing.policy import Policy
from events.parsing.source import Reading, Scanner, Source, is_token, scanner_for
from events.parsing.syntax import FENCE, Action, Mode, Syntax, syntax_of
from events.parsing.unmarked_calls import OPENERS, announces_call, read_block

_OPENERS = scanner_for((f"{FENCE}json", f"{FENCE}JSON", f"{FENCE}\n", f"{FENCE}\r\n"))


def opening_fence(source: Source) -> Reading[bool]:
    """Consume an opening code fence here, after white space. Return whether there is one."""
    blank = yield from source.blank()
    if (yield from source.match(_OPENERS)):
        return True
    source.unread(blank)
    return False


def closing_fence(source: Source, ends: Scanner) -> Reading[str]:
    """Decide about a fence that was consumed: return "" if only the end or one of the markers `ends` follows. Otherwise
    return its text, since a string may contain a fence."""
    blank = yield from source.blank()
    if not (yield from source.peek()) or (yield from source.ahead(ends)):
        return ""
    return FENCE + blank


_BLANKS = (" ", "\n", "\t", "\r")
_ADDRESS_LIMIT = 256
_LIST_OF_OBJECTS = scanner_for(("[{",))
_FIRST_KEY = 64
"""Within so many characters an object after text must have its first key to be a call."""

Within = Literal["", "addressed", "fenced", "plain"]
"""Parts of the content in which other markers count: see `events.parsing.syntax.MODES`."""


class Rules(NamedTuple):
    """Rules that follow from the request and its format.

    strict: no calls after text. bare_calls: a call may lack its opening marker. checked: such a call must fit its
    tool's schema and end the message, since the format has markers. unmarked_calls: calls in a code fence or in another
    family's markers count as well.
    """

    strict: bool
    bare_calls: bool
    checked: bool
    unmarked_calls: bool


def rules_of(output_format: OutputFormat, policy: Policy) -> tuple[Rules, Syntax]:
    """Return the rules and the corresponding syntax."""
    bare = policy.bare or (output_format.tools.bare if output_format.tools else "never")
    with_tools = policy.tools is None or bool(policy.tools)
    has_calls = output_format.tools is not None and with_tools
    bare_calls = has_calls and (bare == "always" or (bare == "declared" and bool(policy.tools)))
    strict = (policy.boundaries or output_format.boundaries) == "strict"
    unmarked = bare_calls and bool(policy.tools) and policy.unmarked == "lenient" and not policy.json_content
    unmarked = unmarked and not policy.only_calls
    syntax = syntax_of(output_format, with_tools, policy.extract_reasoning, bare != "never", bare_calls, unmarked)
    marked = syntax.calls is not None and not syntax.calls.is_unmarked
    checked = bare_calls and bool(policy.tools) and marked and not policy.only_calls
    return Rules(strict, bare_calls, checked, unmarked), syntax


class TextReader:
    """Reads one output from `source` and emits it through `output`.

    within: a part of the content with markers of its own. closed: whether reasoning was closed. after_section: whether
    calls were read or tried, so that their end markers may occur alone. only_text: while everything read has been
    emitted, the scanner for the next marker; text without a marker does not need to resume the reader.
    """

    def __init__(self, output_format: OutputFormat, policy: Policy, source: Source, output: OutputWriter) -> None:
        self.format = output_format
        self.policy = policy
        self.source = source
        self.output = output
        self.rules, self.syntax = rules_of(output_format, policy)
        self.calls = CallReader(source, self.syntax, policy, output.say, output.show) if self.syntax.calls else None
        self.within: Within = ""
        self.closed = False
        self.after_section = False
        self.only_text: Scanner | None = None

    @property
    def mode(self) -> Mode:
        """The column of the table that applies here."""
        if self.within == "plain":
            return "plain"
        if self.output.kind == "reasoning":
            return "reasoning"
        return self.within or self.output.kind

    def read(self) -> Reading[None]:
        """Read the whole output."""
        while (yield from self.source.match(self.syntax.header_scanner)):
            self.output.behind_marker = True  # the model repeats the message's header or its end
        while True:
            if self.output.at_start and self.output.kind == "content":
                yield from self._start_of_content()
            # Every action below may change the mode.
            mode = self.mode
            marker = yield from self.text(self.syntax.scanners[mode], in_content=mode in ("content", "undecided"))
            if not marker:
                return
            step = _STEPS[self.syntax.actions[mode][self.syntax.canonical(marker)]](self, marker)
            if step is not None:
                yield from step

    def _start_of_content(self) -> Reading[None]:
        """Read what is only allowed where content begins: a code fence, or a call without its opening marker."""
        if (self.policy.json_content or self.policy.only_calls) and self.within != "plain":
            if (yield from opening_fence(self.source)):
                self.within, self.output.behind_marker = "fenced", True
            elif self.within == "fenced":
                self.within = ""
        if (self.rules.unmarked_calls or self.rules.checked) and self.within == "":
            blank = yield from self.source.blank()
            while (yield from self._at_block()):
                yield from self._block(blank, exact=False)
                if not self.output.at_start:  # it was text
                    return
                blank = yield from self.source.blank()
            self.source.unread(blank)
        if self.rules.bare_calls:
            # JSON or a list of Python calls.
            blank = yield from self.source.blank()
            char = yield from self.source.peek()
            self.output.at_start = False
            # A marker may begin with a bracket too (`[TOOL_CALLS]`); it is read by the table.
            if char in ("{", "[") and not (yield from self.source.ahead(self.syntax.content_markers)):
                self.output.hold_blank(blank)
                yield from self._read_calls("")
            else:
                self.source.unread(blank)

    # Methods for readers.

    def text(self, scanner: Scanner, *, in_content: bool = False) -> Reading[str]:
        """Emit text up to the next marker, which is consumed and returned; "" at the end.

        A partial marker at the end was cut off and is left out. in_content: this applies to closing markers only if a
        call was read.
        """
        source = self.source
        while True:
            stop, marker = scanner.find(source.text, source.position, source.final)
            if marker is None and source.final:
                # A partial marker may be at the end. In content only openers count when partial: part of a closer of
                # something that was never opened is more likely text.
                cut = self.syntax.content_cut if in_content and not self.after_section else scanner
                stop = cut.cut_off(source.text, source.position)
            if stop > source.position:
                self.output.write(source.text[source.position : stop])
                source.position = stop
            if marker is not None:
                source.position += len(marker)
                return marker
            if source.final:
                source.position = len(source.text)
                return ""
            # With nothing left to read, text without a marker's first character can go straight to the output.
            self.only_text = scanner if source.used_up else None
            yield

    def mark(self, marker: str) -> None:
        """Note a marker that is not shown. It ends addressed content or begins it."""
        self.output.forget_opener()
        if self.format.address and self.syntax.canonical(marker) in self.format.content.start:
            self.within = "addressed"
        elif self.within == "addressed":
            self.within = ""
        self.output.behind_marker = True
        content = self.format.content
        if content.wrapped == "with_calls" and self.syntax.canonical(marker) in (*content.start, *content.end):
            self.output.at_start = True  # a call without an opening marker follows the text before it

    def read_message(self, name: str, header: str) -> Reading[str | None]:
        """Read a call that is the body of a message with this header: its arguments if the header has the function's
        name, otherwise a JSON object. Return None for a call, otherwise the text, which the caller shows."""
        assert self.calls is not None
        refused_text: list[str] = []
        self.output.behind_call = self.after_section = True
        yield from self.calls.read_message(name, header, refused_text.append)
        return "".join(refused_text) if refused_text else None

    def read_text_message(self, name: str, header: str) -> Reading[str | None]:
        """Do what `read_message` does for a call whose only argument, `text`, is the unchanged body."""
        assert self.calls is not None
        refused_text: list[str] = []
        self.output.behind_call = self.after_section = True
        yield from self.calls.read_text_message(name, header, refused_text.append)
        return "".join(refused_text) if refused_text else None

    # The actions of the table. An action that has to read more returns a reading.

    def _open_reasoning(self, marker: str) -> None:
        self._forget_address(marker)
        self.output.decide("content")
        reasoning = self.format.reasoning
        # Reasoning that the prompt opens is certain.
        waits = reasoning is not None and reasoning.unclosed == "content" and self.output.written_by == "model"
        self.output.enter("undecided" if waits else "reasoning")

    def _reopen_reasoning(self, marker: str) -> None:
        self._forget_address(marker)
        if not self.output.may_reopen:
            self.output.write(marker)
        self.output.behind_marker = True

    def _close_reasoning(self, marker: str) -> None:
        self._forget_address(marker)
        self.output.decide("reasoning")
        self.closed = True
        self.output.enter("content")

    def _close_unopened(self, marker: str) -> None:
        """Handle a closer of reasoning without an opener, which may be in the prompt. It is text if the output cannot
        open reasoning or, with strict boundaries, after the first."""
        opens = self.format.reasoning is not None and bool(self.format.reasoning.start)
        in_content = self.output.kind == "content"
        if in_content and (not opens or (self.rules.strict and (self.closed or self.output.answered))):
            self._forget_address(marker)
            self.output.write(marker)
            self.output.behind_marker = True
        else:
            self._close_reasoning(marker)

    def _interrupt_reasoning(self, marker: str) -> None:
        """Handle a call marker in reasoning: it ends the reasoning or interrupts it for the call. Spelled out within a
        sentence, and where no call follows, it is part of the reasoning."""
        self._forget_address(marker)
        resumes = self.format.reasoning is not None and self.format.reasoning.after_call == "reasoning"
        mentioned = self.output.in_sentence and not any(map(is_token, marker))
        if self.rules.strict or (resumes and self.calls is None) or mentioned:
            self.output.write(marker)
            self.output.behind_marker = True
            return
        # The same marker is read again in content, and opens the call there.
        self.source.position -= len(marker)
        self.output.enter("content")
        self.output.at_start = False
        self.output.resumes = "reasoning"

    def _enter_content(self, marker: str) -> None:
        self.mark(marker)
        self.output.enter("content")

    def _end_calls(self, marker: str) -> None:
        if self.after_section:
            self.mark(marker)
        else:
            self._forget_address(marker)
            self.output.write(marker)

    def _show(self, marker: str) -> None:
        self.output.write(marker)
        self.output.at_start = True

    def _forget_address(self, marker: str) -> None:
        """Do what `mark` does without changing `behind_marker`, for actions that emit the marker as text."""
        behind = self.output.behind_marker
        self.mark(marker)
        self.output.behind_marker = behind

    def _read_address(self, marker: str) -> Reading[None]:
        """Read the recipient of a message, which its call repeats. Text that only begins like one stays text."""
        assert self.format.address is not None
        closes = self.format.address[1]
        name, end = yield from self.source.until(self.syntax.scanner(closes, *_BLANKS), _ADDRESS_LIMIT)
        if name and end == closes:
            self.mark(marker)
        else:
            self.output.write(marker)
            self.source.unread(name + end)

    def _close_fence(self, marker: str) -> Reading[None]:
        if text := (yield from closing_fence(self.source, self.syntax.content_markers)):
            self.output.write(text)
        else:
            self.output.drop_blank()
            self.within = ""

    # Calls.

    def _read_marked_calls(self, marker: str) -> Reading[None] | None:
        if self.rules.strict and self.output.answered:
            self.within = "plain"
            self.output.write(marker)
            return None
        return self._read_calls(marker)

    def _read_calls(self, marker: str) -> Reading[None]:
        """Read the calls after a marker, or those that begin without one."""
        assert self.calls is not None
        self.output.decide("content")
        self.output.forget_opener()
        before, after_section = self.output.calls, self.after_section
        self.output.behind_call = self.after_section = True
        yield from self.calls.read(marker, of_model=self.output.written_by == "model")
        reasoning = self.format.reasoning
        if self.output.calls > before:
            # After a call, another one may follow without its opening marker.
            self.output.at_start = True
            if reasoning is None or reasoning.after_call != "reasoning":
                self.output.resumes = "content"
        if self.calls.mentioned:
            self.after_section = after_section
        if self.output.resumes == "reasoning":
            self.output.enter("reasoning")
        self.output.resumes = "content"

    def _at_block(self) -> Reading[bool]:
        """Return whether a code fence, another family's marker or bare JSON begins here, which may contain calls."""
        if (yield from self.source.ahead(self.syntax.content_markers)):
            return False
        char = yield from self.source.peek()
        if self.rules.checked and char == "[" and self.format.tools and self.format.tools.arguments.style == "python":
            return bool((yield from self.source.ahead(_LIST_OF_OBJECTS)))
        if self.rules.checked and char in ("{", "["):
            return True
        return self.rules.unmarked_calls and bool((yield from self.source.ahead(OPENERS)))

    def _block(self, blank: str, *, exact: bool) -> Reading[None]:
        """Read the block that begins here as calls, or emit its text unchanged if it contains none. blank: the white
        space before it. exact: see `read_block`."""
        source, calls = self.source, self.calls
        assert calls is not None
        source.remember()
        block = yield from read_block(source, self.policy.tools or {}, self.syntax.content_markers, exact=exact)
        text = source.remembered
        source.forget()
        if not block:
            self.output.at_start = False
            self.output.write(blank + text)
            return
        self.output.forget_opener()
        self.output.drop_blank()
        self.output.behind_call = self.after_section = self.output.behind_marker = True
        for call in block:
            calls.say_whole(call.name, call.arguments)
        self.output.at_start = True

    def _embedded_fence(self, marker: str) -> Reading[None]:
        """Read a code fence after text, which may announce a call."""
        if not self.rules.strict and announces_call(self.output.beginning):
            self.source.unread(marker)
            yield from self._block("", exact=True)
        else:
            self.output.write(marker)

    def _embedded_call(self, marker: str) -> Reading[None]:
        """Read a call after text, in a format without call markers: an object whose first key is one of a call's, or a
        list whose first function is a declared tool."""
        source = self.source
        unmarked_json = self.syntax.calls is not None and self.syntax.calls.is_unmarked
        while True:
            text = source.text[source.position : source.position + _FIRST_KEY]
            is_call = begins_call(marker + text) if unmarked_json else begins_python_call(text, self.policy.tools or ())
            if is_call is not None or source.final or len(text) == _FIRST_KEY:
                break
            yield
        # The text before unmarked JSON decides whether it is an example or a call.
        if is_call and unmarked_json and self.policy.tools:
            is_call = announces_call(self.output.beginning, within_line=True)
        if is_call:
            source.unread(marker)
            yield from self._read_calls("")
        else:
            self.output.write(marker)


_STEPS: Mapping[Action, Callable[[TextReader, str], Reading[None] | None]] = {
    "leave out": TextReader.mark,
    "open reasoning": TextReader._open_reasoning,
    "reopen reasoning": TextReader._reopen_reasoning,
    "close reasoning": TextReader._close_reasoning,
    "close what was not opened": TextReader._close_unopened,
    "interrupt reasoning": TextReader._interrupt_reasoning,
    "enter content": TextReader._enter_content,
    "end calls": TextReader._end_calls,
    "read calls": TextReader._read_marked_calls,
    "read a name": TextReader._read_address,
    "try a call": TextReader._embedded_call,
    "try a fence": TextReader._embedded_fence,
    "close the fence": TextReader._close_fence,
    "show, and look for a call": TextReader._show,
}
