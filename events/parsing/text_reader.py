"""Reading text and what its markers begin: the actions of the table in `events.parsing.syntax`.

The reader's methods are also the words of the readers of other outputs (`events.parsing.machine`).
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
    """Consume a fence that opens here, behind white space."""
    blank = yield from source.blank()
    if (yield from source.match(_OPENERS)):
        return True
    source.unread(blank)
    return False


def closing_fence(source: Source, ends: Scanner) -> Reading[str]:
    """Behind a fence that was consumed: "" where nothing but the end (or one of the markers `ends`) follows; else what
    was read, which is text: a string may hold a fence."""
    blank = yield from source.blank()
    if not (yield from source.peek()) or (yield from source.ahead(ends)):
        return ""
    return FENCE + blank


_BLANKS = (" ", "\n", "\t", "\r")
_ADDRESS_LIMIT = 256
_LIST_OF_OBJECTS = scanner_for(("[{",))
_FIRST_KEY = 64
"""Characters in which an object's first key must show, where it may be a call behind text."""

Within = Literal["", "addressed", "fenced", "plain"]
"""Stretches of content in which fewer markers count, or more: see `events.parsing.syntax.MODES`."""


class Rules(NamedTuple):
    """What the request and its format decide together.

    strict: text ends all calls. bare_calls: a call may stand without its opening marker. checked: such a call must fit
    its tool's schema and end the message, for the format has markers. unmarked_calls: calls in a code fence or in
    another family's markers count too.
    """

    strict: bool
    bare_calls: bool
    checked: bool
    unmarked_calls: bool


def rules_of(output_format: OutputFormat, policy: Policy) -> tuple[Rules, Syntax]:
    """The rules, and the syntax that goes with them."""
    bare = policy.bare or (output_format.tools.bare if output_format.tools else "never")
    with_tools = policy.tools is None or bool(policy.tools)
    has_calls = output_format.tools is not None and with_tools
    bare_calls = has_calls and (bare == "always" or (bare == "declared" and bool(policy.tools)))
    strict = (policy.boundaries or output_format.boundaries) == "strict"
    unmarked = bare_calls and bool(policy.tools) and policy.unmarked == "lenient" and not policy.json_content
    syntax = syntax_of(output_format, with_tools, policy.extract_reasoning, bare != "never", bare_calls, unmarked)
    checked = bare_calls and bool(policy.tools) and syntax.calls is not None and not syntax.calls.is_unmarked
    return Rules(strict, bare_calls, checked, unmarked), syntax


class TextReader:
    """Reads one output from `source` and says what it reads to `output`.

    within: a stretch of content with markers of its own. closed: whether reasoning was closed. section_seen: whether
    calls were looked for, so that their end markers may stand alone. only_text: while everything that was read has
    been said, the scanner that looks for the next marker; text without one need not wake the reader up.
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
        self.section_seen = False
        self.only_text: Scanner | None = None

    @property
    def mode(self) -> Mode:
        """The column of the table that counts here."""
        if self.within == "plain":
            return "plain"
        if self.output.kind == "reasoning":
            return "reasoning"
        return self.within or self.output.kind

    def read(self) -> Reading[None]:
        """The whole output: text, and what its markers begin."""
        while (yield from self.source.match(self.syntax.header_scanner)):
            self.output.behind_marker = True  # the prompt's header of the message, or its end, once more
        while True:
            if self.output.at_start and self.output.kind == "content":
                yield from self._start_of_content()
            # The mode is asked for each time: every action below may have changed it.
            mode = self.mode
            marker = yield from self.text(self.syntax.scanners[mode], in_content=mode in ("content", "undecided"))
            if not marker:
                return
            step = _STEPS[self.syntax.actions[mode][self.syntax.canonical(marker)]](self, marker)
            if step is not None:
                yield from step

    def _start_of_content(self) -> Reading[None]:
        """What may only stand where content begins: a code fence, and a call without its opening marker."""
        if self.policy.json_content and self.within != "plain":
            if (yield from opening_fence(self.source)):
                self.within, self.output.behind_marker = "fenced", True
            elif self.within == "fenced":
                self.within = ""
        if (self.rules.unmarked_calls or self.rules.checked) and self.within == "":
            blank = yield from self.source.blank()
            if (yield from self._at_block()):
                yield from self._block(blank, exact=False)
                return
            self.source.unread(blank)
        if self.rules.bare_calls:
            yield from self._bare_call()

    # The words of readers.

    def text(self, scanner: Scanner, *, in_content: bool = False) -> Reading[str]:
        """Say text up to the next marker, which is consumed and returned; "" at the end. Half a marker there was cut
        off, and is left out. in_content: of what closes something only where a call was read."""
        source = self.source
        while True:
            stop, marker = scanner.find(source.text, source.position, source.final)
            if marker is None and source.final:
                # Half a marker may stand at the end. In content only markers that open something count by a half:
                # half of what closes something that was never opened is more likely text.
                cut = self.syntax.content_cut if in_content and not self.section_seen else scanner
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
        """A marker was read that is not shown. It ends content that was addressed to a reader, or begins such."""
        self.output.forget_opener()
        if self.format.address and self.syntax.canonical(marker) in self.format.content.start:
            self.within = "addressed"
        elif self.within == "addressed":
            self.within = ""
        self.output.behind_marker = True

    def read_message(self, name: str, header: str) -> Reading[str | None]:
        """Read a call that is the body of a message with this header: its arguments where the header has the function's
        name, else a JSON object. Returns the text of what was no call, for the caller to show; None for a call."""
        assert self.calls is not None
        shown: list[str] = []
        self.output.behind_call = self.section_seen = True
        yield from self.calls.read_message(name, header, shown.append)
        return "".join(shown) if shown else None

    def read_text_message(self, name: str, header: str) -> Reading[str | None]:
        """The same of a call whose one argument, `text`, is the body as it stands."""
        assert self.calls is not None
        shown: list[str] = []
        self.output.behind_call = self.section_seen = True
        yield from self.calls.read_text_message(name, header, shown.append)
        return "".join(shown) if shown else None

    # The actions of the table. One that has to read on returns a reading.

    def _leave_out(self, marker: str) -> None:
        self.mark(marker)

    def _open_reasoning(self, marker: str) -> None:
        self._forget_address(marker)
        self.output.decide("content")
        reasoning = self.format.reasoning
        # what the prompt opened is reasoning for certain
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
        """A closer without an opener: the prompt may have opened it. It is text where the output cannot open reasoning
        or, under strict boundaries, behind the first."""
        opens = self.format.reasoning is not None and bool(self.format.reasoning.start)
        in_content = self.output.kind == "content"
        if in_content and (not opens or (self.rules.strict and (self.closed or self.output.answered))):
            self._forget_address(marker)
            self.output.write(marker)
            self.output.behind_marker = True
        else:
            self._close_reasoning(marker)

    def _interrupt_reasoning(self, marker: str) -> None:
        """A tool's marker in reasoning: it ends the reasoning, or interrupts it for the call. Spelled out in the middle
        of a sentence it only mentions a call; a token of the vocabulary never does."""
        self._forget_address(marker)
        resumes = self.format.reasoning is not None and self.format.reasoning.after_call == "reasoning"
        mentioned = self.output.in_sentence and not any(map(is_token, marker))
        if self.rules.strict or (resumes and self.calls is None) or mentioned:
            self.output.write(marker)
            self.output.behind_marker = True
            return
        # In content the same marker is found again, and opens the call there.
        self.source.position -= len(marker)
        self.output.enter("content")
        self.output.at_start = False
        self.output.resumes = "reasoning" if resumes else "content"

    def _enter_content(self, marker: str) -> None:
        self.mark(marker)
        self.output.enter("content")

    def _end_calls(self, marker: str) -> None:
        if self.section_seen:
            self.mark(marker)
        else:
            self._forget_address(marker)
            self.output.write(marker)

    def _show(self, marker: str) -> None:
        self.output.write(marker)
        self.output.at_start = True

    def _forget_address(self, marker: str) -> None:
        """`mark`, for actions that say something before white space is known to stand behind a marker."""
        behind = self.output.behind_marker
        self.mark(marker)
        self.output.behind_marker = behind

    def _read_address(self, marker: str) -> Reading[None]:
        """Whom a message is for, which its call says again; text that only begins like that stays text."""
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
        """The calls behind a marker, or that begin without one."""
        assert self.calls is not None
        self.output.decide("content")
        self.output.forget_opener()
        before = self.output.calls
        self.output.behind_call = self.section_seen = True
        yield from self.calls.read(marker)
        if self.output.calls > before:
            # Behind a call, another one may follow without its opening marker.
            self.output.at_start = True
        if self.output.resumes == "reasoning":
            self.output.enter("reasoning")
        self.output.resumes = "content"

    def _at_block(self) -> Reading[bool]:
        """Whether a code fence, another family's marker or bare JSON begins here, which may hold calls."""
        if (yield from self.source.ahead(self.syntax.content_markers)):
            return False
        char = yield from self.source.peek()
        if self.rules.checked and char == "[" and self.format.tools and self.format.tools.arguments.style == "python":
            return bool((yield from self.source.ahead(_LIST_OF_OBJECTS)))
        if self.rules.checked and char in ("{", "["):
            return True
        return self.rules.unmarked_calls and bool((yield from self.source.ahead(OPENERS)))

    def _block(self, blank: str, *, exact: bool) -> Reading[None]:
        """Read the block that begins here as calls, or say its text unchanged where it holds none. blank: the white
        space in front of it. exact: see `read_block`."""
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
        self.output.behind_call = self.section_seen = self.output.behind_marker = True
        for call in block:
            calls.say_whole(call.name, call.arguments)
        self.output.at_start = True

    def _embedded_fence(self, marker: str) -> Reading[None]:
        """A code fence behind text, which may announce a call."""
        if not self.rules.strict and announces_call(self.output.beginning):
            self.source.unread(marker)
            yield from self._block("", exact=True)
        else:
            self.output.write(marker)

    def _bare_call(self) -> Reading[None]:
        """A call without its opening marker, where content begins: JSON, or a list of Python calls."""
        blank = yield from self.source.blank()
        char = yield from self.source.peek()
        self.output.at_start = False
        # A marker may begin with a bracket too (`[TOOL_CALLS]`); it is read by the table.
        if char in ("{", "[") and not (yield from self.source.ahead(self.syntax.content_markers)):
            self.output.hold_blank(blank)
            yield from self._read_calls("")
        else:
            self.source.unread(blank)

    def _embedded_call(self, marker: str) -> Reading[None]:
        """A call behind text, in a format whose calls nothing marks: an object whose first key is one of a call's, or a
        list whose first function is a declared tool."""
        source = self.source
        while (known := self._begins_call(marker, source.text[source.position : source.position + _FIRST_KEY])) is None:
            if source.final or len(source.text) - source.position >= _FIRST_KEY:
                break
            yield
        # The text in front of unmarked JSON decides whether it is an example or a call.
        tested = self.syntax.calls is not None and self.syntax.calls.is_unmarked and bool(self.policy.tools)
        if known and tested and not announces_call(self.output.beginning, within_line=True):
            self.output.write(marker)
        elif known:
            source.unread(marker)
            yield from self._read_calls("")
        else:
            self.output.write(marker)

    def _begins_call(self, bracket: str, text: str) -> bool | None:
        """Whether a call goes on like this behind its bracket; None: the text is too short to tell."""
        if self.syntax.calls is not None and self.syntax.calls.is_unmarked:
            return begins_call(bracket + text)
        return begins_python_call(text, self.policy.tools or ())


_STEPS: Mapping[Action, Callable[[TextReader, str], Reading[None] | None]] = {
    "leave out": TextReader._leave_out,
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
