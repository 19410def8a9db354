"""What caches of a model's own held at some length, kept for prompts that begin so.

States, unlike keys, cannot be cut back to an earlier token, so a snapshot serves a prompt only whole: taken where a
prompt or a piece of it ended, and where a generation did, which is where the next turn goes on.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from agent_server.generation.leases import Lease, Leases, Terms
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
    """The kept ones, the least recently used first; each takes `state` tokens beside its own. room: in tokens."""

    def __init__(self, state: int, room: int = sys.maxsize) -> None:
        self._state = state
        self._kept: OrderedDict[tuple[str, int], Snapshot] = OrderedDict()
        self._leased: set[tuple[str, int]] = set()
        self.leases = Leases(room, self.let_go)
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
        """In `room` tokens at the most, for which older ones go, but none that is kept by a lease."""
        size = len(snapshot.tokens) + self._state
        if size > room:
            return
        while self.taken + size > room or len(self._kept) >= MOST:
            if len(self._leased) == len(self._kept):
                return
            self.drop()
        self._kept[_key(snapshot.tenant, snapshot.tokens)] = snapshot
        self.taken += size

    def shrink(self, room: int) -> None:
        """Give up the oldest until all take no more than `room` tokens."""
        while self.taken > room and self._kept:
            self.drop()

    def lease(self, sequence: Sequence, length: int, terms: Terms) -> None:
        """Keep the sequence's snapshot of that length by a lease, if it is there; two leases never have the same."""
        key = _key(sequence.owner, sequence.tokens[:length])
        if key in self._kept and key not in self._leased:
            self._leased.add(key)
            self.leases.grant(Lease(terms, length + self._state, key))

    def let_go(self, key: tuple[str, int]) -> None:
        """A snapshot that was kept by a lease may go like others."""
        self._leased.discard(key)

    def drop(self) -> None:
        """The least recently used; one that is kept by a lease only where there is no other."""
        key = next((key for key in self._kept if key not in self._leased), None)
        while key is None:
            self.leases.give_up()
            key = next((key for key in self._kept if key not in self._leased), None)
        snapshot = self._kept.pop(key)
        self.taken -= len(snapshot.tokens) + self._state


def _key(tenant: str, tokens: list[int]) -> tuple[str, int]:
    return tenant, hash(tuple(tokens))
