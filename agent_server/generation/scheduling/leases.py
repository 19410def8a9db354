"""Leases on cache memory while a conversation waits for its tools or for a person. Plain data, no clock.

Leased memory is evicted after all cached memory without a lease, and before any sequence has to wait or is preempted:
the lowest priority first, then the earliest expiry. A conversation has one lease at a time, found by its key. The lease
ends when the conversation's next turn takes it over, when it is released, or when it expires.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Key = tuple[str, str]
"""A tenant and the name of one of its conversations."""


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """The owner of a lease and its expiry, in seconds on the core's clock."""

    key: Key
    until: float
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A hold on the memory of `tokens` tokens. entry: the memory's own record of what is held."""

    terms: LeaseTerms
    tokens: int
    entry: Any


class Leases:
    """The leases of a memory of `room` tokens. on_release: called with the entry of each lease that ends.

    Counters: `reused` leases were still there for their conversation's next turn, `evicted` ones made room for others,
    `ended` ones were released or expired.
    """

    def __init__(self, room: int, on_release: Callable[[Any], None]) -> None:
        self.budget = self._room = room
        self._on_release = on_release
        self._by_key: dict[Key, Lease] = {}
        self.tokens = self.reused = self.evicted = self.ended = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def limit(self, share: float) -> None:
        """Lease no more than this share (0 to 1) of the memory."""
        self.budget = int(share * self._room)

    def grant(self, lease: Lease) -> None:
        """Grant a lease, which replaces the conversation's earlier one. Leases beyond the budget are evicted, and so is
        this one if it alone exceeds the budget."""
        if (earlier := self.take(lease.terms.key)) is not None:
            self._on_release(earlier.entry)
        self._by_key[lease.terms.key] = lease
        self.tokens += lease.tokens
        while self.tokens > self.budget:
            self.evict()

    def get(self, key: Key) -> Lease | None:
        """Return the conversation's lease without ending it."""
        return self._by_key.get(key)

    def take(self, key: Key) -> Lease | None:
        """End the conversation's lease and return it; the caller owns its entry."""
        lease = self._by_key.pop(key, None)
        if lease is not None:
            self.tokens -= lease.tokens
        return lease

    def evict(self, last: Key | None = None) -> bool:
        """End the least important lease; return False if there is none. last: the lease to evict after all others."""
        if not self._by_key:
            return False
        terms = min(
            (lease.terms for lease in self._by_key.values()),
            key=lambda terms: (terms.key == last, terms.priority, terms.until),
        )
        self.evicted += 1
        self._end(terms.key)
        return True

    def end(self, key: Key) -> None:
        """Release the lease of a conversation that will not continue."""
        if key in self._by_key:
            self.ended += 1
            self._end(key)

    def expire(self, now: float) -> None:
        for key in [key for key, lease in self._by_key.items() if lease.terms.until <= now]:
            self.end(key)

    def _end(self, key: Key) -> None:
        lease = self.take(key)
        assert lease is not None
        self._on_release(lease.entry)

    def metrics(self) -> dict[str, float]:
        return {
            "num_kept_places": float(len(self._by_key)),
            "kept_place_tokens": float(self.tokens),
            "kept_places_used_total": float(self.reused),
            "kept_places_lost_total": float(self.evicted),
            "kept_places_ended_total": float(self.ended),
        }
