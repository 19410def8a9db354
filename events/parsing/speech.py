"""What a parser has read, said as pieces: which kind of text it is now, and the white space that is still undecided."""

from __future__ import annotations

from typing import Literal

from events.parsing.calls import CallReader
from events.parsing.pieces import ContentText, ParseWarning, Piece, ReasoningText
from events.parsing.tokens import MarkerTokens

Mode = Literal["content", "reasoning", "undecided"]


class Speech:
    """The saying half of a parser; `Parser` is the reading one.

    mode: what text is now. withheld: text that was taken for a call and may have to be shown.
    """

    calls: CallReader | None

    def __init__(self, tokens: MarkerTokens) -> None:
        self._tokens = tokens
        self.format = tokens.format
        self.mode: Mode = "content"
        self.withheld: list[str] = []
        self._pieces: list[Piece] = []
        self._silent = False
        self._began = False  # whether the current mode has said anything but white space since it was entered
        self._answered = False  # whether content has
        self._blank: list[str] = []  # white space that is said when something of the same kind follows
        self._content_blank: list[str] = []
        self._held: list[str] = []  # text of which nothing is known yet
        self._unsaid = ""  # the prompt's opener of reasoning that stays in the content, until something follows it
        self._last = ""  # the last character of reasoning
        self._at_start = True
        self._marked = False
        self._prompted = False
        self._back: Mode = "content"
        self._after_call = self._withholds = False

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
            self._last = text[-1]
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

    def _in_sentence(self) -> bool:
        """Whether the text so far ends in a word and a space: what is written there is part of a sentence."""
        blank = "".join(self._blank)
        return self._began and bool(blank) and not blank.strip(" ") and (self._last.isalnum() or self._last == ",")

    def _forget_opener(self) -> None:
        """Nothing was said behind the prompt's opener of reasoning: it is not said either."""
        if self._unsaid and not self._answered:
            self._blank = []
        self._unsaid = ""

    def release(self) -> None:
        """Show what was taken for a call, was none, and was not followed by the call it should have been."""
        text, self.withheld = "".join(self.withheld), []
        self.show(text)

    def _taken(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces
