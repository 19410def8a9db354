"""The parser: text in, pieces out, for the reasoning, content and calls of every format.

`feed` never raises, whatever the text. The pieces do not depend on how the text was cut, once neighbours of one kind
are joined. Every character is looked at once.

    MarkerTokens    text and token ids → text in which each marker that is a token is one character
    Source          the text that was fed and is not read yet
    TextReader      a generator over the source; `events.parsing.syntax` says what each marker does in it
    OutputWriter    what was read → pieces

`READERS` are the readers of whole outputs, by name: how a family that no description fits plugs into the parser. A
reader is a generator that is given a `TextReader`. It reads `reader.source` (suspending for more text, see
`events.parsing.source`) and says what it read with these words:

    reader.text(scanner)                say text up to a marker, and return the marker ("" at the end)
    reader.output.enter("reasoning")    what follows is reasoning (or "content")
    reader.output.write(text)           say text of the current kind; white space around a change of kind is left out
    reader.output.show(text)            say text as content exactly as it is
    reader.read_message(name, "")       read the arguments of a call of `name`, or a call that is a JSON object; returns
                                        the text of what was no call, to be shown; else None
    reader.output.say(piece)            say any piece

It returns at the end of the output. Whatever else it needs it reads from `reader.format` and `reader.policy`.
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
"""A family's module adds its own: `READERS["name"] = read`, and its format says `reader="name"`."""


def reader_for(output_format: OutputFormat) -> Reader:
    """The reader of a format. KeyError if the format names one that is not known."""
    return READERS[output_format.reader or ("channels" if output_format.channels else "text")]


def written_by_prompt(opened: str, header: str, message_marks: Sequence[str], show: bool) -> str | None:
    """The part of `opened` that belongs to the message itself: the text behind its header; None if that cannot be
    told. message_marks: markers that begin messages; a header that is a message's own (`<|start|>assistant`) belongs
    to it. show: whether all of a text without header is meant to be the message's."""
    if not header or header not in opened:
        return opened if show and not header else None
    own = min((place for mark in message_marks if (place := header.find(mark)) >= 0), default=len(header))
    return header[own:] + opened.partition(header)[2]


def thoughts_apart(reasoning: Reasoning | None, written: str) -> tuple[str, str]:
    """(text, opener), where reasoning stays in the content: blocks that the prompt closed are left out, for they are
    empty or the client's own; an opener at the end of the prompt is said once the model's own text follows it."""
    if reasoning is None:
        return written, ""
    for end in map(str.strip, reasoning.end):
        _, mark, rest = written.rpartition(end)
        written = rest.lstrip() if mark else written
    starts = [mark for mark in map(str.strip, reasoning.start) if mark and written.rstrip().endswith(mark)]
    place = written.rfind(starts[0]) if starts else len(written)
    return written[:place], written[place:]


class Parser:
    """Reads one output.

    opened: the end of the prompt, which counts as written by the model from `message_start` on: it decides where the
        output starts. None: nothing is known about the prompt.
    show_opened: say the prompt's part of the message as well (where it is found in `opened`).
    marker_ids: text → token id of the vocabulary's added tokens: what is such a token counts by its id alone.

    Raises KeyError where the format names a reader that is not known.
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
        # From here on a marker that is a token is one character, so that the rest looks for it as for any other marker.
        self._tokens = MarkerTokens.of(output_format, marker_ids or {})
        self._source = Source()
        self._output = OutputWriter(self._tokens)
        self._reader = TextReader(self._tokens.format, policy, self._source, self._output)
        self._reading: Reading[None] | None = reader_for(self._tokens.format)(self._reader)
        reasoning = self._tokens.format.reasoning if policy.extract_reasoning else None
        # A prompt that is known settles what is undecided: it is read below, and says itself where reasoning begins.
        if reasoning and not (reasoning.initial == "undecided" and opened):
            self._output.kind = reasoning.initial
        if self._tokens.format.content.prefix:
            self._output.say(ContentText(self._tokens.format.content.prefix))
        if opened:
            # Read the prompt's part of the message, which decides where the model's text begins.
            channels, extracts = self._tokens.format.channels, self._reader.policy.extract_reasoning
            marks = [self._tokens.decoded(mark) for mark in channels.start] if channels else []
            written = written_by_prompt(opened, output_format.message_start, marks, show_opened)
            self._output.written_by = "prompt" if show_opened and written is not None else "prompt, silently"
            text, opener = self._tokens.encode_prompt(opened if written is None else written), ""
            if self._output.written_by == "prompt" and not extracts and channels is None:
                text, opener = thoughts_apart(self._tokens.format.reasoning, text)
            # The prompt goes through the same reader as the model's text, so that both agree on the output's state.
            self._source.add(text)
            self._resume()
            self._output.model_begins(written is not None, opener)

    @property
    def mode(self) -> TextKind:
        """What text is now."""
        return self._output.kind

    @property
    def stage(self) -> Literal["start", "reasoning", "content"]:
        """Where the output is now: in reasoning, behind it, or where reasoning may still begin."""
        if self._output.kind == "reasoning":
            return "reasoning"
        return "content" if self._reader.closed else "start"

    def feed(self, text: str, token_id: int | None = None) -> list[Piece]:
        """The pieces that `text` completes. `token_id` says that it is this one token's text."""
        # Before anything else: a marker's text that did not come as its token must stay text.
        text = self._tokens.encode(text, token_id)
        between = self._reader.only_text
        if between is not None and not between.begins_in(text):
            if text:
                self._output.write(text)  # the usual token: the reader need not wake up for it
        elif text and self._reading is not None:
            self._reader.only_text = None
            self._source.add(text)
            self._resume()
        return self._output.take()

    def is_plain(self, text: str, token_ids: Iterable[int]) -> bool:
        """Whether these tokens' text is more of what is being said and nothing else: no marker has begun, none begins
        in it, and no token of them is one."""
        between = self._reader.only_text
        return between is not None and not between.begins_in(text) and not self._tokens.has_marker(token_ids)

    def is_end_marker(self, text: str) -> bool:
        """Whether the model ends a call with this text."""
        calls = self._reader.calls
        return calls is not None and self._tokens.encode_prompt(text.strip()) in {
            end.strip() for end in calls.calls.ends
        }

    def finish(self, *, cut: bool = False) -> list[Piece]:
        """The last pieces: nothing will follow. cut: the model was not done (a limit, a stop string, a cancellation),
        so a call that is open is incomplete, and its arguments are not completed."""
        calls = self._reader.calls
        if cut and calls is not None and self._reading is not None and calls.call.announced and not calls.call.over:
            self._reading.close()  # what it still holds of the model's own JSON is written
            calls.call.abandon()
            self._reading = None
        # Readers that wait for more text, say for a longer marker, decide now with what there is.
        self._source.final, self._source.cut = True, cut
        if self._reading is not None:
            self._resume()
        self._reading = None
        self._output.end()
        return self._output.take()

    def _resume(self) -> None:
        """Let the reader go on until it needs more text, or is done."""
        try:
            next(self._reading)  # type: ignore[arg-type]
        except StopIteration:
            self._reading = None
