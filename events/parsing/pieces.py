"""The parser's output: pieces of reasoning, content and calls, and the writer that emits them.

Markers that are single tokens of the vocabulary are recognised by their id, so that text which spells one does not
count. Within the parser each such token is one character that no text contains (a lone surrogate): `MarkerTokens`
rewrites the format's markers in the same way, and restores the text of tokens in the output. So the rest of the parser
deals only with text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import msgspec

from events.formats.output_format import OutputFormat


class ReasoningText(NamedTuple):
    text: str


class ContentText(NamedTuple):
    text: str


class CallStart(NamedTuple):
    """A call is announced. `id` is the model's own, or ""."""

    name: str
    id: str


class ArgumentText(NamedTuple):
    """The next part of the call's arguments, which join to JSON text."""

    text: str


class CallEnd(NamedTuple):
    """The end of a call. complete: False if the end of the output cut it off."""

    complete: bool


class ParseWarning(NamedTuple):
    """An irregularity of the output. kind: "tool_call" (text that is not a call, an undeclared tool), "tool_call_error"
    (the same, if the request wants that to end the run), "reasoning" (not closed), "protocol" (an order that strict
    boundaries forbid)."""

    kind: str
    message: str


Piece = ReasoningText | ContentText | CallStart | ArgumentText | CallEnd | ParseWarning


_FIRST, _LAST = 0xD800, 0xDFFF
_SURROGATE = re.compile("[\ud800-\udfff]")
_TEXTS = (ContentText, ReasoningText, ArgumentText)


@lru_cache(maxsize=256)
def _rewritten(output_format: OutputFormat, texts: tuple[str, ...]) -> OutputFormat:
    """Replace each of `texts` in the format by one character; the longest ones match first."""
    if not texts:
        return output_format
    characters = {text: chr(_FIRST + index) for index, text in enumerate(texts)}
    pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    def rewrite(value: object) -> object:
        if isinstance(value, str):
            return pattern.sub(lambda match: characters[match.group()], value)
        if isinstance(value, dict):
            return {key: rewrite(inner) for key, inner in value.items()}
        return [rewrite(inner) for inner in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(rewrite(msgspec.to_builtins(output_format)), OutputFormat)


class MarkerTokens:
    """The tokens that are markers of a format, and the format with one character for each. Created and cached by
    `of`."""

    def __init__(self, output_format: OutputFormat, marker_ids: Mapping[str, int]) -> None:
        texts = tuple(sorted(text for text in marker_ids if text))[: _LAST - _FIRST]
        self.format = _rewritten(output_format, texts)
        self._characters = {marker_ids[text]: chr(_FIRST + index) for index, text in enumerate(texts)}
        self._texts = {chr(_FIRST + index): text for index, text in enumerate(texts)}
        self._spelled = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")

    @staticmethod
    def of(output_format: OutputFormat, marker_ids: Mapping[str, int]) -> MarkerTokens:
        return _marker_tokens(output_format, tuple(marker_ids.items()))

    def encode(self, text: str, token_id: int | None) -> str:
        if token_id is not None and (character := self._characters.get(token_id)):
            return character
        if not text.isascii() and _SURROGATE.search(text):
            return _SURROGATE.sub("\ufffd", text)
        return text

    def has_marker(self, token_ids: Iterable[int]) -> bool:
        return any(token_id in self._characters for token_id in token_ids)

    def encode_prompt(self, text: str) -> str:
        """Encode the end of the prompt, in which every spelled marker is a token, since the template wrote it."""
        characters = {text: character for character, text in self._texts.items()}
        return self._spelled.sub(lambda match: characters[match.group()], self.encode(text, None))

    def decode(self, piece: Piece) -> Piece:
        """Return the piece with the text of every token."""
        if isinstance(piece, _TEXTS) and (piece.text.isascii() or not _SURROGATE.search(piece.text)):
            return piece
        if not self._texts or isinstance(piece, CallEnd | ParseWarning):
            return piece
        return type(piece)(*map(self.decoded, piece))

    def decoded(self, text: str) -> str:
        """Return the text with the text of every token."""
        return _SURROGATE.sub(lambda match: self._texts[match.group()], text) if self._texts else text


@lru_cache(maxsize=256)
def _marker_tokens(output_format: OutputFormat, marker_ids: tuple[tuple[str, int], ...]) -> MarkerTokens:
    return MarkerTokens(output_format, dict(marker_ids))


TextKind = Literal["content", "reasoning", "undecided"]
WrittenBy = Literal["prompt, silently", "prompt", "model"]
_BEGINNING = 1000


class OutputWriter:
    """Turns text and calls into pieces, in order; `take` returns them.

    kind: the kind of text at the current position; "undecided" text is held back until `decide`. written_by: whose text
    is being read; the prompt's text is emitted only if a request wants it. at_start: whether a call without an opening
    marker may begin here. behind_marker: whether a marker precedes, so that white space around a change of kind belongs
    to the markup. answered: whether content was emitted. last: the last character of reasoning. resumes: the kind of
    text after a call. calls: how many calls were emitted.
    """

    def __init__(self, tokens: MarkerTokens) -> None:
        self.kind: TextKind = "content"
        self.written_by: WrittenBy = "model"
        self.resumes: TextKind = "content"
        self.at_start = True
        self._behind_marker = False
        self._indentation = ""  # white space after a marker, whose last line may be the indentation of the text
        self.behind_call = False  # no text since the last call; white space after a call is not part of an answer
        self.answered = False
        self.last = ""
        self._beginning = ""
        self.calls = 0
        self._decode = tokens.decode
        self._drops_after_calls = tokens.format.content.after_calls == "drop"
        self._pieces: list[Piece] = []
        self._has_text = False  # whether more than white space of this kind was emitted since it began
        self._prompted = False  # whether the prompt opened the current reasoning
        self._blank: list[str] = []  # white space, emitted when text of the same kind follows
        self._content_blank: list[str] = []  # the same of content, while reasoning is read
        self._reasoning_blank: list[str] = []  # the same of reasoning, while a call that interrupts it is read
        self._undecided: list[str] = []
        self._pending_opener = ""  # the prompt's opener of reasoning that stays in the content, until text follows it

    def take(self) -> list[Piece]:
        """Return the pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def say(self, piece: Piece) -> None:
        """Emit a piece. Of the prompt's silent part only calls are emitted."""
        if self.written_by == "prompt, silently" and isinstance(piece, ContentText | ReasoningText | ParseWarning):
            return
        self.calls += isinstance(piece, CallEnd)
        self._pieces.append(self._decode(piece))

    # Text.

    def write(self, text: str) -> None:
        """Emit text of the current kind. White space at its end is held back, since a marker may follow."""
        if self.kind == "undecided":
            self._undecided.append(text)
            return
        body = text.rstrip()
        if not body:
            if self._has_text or not self._behind_marker:
                self._blank.append(text)
            else:
                self._indentation += text
            return
        size = len(body)
        if not self._has_text:
            if self._behind_marker:
                # The markup's white space, which is lines and at most one space, is left out. The indentation of an
                # answer's first line is part of the answer.
                blank = self._indentation + body[: len(body) - len(body.lstrip())]
                line = blank.rpartition("\n")[2]
                body = body.lstrip()
                if self.kind == "content" and line not in ("", " "):
                    body = line + body
            self._has_text, self.at_start = True, False
        if self._blank:
            body = "".join(self._blank) + body
        self._blank = [text[size:]] if size < len(text) else []
        self._say_text(body)

    @property
    def beginning(self) -> str:
        """The content so far, or at least its first thousand characters."""
        return self._beginning + "".join(self._blank)

    @property
    def behind_marker(self) -> bool:
        return self._behind_marker

    @behind_marker.setter
    def behind_marker(self, value: bool) -> None:
        self._behind_marker, self._indentation = value, ""

    def show(self, text: str) -> None:
        """Emit text unchanged that was first taken for something else."""
        if not text:
            return
        if self.resumes == "reasoning" and self.kind == "content":
            self.enter("reasoning")
            self._blank = self._reasoning_blank
        self._has_text, self.at_start = True, False
        text = "".join(self._blank) + text
        self._blank = []
        self._say_text(text)

    def _say_text(self, text: str) -> None:
        self.behind_call = False
        piece: ReasoningText | ContentText
        if self.kind == "reasoning":
            self.last = text[-1]
            piece = ReasoningText(text)
        else:
            self.answered = True
            if len(self._beginning) <= _BEGINNING:
                self._beginning += text
            if self._drops_after_calls and self.calls:
                return
            piece = ContentText(text)
        if self.written_by == "model" and text.isascii():  # nearly all tokens: `say` without its checks
            self._pieces.append(piece)
        else:
            self.say(piece)

    def hold_blank(self, blank: str) -> None:
        """Hold back white space before a possible call in the content."""
        self._content_blank.append(blank)

    def drop_blank(self) -> None:
        self._blank = []

    # Changes of kind.

    def enter(self, kind: TextKind) -> None:
        """Change the kind of text. White space around the change belongs to neither."""
        self.behind_marker = True
        if self.kind == kind:
            return
        if self.kind == "content":
            self._content_blank = self._blank
        else:
            self._reasoning_blank = self._blank
        self._blank = self._content_blank if kind == "content" else []
        self.kind = kind
        self._has_text = kind == "content" and self.answered
        self.at_start = not self._has_text
        self._prompted = False

    def decide(self, kind: TextKind) -> None:
        """Emit the undecided text as this kind."""
        if self.kind == "undecided":
            text, self._undecided = "".join(self._undecided), []
            self.kind = kind
            self.write(text)

    @property
    def may_reopen(self) -> bool:
        """Whether a repeated opener of reasoning may be left out here: no text follows the first one, which the model
        wrote itself."""
        return not (self._has_text or self._prompted)

    @property
    def in_sentence(self) -> bool:
        """Whether the text so far ends with a word and a space, so that what follows is part of a sentence."""
        blank = "".join(self._blank)
        return self._has_text and bool(blank) and not blank.strip(" ") and (self.last.isalnum() or self.last == ",")

    # The prompt's part and the end.

    def model_begins(self, belongs: bool, pending_opener: str) -> None:
        """End the prompt's part. Its silent output is dropped and its state is kept.

        belongs: whether the part that belongs to the message was identified. pending_opener: emitted when the model's
        own text follows it.
        """
        self._prompted = self.kind == "reasoning"
        if self.written_by == "prompt, silently":
            self._blank, self._content_blank = [], []
            self.answered = False
            self._has_text = self._has_text and belongs
            self.at_start = not self._has_text
        self.written_by = "model"
        self._pending_opener = pending_opener
        if pending_opener:
            self._blank = [pending_opener]

    def forget_opener(self) -> None:
        """Drop the prompt's opener of reasoning if no text follows it before a marker."""
        if self._pending_opener and not self.answered:
            self._blank = []
        self._pending_opener = ""

    def end(self) -> None:
        """End the output. White space at the end of an answer is part of it."""
        self.decide("content")
        if self.kind == "reasoning":
            if self._has_text:
                self.say(ParseWarning("reasoning", "the reasoning was not closed"))
        elif self._has_text and not self.behind_call and (blank := "".join(self._blank)):
            self._say_text(blank)
        self._blank = []
