"""What caches of a model's own held at some length, kept for prompts that begin so.

States, unlike keys, cannot be cut back to an earlier token, so a snapshot serves a prompt only whole: taken where a
prompt or a piece of it ended, and where a generation did, which is where the next turn goes on.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from agent_server.generation.sequence import Sequence

LEAST = 32
"""Tokens below which a snapshot is not worth its room."""
MOST = 64
"""Snapshots at a time: every prompt is held against all of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The cache of one sequence that has exactly `tokens`; nobody runs on it, only on copies."""

    tenant: str
    tokens: list[int]
    cache: Any


class Snapshots:
    """The kept ones, the least recently used first; each takes `state` tokens beside its own."""

    def __init__(self, state: int) -> None:
        self._state = state
        self._kept: OrderedDict[tuple[str, int], Snapshot] = OrderedDict()
        self.taken = 0

    def find(self, sequence: Sequence) -> Snapshot | None:
        """The longest that the sequence begins with; at least one token stays to be computed."""
        known = sequence.tokens[: sequence.known]
        fits = (
            (len(kept.tokens), key)
            for key, kept in self._kept.items()
            if kept.tenant == sequence.owner
            and len(kept.tokens) < len(known)
            and kept.tokens == known[: len(kept.tokens)]
        )
        _, key = max(fits, default=(0, None))
        if key is None:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def has(self, sequence: Sequence, length: int) -> bool:
        return _key(sequence.owner, sequence.tokens[:length]) in self._kept

    def keep(self, snapshot: Snapshot, room: int) -> None:
        """In `room` tokens at the most, for which older ones go."""
        size = len(snapshot.tokens) + self._state
        if size > room:
            return
        while self._kept and (self.taken + size > room or len(self._kept) >= MOST):
            self.drop()
        self._kept[_key(snapshot.tenant, snapshot.tokens)] = snapshot
        self.taken += size

    def shrink(self, room: int) -> None:
        """Give up the oldest until all take no more than `room` tokens."""
        while self.taken > room and self._kept:
            self.drop()

    def drop(self) -> None:
        _, snapshot = self._kept.popitem(last=False)
        self.taken -= len(snapshot.tokens) + self._state


def _key(tenant: str, tokens: list[int]) -> tuple[str, int]:
    return tenant, hash(tuple(tokens))
