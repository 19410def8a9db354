"""What the parser says: pieces of reasoning, content and calls, and the writer that says them.

Markers that are single tokens of the vocabulary count by their id, so that text which merely spells one does not.
Inside the parser each such token is one character that no text contains (a lone surrogate): `MarkerTokens` rewrites
the format's markers in the same way, and writes out again what leaves the parser. So the rest of it knows only text.
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
    """The call is over. `complete`: false where the end of the output cut it off."""

    complete: bool


class ParseWarning(NamedTuple):
    """Something in the output was not as it should be. `kind`: "tool_call" (text that was no call, an undeclared
    tool), "tool_call_error" (the same, where the request wants that to end the run), "reasoning" (never closed),
    "protocol" (an order that strict boundaries forbid)."""

    kind: str
    message: str


Piece = ReasoningText | ContentText | CallStart | ArgumentText | CallEnd | ParseWarning


_FIRST, _LAST = 0xD800, 0xDFFF
_SURROGATE = re.compile("[\ud800-\udfff]")
_TEXTS = (ContentText, ReasoningText, ArgumentText)


@lru_cache(maxsize=256)
def _rewritten(output_format: OutputFormat, texts: tuple[str, ...]) -> OutputFormat:
    """The format with each of `texts` as one character; `texts` are tried longest first."""
    if not texts:
        return output_format
    characters = {text: chr(_FIRST + index) for index, text in enumerate(texts)}
    pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))

    def rewrite(value: object) -> object:
        if isinstance(value, str):
            return pattern.sub(lambda found: characters[found.group()], value)
        if isinstance(value, dict):
            return {key: rewrite(inner) for key, inner in value.items()}
        return [rewrite(inner) for inner in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(rewrite(msgspec.to_builtins(output_format)), OutputFormat)


class MarkerTokens:
    """The tokens that count as markers of one format, and the format in their terms. Made by `of`, once for each."""

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
        """The prompt's end, in which every spelled token is one: the template wrote it."""
        characters = {text: character for character, text in self._texts.items()}
        return self._spelled.sub(lambda found: characters[found.group()], self.encode(text, None))

    def decode(self, piece: Piece) -> Piece:
        """The piece with every token written out."""
        if isinstance(piece, _TEXTS) and (piece.text.isascii() or not _SURROGATE.search(piece.text)):
            return piece
        if not self._texts or isinstance(piece, CallEnd | ParseWarning):
            return piece
        return type(piece)(*map(self.decoded, piece))

    def decoded(self, text: str) -> str:
        """The text with every token written out."""
        return _SURROGATE.sub(lambda found: self._texts[found.group()], text) if self._texts else text


@lru_cache(maxsize=256)
def _marker_tokens(output_format: OutputFormat, marker_ids: tuple[tuple[str, int], ...]) -> MarkerTokens:
    return MarkerTokens(output_format, dict(marker_ids))


TextKind = Literal["content", "reasoning", "undecided"]
WrittenBy = Literal["prompt, silently", "prompt", "model"]
_BEGINNING = 1000


class OutputWriter:
    """Turns text and calls into pieces, in order; `take` hands them over.

    kind: what text is at the moment; "undecided" text is held until `decide` says. written_by: whose text is being
    read; what the prompt wrote is said only where a request wants that. at_start: whether a call without an opening
    marker may begin here. behind_marker: whether a marker was read before, so that white space around a change of kind
    belongs to the markup. answered: whether content has been said. last: the last character of reasoning. resumes: the
    kind of text that goes on behind a call. calls: how many were said.
    """

    def __init__(self, tokens: MarkerTokens) -> None:
        self.kind: TextKind = "content"
        self.written_by: WrittenBy = "model"
        self.resumes: TextKind = "content"
        self.at_start = True
        self._behind_marker = False
        self._indentation = ""  # white space behind a marker, of which the last line may indent what follows
        self.behind_call = False  # since the last text; white space behind a call is not part of an answer
        self.answered = False
        self.last = ""
        self._beginning = ""
        self.calls = 0
        self._decode = tokens.decode
        self._drops_after_calls = tokens.format.content.after_calls == "drop"
        self._pieces: list[Piece] = []
        self._begun = False  # whether text of this kind was said since it began, more than white space
        self._prompted = False  # whether the prompt opened the reasoning that is being read
        self._blank: list[str] = []  # white space, emitted once something of the same kind follows
        self._content_blank: list[str] = []  # the same of content, while reasoning is read
        self._undecided: list[str] = []
        self._unsaid_opener = ""  # the prompt's opener of reasoning that stays in the content, until text follows it

    def take(self) -> list[Piece]:
        """The pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def say(self, piece: Piece) -> None:
        """Say a piece as it is; of the prompt's silent part only calls are said."""
        if self.written_by == "prompt, silently" and isinstance(piece, ContentText | ReasoningText | ParseWarning):
            return
        self.calls += isinstance(piece, CallEnd)
        self._pieces.append(self._decode(piece))

    # Text.

    def write(self, text: str) -> None:
        """Text of the current kind. White space at its end waits for more of the kind, since it may turn out to stand
        in front of a marker."""
        if self.kind == "undecided":
            self._undecided.append(text)
            return
        body = text.rstrip()
        if not body:
            if self._begun or not self._behind_marker:
                self._blank.append(text)
            else:
                self._indentation += text
            return
        size = len(body)
        if not self._begun:
            if self._behind_marker:
                body = self._indented(body)
            self._begun, self.at_start = True, False
        if self._blank:
            body = "".join(self._blank) + body
        self._blank = [text[size:]] if size < len(text) else []
        self._say_text(body)

    @property
    def beginning(self) -> str:
        """The content so far, or more than the first thousand characters of it."""
        return self._beginning + "".join(self._blank)

    def _indented(self, text: str) -> str:
        """The first text behind a marker without the markup's white space, which is lines and at most one space; what
        an answer's first line is indented by is part of the answer."""
        body = text.lstrip()
        blank = self._indentation + text[: len(text) - len(body)]
        line = blank.rpartition("\n")[2]
        return line + body if self.kind == "content" and line not in ("", " ") else body

    @property
    def behind_marker(self) -> bool:
        return self._behind_marker

    @behind_marker.setter
    def behind_marker(self, value: bool) -> None:
        self._behind_marker, self._indentation = value, ""

    def show(self, text: str) -> None:
        """Text that was taken for something else, exactly as it was."""
        if not text:
            return
        if self.resumes == "reasoning":
            self.enter("reasoning")
        self._begun, self.at_start = True, False
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
        if self.written_by == "model" and text.isascii():  # nearly every token: what `say` does, without its questions
            self._pieces.append(piece)
        else:
            self.say(piece)

    def hold_blank(self, blank: str) -> None:
        """White space in front of what may be a call of the content."""
        self._content_blank.append(blank)

    def drop_blank(self) -> None:
        self._blank = []

    # Changes of kind.

    def enter(self, kind: TextKind) -> None:
        """Go on with text of another kind. White space around the change belongs to neither."""
        self.behind_marker = True
        if self.kind == kind:
            return
        if self.kind == "content":
            self._content_blank = self._blank
        self._blank = self._content_blank if kind == "content" else []
        self.kind = kind
        self._begun = kind == "content" and self.answered
        self.at_start = not self._begun
        self._prompted = False

    def decide(self, kind: TextKind) -> None:
        """Say the undecided text as what it turned out to be."""
        if self.kind == "undecided":
            held, self._undecided = "".join(self._undecided), []
            self.kind = kind
            self.write(held)

    @property
    def may_reopen(self) -> bool:
        """Whether an opener of reasoning may be left out here: nothing was said behind the first, which the model
        wrote itself."""
        return not (self._begun or self._prompted)

    @property
    def in_sentence(self) -> bool:
        """Whether the text so far ends in a word and a space: what is written there is part of a sentence."""
        blank = "".join(self._blank)
        return self._begun and bool(blank) and not blank.strip(" ") and (self.last.isalnum() or self.last == ",")

    # The prompt's part and the end.

    def model_begins(self, belongs: bool, unsaid_opener: str) -> None:
        """The prompt's part was read. What it said silently is forgotten; where it left off is kept. belongs: whether
        the part was found that belongs to the message. unsaid_opener: said once the model's own text follows it."""
        self._prompted = self.kind == "reasoning"
        if self.written_by == "prompt, silently":
            self._blank, self._content_blank = [], []
            self.answered = False
            self._begun = self._begun and belongs
            self.at_start = not self._begun
        self.written_by = "model"
        self._unsaid_opener = unsaid_opener
        if unsaid_opener:
            self._blank = [unsaid_opener]

    def forget_opener(self) -> None:
        """A marker follows the prompt's opener of reasoning: if nothing was said behind it, it is not said either."""
        if self._unsaid_opener and not self.answered:
            self._blank = []
        self._unsaid_opener = ""

    def end(self) -> None:
        """The end of the output: white space at the end of an answer is part of it."""
        self.decide("content")
        if self.kind == "reasoning":
            if self._begun:
                self.say(ParseWarning("reasoning", "the reasoning was not closed"))
        elif self._begun and not self.behind_call and (blank := "".join(self._blank)):
            self._say_text(blank)
        self._blank = []
