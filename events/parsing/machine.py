"""The parser: text in, pieces out; one state machine for the reasoning, content and calls of every format.

`feed` never raises, whatever the text. The pieces do not depend on how the text was cut, once neighbours of one kind
are joined. Every character is looked at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from events.formats.output_format import OutputFormat
from events.parsing.calls import CallReader
from events.parsing.open_call import begins_call
from events.parsing.pieces import ContentText, ParseWarning, Piece, ReasoningText
from events.parsing.policy import Policy
from events.parsing.readers import reader_for
from events.parsing.scanner import Scanner
from events.parsing.source import Reading, Source
from events.parsing.syntax import Syntax, syntax_of
from events.parsing.tokens import MarkerTokens

Mode = Literal["content", "reasoning", "undecided"]
_CALLS = frozenset({"section", "call", "name"})
_BLANKS = (" ", "\n", "\t", "\r")
_ADDRESS_LIMIT = 256
_FIRST_KEY = 64
"""Characters in which an object's first key must show, where it may be a call behind text."""


class Parser:
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
        self._tokens = MarkerTokens(output_format, marker_ids or {})
        self.format = self._tokens.format
        self._message_start = output_format.message_start
        self.policy = policy
        self.source = Source()
        bare = policy.bare or (self.format.tools.bare if self.format.tools else "never")
        self.syntax: Syntax = syntax_of(
            self.format, policy.tools is None or bool(policy.tools), policy.extract_reasoning, bare != "never"
        )
        self.calls = CallReader(self.source, self.syntax, policy, self.say, self.show) if self.syntax.calls else None
        self._bare_calls = self.calls is not None and (bare == "always" or (bare == "declared" and bool(policy.tools)))
        self._embedded_calls = self._bare_calls and self.syntax.calls is not None and self.syntax.calls.is_unmarked
        self._strict = (policy.boundaries or self.format.boundaries) == "strict"
        self._pieces: list[Piece] = []
        self._silent = self._opening = False
        self.mode: Mode = "content"
        self._began = False  # whether the current mode has said anything but white space since it was entered
        self._answered = False  # whether content has
        self._blank: list[str] = []  # white space that is said when something of the same kind follows
        self._content_blank: list[str] = []
        self._held: list[str] = []  # text of which nothing is known yet
        self._at_start = True
        self._marked = False
        self._closed = False
        self._prompted = False
        self._plain = False
        self._back: Mode = "content"
        self._between: Scanner | None = None  # in text of which nothing is left unsaid: what finds its markers
        self._after_call = self._after_section = self._withholds = False
        self.withheld: list[str] = []
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
        return self._taken()

    def _resume(self) -> None:
        try:
            next(self._reading)  # type: ignore[arg-type]
        except StopIteration:
            self._reading = None

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    # Where the output starts.

    def _begin(self, opened: str | None, show: bool) -> None:
        reasoning = self.format.reasoning if self.policy.extract_reasoning else None
        if reasoning and not (reasoning.initial == "undecided" and opened):
            self.mode = reasoning.initial
        if self.format.content.prefix:
            self.say(ContentText(self.format.content.prefix))
        if opened:
            written = self._written_by_prompt(opened, show)
            self._silent = not show or written is None
            self._opening = True
            self.source.add(self._tokens.encode_prompt(opened if written is None else written))
            self._resume()
            self._settle(written is not None)

    def _written_by_prompt(self, opened: str, show: bool) -> str | None:
        """What the prompt holds of the message itself: the text behind its header; None if that cannot be told. A
        header that is a message's own (`<|start|>assistant`) belongs to it."""
        start, channels = self._message_start, self.format.channels
        if not start or start not in opened:
            return opened if show and not start else None
        places = [start.find(self._tokens.decoded(mark)) for mark in (channels.start if channels else ())]
        own = min((place for place in places if place >= 0), default=len(start))
        return start[own:] + opened.partition(start)[2]

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
        while True:
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

    def _scanner(self) -> Scanner:
        if self._plain:
            return self.syntax.plain_scanner
        if self.mode == "reasoning":
            return self.syntax.reasoning_scanner
        return self.syntax.object_scanner if self._embedded_calls else self.syntax.content_scanner

    def _action(self, marker: str) -> str:
        if marker == "{":
            return "object"
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
        """A call behind text, in a format whose calls nothing marks: an object whose first key is one of a call's."""
        source = self.source
        while (known := begins_call("{" + source.text[source.position : source.position + _FIRST_KEY])) is None:
            if source.final or len(source.text) - source.position >= _FIRST_KEY:
                break
            yield
        if known:
            source.unread("{")
            yield from self._read_calls("bare", "")
        else:
            self.write("{")

    def _read_calls(self, action: str, marker: str) -> Reading[None]:
        assert self.calls is not None
        self._decide("content")
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
        self._after_call = self._after_section = self._withholds = True
        yield from self.calls.read_message(name, header)
        self._withholds = False

    def release(self) -> None:
        """Show what was taken for a call, was none, and was not followed by the call it should have been."""
        text, self.withheld = "".join(self.withheld), []
        self.show(text)

    # What markers do.

    def mark(self, action: str, marker: str) -> None:
        """A marker that begins or ends reasoning or content, or is left out."""
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
        """A tool's marker in reasoning: it ends the reasoning, or interrupts it for the call."""
        resumes = self.format.reasoning is not None and self.format.reasoning.after_call == "reasoning"
        if self._strict or (resumes and self.calls is None):
            self.write(marker)
            return
        self.source.position -= len(marker)
        self.enter("content")
        self._at_start = False
        self._back = "reasoning" if resumes else "content"

    def enter(self, mode: Mode) -> None:
        """Go on with text of another kind. White space around the change belongs to neither."""
        self._marked = True
        if self.mode == mode:
            return
        if self.mode == "content":
            self._content_blank = self._blank
        self._blank = self._content_blank if mode == "content" else []
        self.mode = mode
        self._began = mode == "content" and self._answered
        self._at_start = not self._began
        self._prompted = False

    def _decide(self, mode: Mode) -> None:
        """Say the text of which nothing was known as what it turned out to be."""
        if self.mode == "undecided":
            held, self._held = "".join(self._held), []
            self.mode = mode
            self.write(held)

    # Saying.

    def write(self, text: str) -> None:
        """Text of the current mode."""
        if self.mode == "undecided":
            self._held.append(text)
            return
        body = text.rstrip()
        if not body:
            if self._began or not self._marked:
                self._blank.append(text)
            return
        size = len(body)
        if not self._began:
            if self._marked:
                body = body.lstrip()
            self._began, self._at_start = True, False
        if self._blank:
            body = "".join(self._blank) + body
        self._blank = [text[size:]] if size < len(text) else []
        self._say_text(body)

    def _say_text(self, text: str) -> None:
        self._after_call = False
        if self.mode == "reasoning":
            self.say(ReasoningText(text))
            return
        self._answered = True
        if not (self.format.content.after_calls == "drop" and self.calls and self.calls.count):
            self.say(ContentText(text))

    def show(self, text: str) -> None:
        """Give back text that was taken for something else, exactly as it was."""
        if self._withholds:
            self.withheld.append(text)
        elif text:
            if self._back == "reasoning":
                self.enter("reasoning")
            self._began, self._at_start = True, False
            text = "".join(self._blank) + text
            self._blank = []
            self._say_text(text)

    def say(self, piece: Piece) -> None:
        if self._silent and isinstance(piece, ContentText | ReasoningText | ParseWarning):
            return
        self._pieces.append(self._tokens.decode(piece))

    def _end(self) -> None:
        """The end of the output: white space at the end of an answer is part of it."""
        self._decide("content")
        if self.mode == "reasoning":
            if self._began:
                self.say(ParseWarning("reasoning", "the reasoning was not closed"))
        elif self._began and not self._after_call and (blank := "".join(self._blank)):
            self._say_text(blank)
        self._blank = []
