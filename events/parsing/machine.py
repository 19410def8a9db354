"""The parser: text in, pieces out, for the reasoning, content and calls of every format.

`feed` does not raise for any text. The pieces do not depend on how the text was split, if adjacent pieces of the same
kind are joined. Every character is examined once.

    MarkerTokens    text and token ids → text in which each marker that is a token is one character
    Source          the text that was fed and has not been read yet
    TextReader      a generator over the source; `events.parsing.syntax` defines what each marker does
    OutputWriter    emits pieces

`READERS` are the readers of whole outputs, by name; with them, a family that no description fits extends the parser. A
reader is a generator with a `TextReader` as its argument. It reads `reader.source` (suspending for more text, see
`events.parsing.source`) and emits output with these methods:

    reader.text(scanner)                emit text up to a marker, and return the marker ("" at the end)
    reader.output.enter("reasoning")    the text from here on is reasoning (or "content")
    reader.output.write(text)           emit text of the current kind; white space around a change of kind is left out
    reader.output.show(text)            emit text as content exactly as it is
    reader.read_message(name, "")       read the arguments of a call of `name`, or a call that is a JSON object; return
                                        the text if it was not a call, to be shown, otherwise None
    reader.output.say(piece)            emit any piece

It returns at the end of the output. Settings are in `reader.format` and `reader.policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from events.formats.output_format import OutputFormat, Reasoning
from events.parsing.channels import read_channels
from events.parsing.pieces import ContentText, MarkerTokens, OutputWriter, Piece, TextKind
from events.parsing.policy import Policy
from events.parsing.source import Reading, Source
from events.parsing.text_reader import TextReader

Reader = Callable[[TextReader], Reading[None]]

READERS: dict[str, Reader] = {"text": TextReader.read, "channels": read_channels}
"""A family's module adds its own with `READERS["name"] = read`, and its format has `reader="name"`."""


def reader_for(output_format: OutputFormat) -> Reader:
    """Return a format's reader. Raises KeyError for an unknown one."""
    return READERS[output_format.reader or ("channels" if output_format.channels else "text")]


def message_part(opened: str, header: str, message_marks: Sequence[str], show: bool) -> str | None:
    """Return the part of the prompt's end that belongs to the message, which is the text after its header, or None if
    it cannot be determined.

    message_marks: markers that begin messages; the part of the header from such a marker on (`<|start|>assistant`)
    belongs to the message. show: if there is no header, all of `opened` belongs to the message.
    """
    if not header or header not in opened:
        return opened if show and not header else None
    start = min((index for mark in message_marks if (index := header.find(mark)) >= 0), default=len(header))
    return header[start:] + opened.partition(header)[2]


def split_opener(reasoning: Reasoning | None, text: str) -> tuple[str, str]:
    """Split the prompt's part of a message into (text, opener of reasoning), if reasoning stays in the content.

    Blocks that the prompt has closed are left out, since they are empty or the client's own. The opener at the end of
    the prompt is emitted once the model's own text follows it.
    """
    if reasoning is None:
        return text, ""
    for end in map(str.strip, reasoning.end):
        _, mark, rest = text.rpartition(end)
        text = rest.lstrip() if mark else text
    starts = [mark for mark in map(str.strip, reasoning.start) if mark and text.rstrip().endswith(mark)]
    index = text.rfind(starts[0]) if starts else len(text)
    return text[:index], text[index:]


class Parser:
    """Parses one output.

    opened: the end of the prompt, which from `message_start` on is parsed like the model's text and determines the
        state in which the output starts. None: the prompt is unknown.
    show_opened: also emit the prompt's part of the message, if it is in `opened`.
    marker_ids: text → token id of the vocabulary's added tokens; such markers are recognised only by their id.

    Raises KeyError if the format names an unknown reader.
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
        # From here on a marker that is a token is a single character, so the rest treats it like any other marker.
        self._tokens = MarkerTokens.of(output_format, marker_ids or {})
        self._source = Source()
        self._output = OutputWriter(self._tokens)
        self._reader = TextReader(self._tokens.format, policy, self._source, self._output)
        self._reading: Reading[None] | None = reader_for(self._tokens.format)(self._reader)
        reasoning = self._tokens.format.reasoning if policy.extract_reasoning else None
        # A known prompt decides the initial state: it is parsed below and may open the reasoning itself.
        if reasoning and not (reasoning.initial == "undecided" and opened):
            self._output.kind = reasoning.initial
        if self._tokens.format.content.prefix:
            self._output.say(ContentText(self._tokens.format.content.prefix))
        if opened:
            # Parse the prompt's part of the message, which determines the state in which the model's text begins.
            channels, extracts = self._tokens.format.channels, self._reader.policy.extract_reasoning
            marks = [self._tokens.decoded(mark) for mark in channels.start] if channels else []
            part = message_part(opened, output_format.message_start, marks, show_opened)
            self._output.written_by = "prompt" if show_opened and part is not None else "prompt, silently"
            text, opener = self._tokens.encode_prompt(opened if part is None else part), ""
            if self._output.written_by == "prompt" and not extracts and channels is None:
                text, opener = split_opener(self._tokens.format.reasoning, text)
            # The same reader parses the prompt and the model's text, so that both agree on the state.
            self._source.add(text)
            self._resume()
            self._output.model_begins(part is not None, opener)

    @property
    def mode(self) -> TextKind:
        """The kind of text at the current position."""
        return self._output.kind

    @property
    def stage(self) -> Literal["start", "reasoning", "content"]:
        """The current position: in reasoning, after it ("content"), or where reasoning may still begin ("start")."""
        if self._output.kind == "reasoning":
            return "reasoning"
        return "content" if self._reader.closed else "start"

    def feed(self, text: str, token_id: int | None = None) -> list[Piece]:
        """Parse more text and return the pieces that it completes. token_id: set if `text` is that of one token."""
        # First, since a marker's text that is not its token must stay text.
        text = self._tokens.encode(text, token_id)
        between = self._reader.only_text
        if between is not None and not between.begins_in(text):
            if text:
                self._output.write(text)  # the usual token: the reader need not be resumed
        elif text and self._reading is not None:
            self._reader.only_text = None
            self._source.add(text)
            self._resume()
        return self._output.take()

    def is_plain(self, text: str, token_ids: Iterable[int]) -> bool:
        """Return whether these tokens only continue the current text: no marker has begun, none can begin in it, and
        none of the tokens is one."""
        between = self._reader.only_text
        return between is not None and not between.begins_in(text) and not self._tokens.has_marker(token_ids)

    @property
    def unread(self) -> int:
        """How many characters wait at the end of what was fed, since they may begin a marker or a call."""
        source = self._source
        return len(self._tokens.decoded(source.remembered + source.text[source.position :]))

    def is_end_marker(self, text: str) -> bool:
        """Return whether the model ends a call with this text."""
        calls = self._reader.calls
        return calls is not None and self._tokens.encode_prompt(text.strip()) in {
            end.strip() for end in calls.calls.ends
        }

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """End the output and return the last pieces.

        cut: the output was cut off by a limit, a stop string or a cancellation, so an open call is incomplete and its
        arguments are not completed.
        """
        calls = self._reader.calls
        if cut and calls is not None and self._reading is not None and calls.call.announced and not calls.call.over:
            self._reading.close()  # writes the rest of the model's own JSON
            calls.call.abandon()
            self._reading = None
        # Readers that wait for more text, such as a longer marker, decide now with the text that they have.
        self._source.final, self._source.cut = True, cut
        if self._reading is not None:
            self._resume()
        self._reading = None
        self._output.end()
        return self._output.take()

    def _resume(self) -> None:
        """Resume the reader until it needs more text or is done."""
        try:
            next(self._reading)  # type: ignore[arg-type]
        except StopIteration:
            self._reading = None
