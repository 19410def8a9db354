"""Speculative decoding: draft tokens are proposed, and the model computes all of them in one step instead of one step
for each.

A draft token is accepted if it is the token that the sampler picks at its position, with the row's own parameters, its
random number for that position, its penalties and its grammar, all in the state after the tokens before it. The output
is therefore the same as without speculation, for sampled tokens too. No ratio of probabilities is needed, since a
random number belongs to a seed and a position and not to a draw (`sampler.py`). Keys and values of rejected tokens lie
behind the end of what counts as computed: they are never attended to or shared, and the next tokens overwrite them.
Recurrent states cannot be truncated like that, so models on caches of their own do not speculate.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

logger = logging.getLogger("agent_server.generation")
MIN_MATCH = 2
"""Length of the suffix that must have occurred before. A single token predicts too little, unless it has only one
earlier occurrence."""
MIN_MATCH_WITH_DRAFT_MODEL = 8
"""The same where a draft model proposes otherwise, which is mostly better than the continuation of a few words."""
LONGEST_MATCH = 16
"""Length up to which the suffix is compared with earlier occurrences, to find the most similar one."""
MATCH_CLASSES = (2, 4)
"""Match lengths that divide drafts into three classes, whose acceptance is measured separately."""
SEPARATOR = -1
PREDICTED_TOKENS = 16
"""The most tokens a draft has for a request with a prediction, unless the request or the operator says otherwise."""
INITIAL_ACCEPTANCE = (1.0, 1.0, 4.0)
"""Accepted tokens per draft that are assumed for each class before any was measured."""
MIN_ACCEPTANCE = 0.6
"""Tokens of a draft that must be accepted on average; computing one costs about as much."""
AVERAGED_DRAFTS = 4
"""Drafts over which that average is taken."""
FIRST_LENGTH = 4
"""Length of the first draft, and the minimum of later ones. A draft that is accepted whole doubles the next one."""
ALONE_LENGTH = 8
"""The minimum where no other sequence runs: after the first, each further token then costs a thirtieth of a step, and
with seven other sequences a tenth of each one's share of it."""
MAX_PAUSED_STEPS = 32
"""The longest pause, in steps, after drafts of a draft model that were rejected whole."""


class DraftSource(Protocol):
    """A source of draft tokens. min_match: length of the suffix that must have occurred before."""

    min_match: int

    def propose(self, tokens: list[int], count: int) -> Items[int]:
        """Return up to `count` tokens that may follow `tokens`, which extend those of the previous call."""

    def learn(self, accepted: int) -> None:
        """Record how many tokens of the last proposal were accepted."""


class PromptLookup:
    """Drafts from earlier text: what followed the same tokens before, in the prompt or in the answer (Saxena 2023,
    "prompt lookup decoding"). It serves edits, values out of a document, arguments out of a result.

    prediction: tokens that the answer is expected to contain, which are looked up as if the prompt began with them.

    Whether a draft is worth its step is estimated from earlier ones, separately for each class of match length. A draft
    that is not is withheld and compared with the tokens that come, which costs nothing."""

    def __init__(self, prediction: Items[int] = ()) -> None:
        self.min_match = MIN_MATCH
        self._acceptance = [*INITIAL_ACCEPTANCE]
        self._match_class = 0
        self._withheld: tuple[int, int, list[int]] | None = None
        # A negative id, which is no token, ends the prediction and every draft.
        self._ids = np.array([*prediction, SEPARATOR] if prediction else [], dtype=np.int64)
        self._length = self._start = len(self._ids)

    def propose(self, tokens: list[int], count: int) -> list[int]:
        length = self._start + len(tokens)
        if length > len(self._ids):
            larger = np.empty(2 * length, dtype=np.int64)
            larger[: self._length] = self._ids[: self._length]
            self._ids = larger
        self._ids[self._length : length] = tokens[self._length - self._start :]
        self._length = length
        if self._withheld is not None:
            # Record how much of a withheld draft was right, once a token differs or all of them have come.
            start, match_class, draft = self._withheld
            actual = self._ids[start : self._length].tolist()
            right = next((at for at, pair in enumerate(zip(draft, actual, strict=False)) if pair[0] != pair[1]), None)
            if right is not None or len(actual) >= len(draft):
                self._update(match_class, len(draft) if right is None else right)
                self._withheld = None
        match_class, draft = self._look_up(count)
        if not draft:
            return []
        if self._acceptance[match_class] >= MIN_ACCEPTANCE:
            self._match_class, self._withheld = match_class, None
            return draft
        if self._withheld is None:
            self._withheld = (self._length, match_class, draft)
        return []

    def learn(self, accepted: int) -> None:
        self._update(self._match_class, accepted)

    def _look_up(self, count: int) -> tuple[int, list[int]]:
        """Return the class of the longest match and the `count` tokens that followed it, up to the first picture."""
        ids = self._ids[: self._length]
        # Where the longest suffix that occurred before ends, for each earlier occurrence, and its length.
        matches = np.flatnonzero(ids[:-1] == ids[-1])
        length = 1 if len(matches) else 0
        while matches.size and length < LONGEST_MATCH:
            longer = matches[matches >= length]
            longer = longer[ids[longer - length] == ids[-1 - length]] if longer.size else longer
            if not longer.size:
                break
            matches, length = longer, length + 1
        if length < self.min_match and not (length == 1 == len(matches) and self.min_match <= MIN_MATCH):
            return 0, []
        # The latest match that `count` tokens follow. If there is none, the text is in a loop, and the tokens after the
        # earliest match are one round of it, which is repeated.
        complete = matches[matches < len(ids) - count]
        start = int(complete[-1] if len(complete) else matches[0]) + 1
        draft = np.resize(ids[start : start + count], count)
        media_keys = np.flatnonzero(draft < 0)
        draft_ids: list[int] = (draft[: media_keys[0]] if len(media_keys) else draft).tolist()
        return sum(length >= bound for bound in MATCH_CLASSES), draft_ids

    def _update(self, match_class: int, accepted: int) -> None:
        self._acceptance[match_class] += (accepted - self._acceptance[match_class]) / AVERAGED_DRAFTS


@dataclass(eq=False, slots=True)
class Speculation:
    """The length and frequency of one generation's drafts. Drafts grow while they are accepted whole. A draft model
    whose drafts are rejected whole pauses, for twice as long each time; prompt lookup has its own estimate of worth.

    most: maximum length of a draft. pause: steps until the next draft. misses: consecutive drafts of the model that
    were rejected whole.
    """

    most: int
    source: DraftSource = field(default_factory=PromptLookup)
    length: int = FIRST_LENGTH
    pause: int = 0
    misses: int = 0
    _looked_up: bool = False

    def propose(self, tokens: list[int], room: int, *, alone: bool = False) -> tuple[int, ...]:
        """Return a draft of up to `room` tokens that may follow these, or () if there is none."""
        count = self.count(room, alone=alone)
        draft = tuple(self.source.propose(tokens, count)) if count > 0 else ()
        self._looked_up = bool(draft)
        return draft

    def count(self, room: int, *, alone: bool = False) -> int:
        """Return the length of the next draft, at most `room`."""
        return min(max(self.length, ALONE_LENGTH) if alone else self.length, self.most, room)

    def learn(self, proposed: int, accepted: int) -> None:
        """Record how many tokens of a draft were accepted."""
        self.length = min(self.most, 2 * self.length) if accepted == proposed else max(FIRST_LENGTH, accepted + 1)
        if self._looked_up:
            self.source.learn(accepted)
            return
        self.misses = 0 if accepted else self.misses + 1
        self.pause = 0 if accepted else min(2**self.misses, MAX_PAUSED_STEPS)
