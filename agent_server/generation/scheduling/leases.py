"""Places in memory that are kept while a conversation waits for its tools or for a person. Plain data, no clock.

What is kept by a lease is evicted behind everything that is not, and before any sequence has to wait or is sent back:
of the lowest priority first, then what would end soonest. A conversation has one lease at a time, by its key. The lease
ends when the conversation goes on, when it is let go, or at its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Key = tuple[str, str]
"""A tenant and the name of one of its conversations."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How a place is kept: whose it is, and until when on the core's clock."""

    key: Key
    until: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """`tokens` tokens, kept at an `entry` of the memory's own making."""

    terms: LeaseTerms
    tokens: int
    entry: Any


class Leases:
    """The leases of a memory of `room` tokens. let_go: gives a place back to the memory.

    kept: how many were still there when their conversation went on; lost: given up for want of room; ended: let go, or
    over their time.
    """

    def __init__(self, room: int, let_go: Callable[[Any], None]) -> None:
        self.budget = self._room = room
        self._let_go = let_go
        self._held: dict[Key, Lease] = {}
        self.tokens = self.kept = self.lost = self.ended = 0

    def __len__(self) -> int:
        return len(self._held)

    def limit(self, share: float) -> None:
        """Keep no more than this share (0 to 1) of the room."""
        self.budget = int(share * self._room)

    def grant(self, lease: Lease) -> None:
        """In place of the conversation's earlier lease. Others are given up beyond the budget, and this one if it is
        larger than that alone."""
        if (earlier := self.take(lease.terms.key)) is not None:
            self._let_go(earlier.entry)
        self._held[lease.terms.key] = lease
        self.tokens += lease.tokens
        while self.tokens > self.budget:
            self.give_up()

    def get(self, key: Key) -> Lease | None:
        """The conversation's lease, which goes on."""
        return self._held.get(key)

    def take(self, key: Key) -> Lease | None:
        """The conversation's lease, which is over now; its place is the caller's."""
        lease = self._held.pop(key, None)
        if lease is not None:
            self.tokens -= lease.tokens
        return lease

    def give_up(self, last: Key | None = None) -> bool:
        """Let the least important one go; False if there is none. last: the one that goes behind all others."""
        if not self._held:
            return False
        terms = min(
            (lease.terms for lease in self._held.values()),
            key=lambda terms: (terms.key == last, terms.priority, terms.until),
        )
        self.lost += 1
        self._end(terms.key)
        return True

    def end(self, key: Key) -> None:
        """The conversation does not go on."""
        if key in self._held:
            self.ended += 1
            self._end(key)

    def expire(self, now: float) -> None:
        for key in [key for key, lease in self._held.items() if lease.terms.until <= now]:
            self.end(key)

    def _end(self, key: Key) -> None:
        lease = self.take(key)
        assert lease is not None
        self._let_go(lease.entry)

    def metrics(self) -> dict[str, float]:
        return {
            "num_kept_places": float(len(self._held)),
            "kept_place_tokens": float(self.tokens),
            "kept_places_used_total": float(self.kept),
            "kept_places_lost_total": float(self.lost),
            "kept_places_ended_total": float(self.ended),
        }
