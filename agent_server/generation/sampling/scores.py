"""The log probabilities of a prompt's own tokens, collected chunk by chunk while it is computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agent_server.engine_protocol.detokenizer import Vocabulary
from agent_server.engine_protocol.protocol import Alternative, Token
from agent_server.generation.device import Arrival, send

BLOCK = 64
"""Positions whose log softmax is computed at once."""


class PromptScores:
    """The scores of one prompt. most: number of alternatives of each token, the most likely first."""

    def __init__(self, prompt: Sequence[int], most: int, vocabulary: Vocabulary) -> None:
        self._prompt = prompt
        self._most = most
        self._vocabulary = vocabulary
        self._scores: list[tuple[float, list[tuple[int, float]]] | None] = [None] * len(prompt)
        self._arriving: list[tuple[int, Arrival]] = []

    def take(self, start: int, logits: Tensor) -> None:
        """Score the tokens after `start` with `logits` `[positions, vocabulary]` of the prompt's tokens from `start`
        on. Does not wait for the device. Scores that are computed again after a preemption replace the earlier ones."""
        for block in logits.split(BLOCK):  # type: ignore[no-untyped-call]
            following = list(self._prompt[start + 1 : start + 1 + len(block)])
            logprobs = block.log_softmax(-1)
            own = logprobs.gather(1, send(following, torch.int64, logits.device)[:, None])[:, 0]
            values, ids = logprobs.topk(self._most, -1)
            self._arriving.append((start + 1, Arrival(own, ids, values)))
            start += len(block)

    def tokens(self) -> tuple[Token | None, ...]:
        """Return the prompt's tokens with their text and scores; None for the first, which has none. Waits for the
        device."""
        for start, arrival in self._arriving:
            own, ids, values = arrival.wait()
            for place, logprob in enumerate(own):
                self._scores[start + place] = logprob, list(zip(ids[place], values[place], strict=True))
        self._arriving.clear()
        decoder = self._vocabulary.detokenizer()
        texts = [decoder.push(token) for token in self._prompt]
        texts[-1] += decoder.flush()
        tokens: list[Token | None] = []
        for token, text, score in zip(self._prompt, texts, self._scores, strict=True):
            if score is None:
                tokens.append(None)
                continue
            logprob, top = score
            alternatives = (Alternative(number, self._vocabulary.spell(number), value) for number, value in top)
            tokens.append(Token(token, text, logprob, tuple(alternatives)))
        return tuple(tokens)
