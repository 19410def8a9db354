"""The parser: text in, pieces out; one state machine for the reasoning, content and calls of every format.

`feed` never raises, whatever the text. The pieces do not depend on how the text was cut, once neighbours of one kind
are joined. Every character is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from events.formats.output_format import OutputFormat
from events.parsing.calls import CallReader
from events.parsing.fences import FENCE, closing_fence, opening_fence
from events.parsing.open_call import begins_call, begins_python_call
from events.parsing.pieces import ContentText, Piece
from events.parsing.policy import Policy
from events.parsing.prompted import thoughts_apart, written_by_prompt
from events.parsing.readers import reader_for
from events.parsing.scanner import Scanner, is_token
from events.parsing.source import Reading, Source
from events.parsing.speech import Speech
from events.parsing.syntax import Syntax, syntax_of
from events.parsing.tokens import MarkerTokens

_CALLS = frozenset({"section", "call", "name"})
_OTHERS = {"{": "object", "[": "object", FENCE: "fence"}
_BLANKS = (" ", "\n", "\t", "\r")
_ADDRESS_LIMIT = 256
_FIRST_KEY = 64
"""Characters in which an object's first key must show, where it may be a call behind text."""


class Parser(Speech):
    """Reads one output.

    opened: the end of the prompt, which counts as written by the model from `message_start` on: it decides where the
        output starts. None: nothing is known about the prompt.
    show_opened: say the prompt's part of the message as well (where it is found in `opened`).
    marker_ids: text → token id of the vocabulary's added tokens: what is such a token counts by its id alone.
    """

    def __init__(
        self,
        output_format: OutputFormat,
        policy: Policy,
        *,
        opened: str | None = None,
        show_opened: bool = False,
        marker_ids: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(MarkerTokens.of(output_format, marker_ids or {}))
        self._message_start = output_format.message_start
        self.policy = policy
        self.source = Source()
        bare = policy.bare or (self.format.tools.bare if self.format.tools else "never")
        self.syntax: Syntax = syntax_of(
            self.format, policy.tools is None or bool(policy.tools), policy.extract_reasoning, bare != "never"
        )
        self.calls = CallReader(self.source, self.syntax, policy, self.say, self.show) if self.syntax.calls else None
        self._bare_calls = self.calls is not None and (bare == "always" or (bare == "declared" and bool(policy.tools)))
        self._embedded = self.syntax.calls.embedded_opener if self._bare_calls and self.syntax.calls else ""
        self._strict = (policy.boundaries or self.format.boundaries) == "strict"
        self._opening = False
        self._closed = False
        self._plain = False
        self._fenced = False  # in a code fence that is left out
        self._addressed = False  # in content that names its reader: what looks like a call there is quoted
        self._between: Scanner | None = None  # in text of which nothing is left unsaid: what finds its markers
        self._after_section = False
        reader = reader_for(self.format.reader, self.format.channels is not None)
        self._reading: Reading[None] | None = reader(self) if reader else self._read()
        self._begin(opened, show_opened)

    @property
    def stage(self) -> Literal["start", "reasoning", "content"]:
        """Where the output is now: in reasoning, behind it, or where reasoning may still begin."""
        if self.mode == "reasoning":
            return "reasoning"
        return "content" if self._closed else "start"

    def feed(self, text: str, token_id: int | None = None) -> list[Piece]:
        """The pieces that `text` completes. `token_id` says that it is this one token's text."""
        text = self._tokens.encode(text, token_id)
        if self._between is not None and not self._between.begins_in(text):
            if text:
                self.write(text)  # the usual token: the reader need not wake up for it
        elif text and self._reading is not None:
            self._between = None
            self.source.add(text)
            self._resume()
        return self._taken()

    def is_plain(self, text: str, token_ids: Iterable[int]) -> bool:
        """Whether these tokens' text is more of what is being said and nothing else: no marker has begun, none begins
        in it, and no token of them is one."""
        between = self._between
        return between is not None and not between.begins_in(text) and not self._tokens.has_marker(token_ids)

    def finish(self) -> list[Piece]:
        """The last pieces: nothing will follow."""
        self.source.final = True
        if self._reading is not None:
            self._resume()
        self._end()
        self._reading = self.calls = None  # which hold this parser, as it holds them
        return self._taken()

    def _resume(self) -> None:
        try:
            next(self._reading)  # type: ignore[arg-type]
        except StopIteration:
            self._reading = None

    # Where the output starts.

    def _begin(self, opened: str | None, show: bool) -> None:
        reasoning = self.format.reasoning if self.policy.extract_reasoning else None
        if reasoning and not (reasoning.initial == "undecided" and opened):
            self.mode = reasoning.initial
        if self.format.content.prefix:
            self.say(ContentText(self.format.content.prefix))
        if opened:
            channels = self.format.channels
            marks = [self._tokens.decoded(mark) for mark in channels.start] if channels else []
            written = written_by_prompt(opened, self._message_start, marks, show)
            self._silent = not show or written is None
            self._opening = True
            text = self._tokens.encode_prompt(opened if written is None else written)
            if not self._silent and not self.policy.extract_reasoning and channels is None:
                text, self._unsaid = thoughts_apart(self.format.reasoning, text)
            self.source.add(text)
            self._resume()
            self._settle(written is not None)
            if self._unsaid:
                self._blank = [self._unsaid]

    def _settle(self, found: bool) -> None:
        """After the prompt's part. What it said silently is forgotten; where it left off is kept."""
        self._prompted = self.mode == "reasoning"
        if self._silent:
            self._blank, self._content_blank = [], []
            self._answered = False
            self._began = self._began and found
            self._at_start = not self._began
        self._silent = self._opening = False

    # Reading.

    def _read(self) -> Reading[None]:
        """Text, and what its markers begin."""
        while (yield from self.source.match(self.syntax.header_scanner)):
            self._marked = True  # the prompt's header of the message, or its end, once more
        while True:
            if self.policy.json_content and self._at_start and self.mode == "content":
                self._fenced = yield from opening_fence(self.source)
                self._marked = self._marked or self._fenced
            if self._bare_calls and self._at_start and self.mode == "content":
                yield from self._bare_call()
            marker = yield from self.text(self._scanner())
            if not marker:
                return
            action = self._action(marker)
            if action == "address":
                yield from self._address(marker)
            elif action == "object":
                yield from self._embedded_call()
            elif action == "fence":
                yield from self._close_fence()
            elif action == "thought":
                self.write(marker)  # of reasoning that stays in the content; a call without a marker may begin here
                self._at_start = True
            elif action not in _CALLS:
                self.mark(action, marker)
            elif self._strict and self._answered:
                self._plain = True
                self.write(marker)
            else:
                yield from self._read_calls(action, marker)

    def _address(self, marker: str) -> Reading[None]:
        """Whom a message is for, which its call says again; text that only begins like that stays text."""
        assert self.format.address is not None
        closes = self.format.address[1]
        name, end = yield from self.source.until(self.syntax.scanner(closes, *_BLANKS), _ADDRESS_LIMIT)
        if name and end == closes:
            self.mark("drop", marker)
        else:
            self.write(marker)
            self.source.unread(name + end)

    def _close_fence(self) -> Reading[None]:
        if text := (yield from closing_fence(self.source, self.syntax.content_scanner)):
            self.write(text)
        else:
            self._blank, self._fenced = [], False

    def _scanner(self) -> Scanner:
        if self._plain:
            return self.syntax.plain_scanner
        if self.mode == "reasoning":
            return self.syntax.reasoning_scanner
        if self._addressed:
            return self.syntax.addressed_scanner
        if self._fenced:
            return self.syntax.fenced_scanner
        return self.syntax.object_scanner if self._embedded else self.syntax.content_scanner

    def _action(self, marker: str) -> str:
        if marker in _OTHERS:
            return _OTHERS[marker]
        table = self.syntax.reasoning if self.mode == "reasoning" else self.syntax.content
        return table[self.syntax.canonical(marker)]

    def text(self, scanner: Scanner) -> Reading[str]:
        """Say text up to the next marker, which is consumed and returned; "" at the end."""
        source = self.source
        while True:
            stop, marker = scanner.find(source.text, source.position, source.final)
            if marker is None and source.final:
                stop = self._cut(scanner).cut_off(source.text, source.position)
            if stop > source.position:
                self.write(source.text[source.position : stop])
                source.position = stop
            if marker is not None:
                source.position += len(marker)
                return marker
            if source.final:
                source.position = len(source.text)
                return ""
            self._between = scanner if source.used_up else None
            yield

    def _cut(self, scanner: Scanner) -> Scanner:
        """What finds the marker that the end of the output cut off."""
        in_content = scanner in (self.syntax.content_scanner, self.syntax.object_scanner)
        return self.syntax.content_cut if in_content and not self._after_section else scanner

    def _bare_call(self) -> Reading[None]:
        """A call without its opening marker, where content begins: JSON, or a list of Python calls."""
        blank = yield from self.source.blank()
        char = yield from self.source.peek()
        self._at_start = False
        if char in ("{", "[") and not (yield from self.source.ahead(self.syntax.content_scanner)):
            self._content_blank.append(blank)
            yield from self._read_calls("bare", "")
        else:
            self.source.unread(blank)

    def _embedded_call(self) -> Reading[None]:
        """A call behind text, in a format whose calls nothing marks: an object whose first key is one of a call's, or a
        list whose first function is a declared tool."""
        source, opener = self.source, self._embedded
        while (known := self._begins_call(source.text[source.position : source.position + _FIRST_KEY])) is None:
            if source.final or len(source.text) - source.position >= _FIRST_KEY:
                break
            yield
        if known:
            source.unread(opener)
            yield from self._read_calls("bare", "")
        else:
            self.write(opener)

    def _begins_call(self, text: str) -> bool | None:
        """Whether a call goes on like this behind its bracket; None: the text is too short to tell."""
        if self._embedded == "{":
            return begins_call("{" + text)
        return begins_python_call(text, self.policy.tools or ())

    def _read_calls(self, action: str, marker: str) -> Reading[None]:
        assert self.calls is not None
        self._decide("content")
        self._forget_opener()
        before = self.calls.count
        self._after_call = self._after_section = True
        yield from self.calls.read(action, marker)
        if self.calls.count > before:
            self._at_start = True
        if self._back == "reasoning":
            self.enter("reasoning")
        self._back = "content"

    def read_message(self, name: str, header: str) -> Reading[None]:
        """A call that is the body of a message with this header."""
        assert self.calls is not None
        yield from self._read_body(self.calls.read_message(name, header))

    def read_text_message(self, name: str, header: str) -> Reading[None]:
        """A call whose one argument, `text`, is the body of a message with this header."""
        assert self.calls is not None
        yield from self._read_body(self.calls.read_text_message(name, header))

    def _read_body(self, reading: Reading[None]) -> Reading[None]:
        self._after_call = self._after_section = self._withholds = True
        yield from reading
        self._withholds = False

    # What markers do.

    def mark(self, action: str, marker: str) -> None:
        """A marker that begins or ends reasoning or content, or is left out."""
        self._forget_opener()
        starts = self.format.content.start if self.format.address else ()
        self._addressed = self.syntax.canonical(marker) in starts
        if action == "reason":
            self._open_reasoning(marker)
        elif action == "unreason":
            self._close_reasoning(marker)
        elif action == "interrupt":
            self._interrupt(marker)
        elif action == "content":
            self.enter("content")
        elif action == "stray" and not self._after_section:
            self.write(marker)
            return
        self._marked = True

    def _open_reasoning(self, marker: str) -> None:
        """An opener. A second one in front of the reasoning is left out, unless the prompt wrote the first."""
        if self.mode != "reasoning":
            self._decide("content")
            reasoning = self.format.reasoning
            waits = reasoning is not None and reasoning.unclosed == "content" and not self._opening
            self.enter("undecided" if waits else "reasoning")
        elif self._began or self._prompted:
            self.write(marker)

    def _close_reasoning(self, marker: str) -> None:
        """A closer. Without an opener it is left out, except where the output cannot open reasoning or, under strict
        boundaries, behind the first."""
        opens = self.format.reasoning is not None and bool(self.format.reasoning.start)
        if self.mode == "content" and (not opens or (self._strict and (self._closed or self._answered))):
            self.write(marker)
            return
        self._decide("reasoning")
        self._closed = True
        if self.mode != "content":
            self.enter("content")

    def _interrupt(self, marker: str) -> None:
        """A tool's marker in reasoning: it ends the reasoning, or interrupts it for the call. Spelled out in the middle
        of a sentence it is only spoken of; a token of the vocabulary never is."""
        resumes = self.format.reasoning is not None and self.format.reasoning.after_call == "reasoning"
        if self._strict or (resumes and self.calls is None) or (self._in_sentence() and not any(map(is_token, marker))):
            self.write(marker)
            return
        self.source.position -= len(marker)
        self.enter("content")
        self._at_start = False
        self._back = "reasoning" if resumes else "content"
