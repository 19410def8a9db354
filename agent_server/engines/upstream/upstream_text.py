"""Text that an upstream wrote, as tokens of our vocabulary: for servers that send nothing else, or not every id."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence

from agent_server.engine.detokenizer import Detokenizer, Vocabulary


class UpstreamText:
    """A vocabulary whose tokens read as the upstream wrote them, whatever they would be decoded to by themselves.

    `take` encodes a piece of text: a control token that is spelled in it is that token, and the text between two of
    them comes with the last of its ids.
    """

    def __init__(self, vocabulary: Vocabulary, controls: Mapping[int, str]) -> None:
        self._vocabulary = vocabulary
        self.size = vocabulary.size
        self._ids = {text: number for number, text in controls.items() if text}
        longest_first = sorted(self._ids, key=len, reverse=True)
        self._splitter = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        self._texts: deque[str] = deque()

    def take(self, text: str) -> list[int]:
        """The ids of the next piece; their texts wait for a detokenizer."""
        ids: list[int] = []
        for part in filter(None, self._splitter.split(text) if self._splitter else [text]):
            found = [self._ids[part]] if part in self._ids else self._vocabulary.encode(part) or [0]
            ids += found
            self._texts += [""] * (len(found) - 1) + [part]
        return ids

    def expect(self, texts: Sequence[str]) -> None:
        """What the next ids read as."""
        self._texts += texts

    def encode(self, text: str) -> list[int]:
        return self._vocabulary.encode(text)

    def spell(self, token_id: int) -> str:
        return self._vocabulary.spell(token_id)

    def detokenizer(self, context: Sequence[int] = ()) -> Detokenizer:
        return _Given(self._texts, self._vocabulary.detokenizer(context))


class _Given:
    """Gives an id the text that waits for it, and decodes it where none does."""

    def __init__(self, texts: deque[str], decoder: Detokenizer) -> None:
        self._texts = texts
        self._decoder = decoder

    def push(self, token_id: int) -> str:
        return self._texts.popleft() if self._texts else self._decoder.push(token_id)

    def flush(self) -> str:
        return self._decoder.flush()
