"""Speculation: tokens are guessed ahead, and the model computes all of them in one step instead of a step for each.

A guess is kept if it is the token that the sampler picks at its place: by the row's own parameters, its random number
for that place, its penalties, its grammar and whatever else bears on it, all of them as they stand behind the tokens
before. So what comes out are the tokens that come without speculation, sampled ones too; no ratio of probabilities is
needed, since a random number belongs to a seed and a position and not to a draw (`sampler.py`). Keys and values of
guesses that are not kept stay behind the end of what counts as computed: nobody attends to them or finds them, and the
next tokens overwrite them. States that recur cannot be cut back so, which is why models on caches of their own do not
speculate.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    pass

logger = logging.getLogger("agent_server.generation")
LEAST_MATCH = 2
"""Tokens at the end that must have stood together before; one alone says too little of what follows, unless it stood in
one place alone."""
SURE_MATCH = 8
"""The same where a draft model guesses otherwise, which is mostly better than what followed a few words."""
LONGEST_MATCH = 16
"""Tokens for which the end is compared with earlier places, to find the one that is most like it."""
KINDS = (2, 4)
"""Tokens that match from which on guesses are of another kind, whose worth is told apart."""
FIRST_WORTH = (1.0, 1.0, 4.0)
"""Guesses of each kind that are taken to come before any did."""
WORTH = 0.6
"""Guesses that must come of a draft on average; computing one costs about as much."""
MEMORY = 4
"""Drafts over which that average is taken."""
FIRST_LENGTH = 4
"""Tokens of a first draft, and the fewest of a later one; all that were kept make the next one longer."""
ALONE_LENGTH = 8
"""The fewest where nobody else runs: behind the first, one more costs a thirtieth of a step then, and with seven others
a tenth of what each has of it."""
LONGEST_REST = 32
"""Steps without a draft by a draft model after several of which nothing was kept."""


class GuessSource(Protocol):
    """Where guesses come from. least: tokens at the end that must be as they were elsewhere."""

    least: int

    def propose(self, tokens: list[int], count: int) -> Items[int]:
        """Up to `count` tokens that may follow these, which are those of the call before and more."""

    def learn(self, kept: int) -> None:
        """How many of those that were proposed last came."""


class PromptLookup:
    """Guesses that an answer goes on as its prompt, or the answer itself, went on before behind the same tokens (Saxena
    2023, "prompt lookup decoding"): edits, values out of a document, arguments out of a result.

    Whether such guesses are worth their step is told from those before, apart for one token that matched, for some and
    for many. Where they are not, they are not proposed, but held against what came instead, which costs nothing."""

    def __init__(self) -> None:
        self.least = LEAST_MATCH
        self._worth = [*FIRST_WORTH]
        self._kind = 0
        self._watched: tuple[int, int, list[int]] | None = None
        self._ids = np.empty(0, dtype=np.int64)
        self._length = 0

    def propose(self, tokens: list[int], count: int) -> list[int]:
        self._take(tokens)
        self._judge_watched()
        kind, guess = self._guess(count)
        if not guess:
            return []
        if self._worth[kind] >= WORTH:
            self._kind, self._watched = kind, None
            return guess
        if self._watched is None:
            self._watched = (self._length, kind, guess)
        return []

    def learn(self, kept: int) -> None:
        self._judge(self._kind, kept)

    def _guess(self, count: int) -> tuple[int, list[int]]:
        """What followed the end of the text before, as far as it is tokens, and the kind of the match."""
        ids = self._ids[: self._length]
        found, matched = _alike(ids)
        if matched < self.least and not (matched == 1 == len(found) and self.least <= LEAST_MATCH):
            return 0, []
        # The latest place that has as much behind it as is wanted. Where there is none the text is in a loop, which
        # what is behind the place is one round of.
        whole = found[found < len(ids) - count]
        start = int(whole[-1] if len(whole) else found[0]) + 1
        guess = np.resize(ids[start : start + count], count)
        keys = np.flatnonzero(guess < 0)  # what stands for a picture
        known: list[int] = (guess[: keys[0]] if len(keys) else guess).tolist()
        return sum(matched >= least for least in KINDS), known

    def _judge_watched(self) -> None:
        """Once a guess that was not proposed went wrong, or came whole, it is known how much of it was right."""
        if self._watched is None:
            return
        start, kind, guess = self._watched
        came = self._ids[start : self._length].tolist()
        right = next((at for at, pair in enumerate(zip(guess, came, strict=False)) if pair[0] != pair[1]), None)
        if right is not None or len(came) >= len(guess):
            self._judge(kind, len(guess) if right is None else right)
            self._watched = None

    def _judge(self, kind: int, kept: int) -> None:
        self._worth[kind] += (kept - self._worth[kind]) / MEMORY

    def _take(self, tokens: list[int]) -> None:
        if len(tokens) > len(self._ids):
            grown = np.empty(2 * len(tokens), dtype=np.int64)
            grown[: self._length] = self._ids[: self._length]
            self._ids = grown
        self._ids[self._length : len(tokens)] = tokens[self._length :]
        self._length = len(tokens)


def _alike(ids: np.ndarray) -> tuple[np.ndarray, int]:
    """The earlier places of the last token before which most tokens are as they are at the end, and how many are."""
    found = np.flatnonzero(ids[:-1] == ids[-1])
    matched = 1 if len(found) else 0
    while found.size and matched < LONGEST_MATCH:
        longer = found[found >= matched]
        longer = longer[ids[longer - matched] == ids[-1 - matched]] if longer.size else longer
        if not longer.size:
            break
        found, matched = longer, matched + 1
    return found, matched


@dataclass(eq=False, slots=True)
class Speculation:
    """How far one generation guesses ahead. Drafts grow while all of them is kept. Where nothing is kept of what a
    draft model guesses, it rests, twice as long each time; what the text before says is proposed where it is worth it.

    most: tokens of a draft. rest: steps until the next one. misses: drafts of the model in a row of which nothing was
    kept.
    """

    most: int
    source: GuessSource = field(default_factory=PromptLookup)
    length: int = FIRST_LENGTH
    rest: int = 0
    misses: int = 0
    _looked_up: bool = False

    def propose(self, tokens: list[int], room: int, *, alone: bool = False) -> tuple[int, ...]:
        """A draft behind these tokens, of no more than `room`; () where there is none."""
        count = self.count(room, alone=alone)
        found = tuple(self.source.propose(tokens, count)) if count > 0 else ()
        self._looked_up = bool(found)
        return found

    def count(self, room: int, *, alone: bool = False) -> int:
        """Tokens of the next draft, of no more than `room`."""
        return min(max(self.length, ALONE_LENGTH) if alone else self.length, self.most, room)

    def learn(self, proposed: int, kept: int) -> None:
        self.length = min(self.most, 2 * self.length) if kept == proposed else max(FIRST_LENGTH, kept + 1)
        if self._looked_up:
            self.source.learn(kept)
            return
        self.misses = 0 if kept else self.misses + 1
        self.rest = 0 if kept else min(2**self.misses, LONGEST_REST)
