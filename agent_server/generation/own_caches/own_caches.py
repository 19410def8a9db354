"""The memory of models that create their own caches: which running sequences share a cache, how many tokens each may
use, and snapshots in the remaining memory. Only `CacheLayout` knows which tensors a cache has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_server.generation.own_caches.cache_trees import CacheLayout, assemble
from agent_server.generation.own_caches.snapshots import LEAST, Snapshots
from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence


@dataclass(eq=False, slots=True)
class CacheGroup:
    """A cache with one row for each sequence.

    numbers: the sequences' numbers, in the order of the rows. lengths: the tokens of each. width: the tokens of a row,
    padding included, which is on the left.
    """

    numbers: list[int]
    lengths: list[int]
    width: int
    cache: Any


NO_LAYOUT = CacheLayout({}, {}, frozenset())


class CachesMemory:
    """A `Memory` of `total` tokens for the caches of running sequences; snapshots use what those leave.

    state: tokens that take as much memory as a sequence's state, which does not depend on its length. padded: every
    sequence takes as many tokens as the longest one. layout: how to copy a cache; None for no snapshots. token_bytes:
    the bytes of a token.
    """

    def __init__(
        self,
        total: int,
        *,
        state: int = 0,
        padded: bool = True,
        layout: CacheLayout | None = None,
        token_bytes: int = 1,
    ) -> None:
        self.longest = total - state
        self.total = total
        self.groups: dict[int, CacheGroup] = {}
        self.snapshots = Snapshots(layout or NO_LAYOUT, state=state, token_bytes=token_bytes, room=total)
        self.leases = self.snapshots.leases
        self._state = state
        self._padded = padded
        self._layout = layout
        self._reserved: dict[int, int] = {}

    @property
    def usage(self) -> float:
        return self._reserved_tokens(self._reserved) / self.total

    def _reserved_tokens(self, reserved: dict[int, int]) -> int:
        stored = len(reserved) * max(reserved.values(), default=0) if self._padded else sum(reserved.values())
        return stored + len(reserved) * self._state

    def _room(self, sequence: Sequence, tokens: int) -> int:
        """Return the free tokens if this sequence has `tokens`; negative if there is too little memory for them."""
        return self.total - self._reserved_tokens({**self._reserved, sequence.number: tokens})

    def _reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Reserve memory for the sequence's tokens, dropping snapshots for it. Return False if there is too little."""
        room = self._room(sequence, tokens)
        if room < 0:
            return False
        self._reserved[sequence.number] = tokens
        self.snapshots.shrink(room)
        return True

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        tokens = len(sequence.tokens) + 1
        if self._room(sequence, tokens) < 0:
            return None
        may_restore = self._layout is not None and sequence.shareable
        if may_restore:
            # Marks the sequence's snapshot as recently used, so that others are dropped for its memory.
            self.snapshots.find(sequence)
        self._reserve(sequence, tokens)
        if sequence.lease_key is not None and (lease := self.leases.take(sequence.lease_key)) is not None:
            self.leases.reused += sequence.terms is None
            self.snapshots.release_lease(lease.entry)
        if not may_restore:
            return 0
        snapshot = self.snapshots.find(sequence)
        cache = None if snapshot is None else self.snapshots.restore(snapshot)
        length = 0 if snapshot is None or cache is None else snapshot.depth
        if cache is not None:
            self.put(CacheGroup([sequence.number], [length], length, cache))
        sequence.stops = self.snapshots.stops(sequence, length)
        return length

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        return tokens <= self._reserved[sequence.number] or self._reserve(sequence, tokens)

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        """As in `Memory`. The leader stops at `length` for a snapshot, instead of at a stop a few tokens later."""
        if self._layout is None or length <= leader.computed:
            return False
        if any(max(leader.computed, length - LEAST) < stop <= length for stop in leader.stops):
            return True
        if length - leader.computed < least:
            return False
        others = (stop for stop in leader.stops if not length < stop < length + LEAST)
        leader.stops = tuple(sorted({*others, length}))
        return True

    def publish(self, sequence: Sequence) -> None:
        """Take a snapshot if the sequence has reached one of its stops."""
        if sequence.computed in sequence.stops:
            self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Take a snapshot of the sequence, unless its last step failed or is still in flight."""
        length, group = min(sequence.computed, sequence.known), self.groups.get(sequence.number)
        if self._layout is None or group is None or group.cache is None or not sequence.shareable or length < LEAST:
            return
        row = group.numbers.index(sequence.number)
        if group.lengths[row] != length or self.snapshots.has(sequence, length):
            return
        cache = assemble(self._layout, [(group.cache, [row], group.width)], length)
        self.snapshots.keep(sequence, length, cache, self.total - self._reserved_tokens(self._reserved))

    def release(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        if sequence.number in self._reserved:
            self._reserved.pop(sequence.number)
            self._keep(sequence)
            if terms is not None:
                self.snapshots.lease(sequence, min(sequence.computed, sequence.known), terms)
        sequence.stops = ()
        self.groups.pop(sequence.number, None)

    # caches

    def put(self, group: CacheGroup) -> None:
        self.groups.update(dict.fromkeys(group.numbers, group))

    def gather(self, layout: CacheLayout, numbers: list[int]) -> CacheGroup:
        """Return a group of exactly these sequences, in an order of its own. Other members of their groups are moved to
        groups without them."""
        groups = list(dict.fromkeys(self.groups[number] for number in numbers))
        members = set(numbers)
        if len(groups) == 1 and set(groups[0].numbers) == members:
            return groups[0]
        others = [
            _combined(layout, [group], {n for n in group.numbers if self.groups.get(n) is group} - members)
            for group in groups
        ]
        target = _combined(layout, groups, members)
        for group in (*others, target):
            if group is not None:
                self.put(group)
        assert target is not None
        return target


def _combined(layout: CacheLayout, groups: list[CacheGroup], members: set[int]) -> CacheGroup | None:
    """Return a group of the `members` among these groups' sequences, as wide as the longest; None if there are none."""
    rows = [[row for row, number in enumerate(group.numbers) if number in members] for group in groups]
    numbers = [group.numbers[row] for group, some in zip(groups, rows, strict=True) for row in some]
    lengths = [group.lengths[row] for group, some in zip(groups, rows, strict=True) for row in some]
    if not numbers:
        return None
    parts = [(group.cache, some, group.width) for group, some in zip(groups, rows, strict=True) if some]
    return CacheGroup(numbers, lengths, max(lengths), assemble(layout, parts, max(lengths)))
