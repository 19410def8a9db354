"""Changes to a generation's logits that depend on its earlier tokens: penalties, bad words and reasoning budgets.

The repetition penalty (Keskar et al. 2019) counts the prompt and the output, as transformers does; presence and
frequency penalties count the output alone, as OpenAI documents them. The counts `[rows, vocabulary]` are allocated when
a request first needs them, and are updated only for rows with a penalty.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_server.engine_protocol.detokenizer import Vocabulary
from agent_server.engine_protocol.protocol import Thought
from agent_server.generation.device import send
from events.options import SamplingParams

_REPETITION, _PRESENCE, _FREQUENCY = range(3)
NEUTRAL = [1.0, 0.0, 0.0]


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The counts of all rows. generated: how often each token was generated, `[rows, vocabulary]` int32. prompts:
    whether it is in the prompt, `[rows, vocabulary]` bool. factors: repetition, presence and frequency penalty,
    `[rows, 3]` float32."""

    generated: Tensor
    prompts: Tensor
    factors: Tensor


class Penalties:
    """The penalties of all rows and the token counts that they need."""

    def __init__(self, rows: int, vocab_size: int, device: torch.device) -> None:
        self._shape = (rows, vocab_size)
        self._device = device
        self._active: set[int] = set()
        self._factors = torch.tensor([NEUTRAL], device=device).repeat(rows, 1)
        self._counts: Tensor | None = None
        self._prompts: Tensor | None = None

    def set(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
        repetition = params.repetition_penalty or 1.0
        if repetition == 1.0 and not params.presence_penalty and not params.frequency_penalty:
            self.clear(row)
            return
        factors = [repetition, params.presence_penalty, params.frequency_penalty]
        self._factors[row] = send(factors, torch.float32, self._device)
        self._active.add(row)
        if self._counts is None or self._prompts is None:
            self._counts = torch.zeros(self._shape, dtype=torch.int32, device=self._device)
            self._prompts = torch.zeros(self._shape, dtype=torch.bool, device=self._device)
        self._prompts[row] = False
        self._prompts[row].index_fill_(0, send(list(prompt), torch.int64, self._device), True)
        generated = send(list(output), torch.int64, self._device)
        one = torch.ones(len(output), dtype=torch.int32, device=self._device)
        self._counts[row].zero_().index_add_(0, generated, one)  # a bincount would ask the device for its largest id

    def clear(self, row: int) -> None:
        if row in self._active:
            self._active.discard(row)
            self._factors[row] = send(NEUTRAL, torch.float32, self._device)

    def counts(self, rows: list[int]) -> TokenCounts | None:
        """Return the counts, or None if none of these rows has a penalty. Rows without one have neutral factors."""
        if self._counts is None or self._prompts is None or not self._active.intersection(rows):
            return None
        return TokenCounts(self._counts, self._prompts, self._factors)

    def _members(self, rows: list[int]) -> list[int]:
        """Return the places in the batch of rows with a penalty."""
        if not self._active:
            return []
        return [place for place, row in enumerate(rows) if row in self._active]

    def apply(self, logits: Tensor, rows: list[int], index: Tensor) -> Tensor:
        """Return the penalised logits: the same tensor if no row has a penalty, else a new one."""
        members = self._members(rows)
        if not members:
            return logits
        assert self._counts is not None and self._prompts is not None
        places = send(members, torch.int64, self._device)
        at = index.index_select(0, places)
        factors = self._factors.index_select(0, at)
        counts = self._counts.index_select(0, at)
        produced = counts > 0
        occurred = produced | self._prompts.index_select(0, at)
        own = logits.index_select(0, places)
        repetition = factors[:, _REPETITION, None]
        own = torch.where(occurred, torch.where(own > 0, own / repetition, own * repetition), own)
        own = own - counts * factors[:, _FREQUENCY, None] - produced * factors[:, _PRESENCE, None]
        return logits.index_copy(0, places, own)

    def count(self, rows: list[int], index: Tensor, tokens: Tensor) -> None:
        """Count the sampled tokens."""
        members = self._members(rows)
        if not members:
            return
        assert self._counts is not None
        places = send(members, torch.int64, self._device)
        at, picked = index.index_select(0, places), tokens.index_select(0, places)
        one = torch.ones(1, dtype=torch.int32, device=self._device)
        self._counts.index_put_((at, picked), one, accumulate=True)


FORBID = -1e4
FORCE = 1e4
"""Added to a token's logit. Finite, so that a grammar that leaves no other token still prevails."""
NEAR = 2
"""Distance to the end of a budget, in tokens, within which the next token depends on the last one, which may still be
in flight."""
Bonus = dict[int, float]


@dataclass(frozen=True, slots=True)
class BadWord:
    """One spelling of a word: the tokens before its last one, and the last one."""

    before: tuple[int, ...]
    last: int


def bad_words(words: Iterable[str], vocabulary: Vocabulary) -> tuple[BadWord, ...]:
    """Encode the words, each at the beginning of a text and after a space, as vLLM does for `bad_words`."""
    spellings: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelling in (word.lstrip() or word, " " + word.lstrip()):
            if ids := tuple(vocabulary.encode(spelling)):
                spellings[ids] = None
    return tuple(BadWord(ids[:-1], ids[-1]) for ids in spellings)


class ThoughtBudget:
    """Counts the reasoning tokens of an answer and forces the model's closing sequence when there are `budget` of them.

    The count includes all blocks of reasoning of the answer. If a grammar does not allow a token of the closing
    sequence, the sequence is restarted with the next token, until the block is closed.
    """

    def __init__(self, thought: Thought, budget: int, vocabulary: Vocabulary, context: Sequence[int]) -> None:
        self.budget = budget
        self._close = vocabulary.encode(thought.close)
        self._opens, self._ends = MarkerMatcher(thought.start, vocabulary), MarkerMatcher(thought.end, vocabulary)
        self._decoder = vocabulary.detokenizer(context)
        self._tail = ""
        self._longest = max(map(len, (*thought.start, *thought.end)), default=0)
        self._open = thought.opened
        self._closing: deque[int] = deque()
        self.count = 0
        self._check()

    def push(self, token: int) -> None:
        """Record a token of the answer."""
        self._tail = (self._tail + self._decoder.push(token))[-2 * self._longest :]
        if self._closing and token == self._closing[0]:
            self._closing.popleft()
        else:
            self._closing.clear()
        self.count += self._open
        mark = self._ends if self._open else self._opens
        if mark.matches(token, self._tail):
            self._open, self._tail = not self._open, ""
        self._check()

    def _check(self) -> None:
        if self._open and self.count >= self.budget and not self._closing:
            self._closing.extend(self._close)

    @property
    def forced(self) -> int | None:
        """The token that must come next, or None."""
        return self._closing[0] if self._closing else None

    @property
    def near(self) -> bool:
        """Whether the next token depends on the last one."""
        return bool(self._closing) or self.count + NEAR >= self.budget


class MarkerMatcher:
    """Recognises any of several markers. Single-token markers are recognised by id, so that text which merely spells
    one does not match."""

    def __init__(self, texts: Iterable[str], vocabulary: Vocabulary) -> None:
        encoded = {text: vocabulary.encode(text) for text in texts if text}
        self._ids = {ids[0] for ids in encoded.values() if len(ids) == 1}
        self._texts = [text for text, ids in encoded.items() if len(ids) != 1]

    def matches(self, token: int, tail: str) -> bool:
        """Return whether `token`, the last of the text `tail`, completes a marker."""
        return token in self._ids or any(text in tail for text in self._texts)


class Steering:
    """The bad words and the reasoning budget of one generation. Only words within the answer count, as in vLLM."""

    def __init__(self, words: tuple[BadWord, ...], thought: ThoughtBudget | None) -> None:
        self._words = words
        self._thought = thought
        longest = max((len(word.before) for word in words), default=0)
        self._tail: deque[int] = deque(maxlen=longest)

    def push(self, token: int) -> None:
        self._tail.append(token)
        if self._thought is not None:
            self._thought.push(token)

    @property
    def near(self) -> bool:
        """Whether the next token depends on the last one, so that it cannot be sampled before that one is known."""
        return bool(self._words) or (self._thought is not None and self._thought.near)

    @property
    def bonus(self) -> Bonus:
        """Token id → what is added to its logit for the next token."""
        tail = tuple(self._tail)
        bonus = {
            word.last: FORBID for word in self._words if not word.before or tail[-len(word.before) :] == word.before
        }
        if self._thought is not None and (forced := self._thought.forced) is not None:
            bonus[forced] = FORCE
        return bonus
