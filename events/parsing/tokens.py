"""Markers that are single tokens of the vocabulary count by their id, so that text which merely spells one does not.

Inside the parser each such token is one character that no text contains (a lone surrogate); the format's markers are
rewritten the same way, and what leaves the parser is written out again. So the rest of the parser only knows text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from events.formats.output_format import OutputFormat
from events.parsing.pieces import ArgumentText, CallEnd, ContentText, ParseWarning, Piece, ReasoningText

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
