"""An upstream's text as tokens of our vocabulary, for servers that send text only, or not every token id."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from agent_server.engine_protocol.detokenizer import Detokenizer, Vocabulary


class UpstreamText:
    """A vocabulary that gives tokens the text that the upstream wrote, instead of decoding their ids.

    `take` encodes a piece of text. A spelled control token becomes that token's id. Of the text between two control
    tokens all ids but the last have no text, and the last has all of it.
    """

    def __init__(self, vocabulary: Vocabulary, controls: Mapping[int, str]) -> None:
        self._vocabulary = vocabulary
        self.size = vocabulary.size
        self._ids = {text: number for number, text in controls.items() if text}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        self._texts: deque[str] = deque()

    def parts(self, text: str, most: int) -> Iterator[str]:
        """A long piece of text in parts of at most so many characters, or of a spelled control token."""
        at = 0
        for found in self._splitter.finditer(text) if self._splitter else ():
            yield from _slices(text, at, found.start(), most)
            yield found.group()
            at = found.end()
        yield from _slices(text, at, len(text), most)

    def take(self, text: str) -> list[int]:
        """The ids of the next piece of text. Their texts are kept for the detokenizer."""
        ids: list[int] = []
        for part in filter(None, self._splitter.split(text) if self._splitter else [text]):
            part_ids = [self._ids[part]] if part in self._ids else self._vocabulary.encode(part) or [0]
            ids += part_ids
            self._texts += [""] * (len(part_ids) - 1) + [part]
        return ids

    def expect(self, texts: Sequence[str]) -> None:
        """Use these texts for the next ids."""
        self._texts += texts

    def encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)

    def spell(self, token_id: int) -> str:
        return self._vocabulary.spell(token_id)

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        return _GivenTexts(self._texts, self._vocabulary.detokenizer(context))


def _slices(text: str, start: int, end: int, most: int) -> Iterator[str]:
    for at in range(start, end, most):
        yield text[at : min(end, at + most)]


class _GivenTexts:
    """Returns the text that is kept for an id, and decodes the id if there is none."""

    def __init__(self, texts: deque[str], decoder: Detokenizer) -> None:
        self._texts = texts
        self._decoder = decoder

    def push(self, token_id: int) -> str:
        return self._texts.popleft() if self._texts else self._decoder.push(token_id)

    def flush(self) -> str:
        return self._decoder.flush()
