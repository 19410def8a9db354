"""The caches of running sequences on models that make their own: who shares one, what they take, and the snapshots in
what they leave. Which tensors a cache has is known to its layout alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_server.generation.own_caches.cache_trees import CacheLayout, assemble
from agent_server.generation.own_caches.snapshots import LEAST, Snapshots
from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence


@dataclass(eq=False, slots=True)
class CacheGroup:
    """A cache with a row for each of `numbers`, the sequences' own; they have `lengths` tokens in it, of which the
    longest had `width` when it was made: what is left of the shorter ones is padding."""

    numbers: list[int]
    lengths: list[int]
    width: int
    cache: Any


NO_LAYOUT = CacheLayout({}, {}, frozenset())


class CachesMemory:
    """The running sequences' caches. `total` tokens in all, of which every sequence takes so many as the longest has,
    where shorter ones are padded, and `state` more, whatever its length; a token takes `token_bytes`. What they leave
    holds snapshots, if there is a layout by which caches are copied."""

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
        return self._taken(self._reserved) / self.total

    def _taken(self, reserved: dict[int, int]) -> int:
        stored = len(reserved) * max(reserved.values(), default=0) if self._padded else sum(reserved.values())
        return stored + len(reserved) * self._state

    def _left(self, sequence: Sequence, tokens: int) -> int:
        """Room beside the running sequences if this one has so many tokens; negative where there is too little."""
        return self.total - self._taken({**self._reserved, sequence.number: tokens})

    def _hold(self, sequence: Sequence, tokens: int) -> bool:
        """Room for so many tokens, for which snapshots go; False if there is none."""
        room = self._left(sequence, tokens)
        if room < 0:
            return False
        self._reserved[sequence.number] = tokens
        self.snapshots.shrink(room)
        return True

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        tokens = len(sequence.tokens) + 1
        if self._left(sequence, tokens) < 0:
            return None
        begins = self._layout is not None and sequence.shareable
        if begins:  # what it is to go on from was used last, so that others go for its room
            self.snapshots.find(sequence)
        self._hold(sequence, tokens)
        if sequence.lease_key is not None and (lease := self.leases.take(sequence.lease_key)) is not None:
            self.leases.reused += sequence.terms is None
            self.snapshots.release_lease(lease.entry)
        return self._begin(sequence) if begins else 0

    def _begin(self, sequence: Sequence) -> int:
        """Go on from a snapshot, if there is one; returns its tokens."""
        snapshot = self.snapshots.find(sequence)
        cache = None if snapshot is None else self.snapshots.restore(snapshot)
        length = 0 if snapshot is None or cache is None else snapshot.depth
        if cache is not None:
            self.put(CacheGroup([sequence.number], [length], length, cache))
        sequence.stops = self.snapshots.stops(sequence, length)
        return length

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        return tokens <= self._reserved[sequence.number] or self._hold(sequence, tokens)

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        """A snapshot is taken there; one that was to be taken a few tokens later is taken there instead."""
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
        """Keep what the sequence has now, if its prompt may be gone on from there."""
        if sequence.computed in sequence.stops:
            self._keep(sequence)

    def _keep(self, sequence: Sequence) -> None:
        """Keep what the sequence has now, unless its last step failed or is still on its way."""
        length, group = min(sequence.computed, sequence.known), self.groups.get(sequence.number)
        if self._layout is None or group is None or group.cache is None or not sequence.shareable or length < LEAST:
            return
        row = group.numbers.index(sequence.number)
        if group.lengths[row] != length or self.snapshots.has(sequence, length):
            return
        cache = assemble(self._layout, [(group.cache, [row], group.width)], length)
        self.snapshots.keep(sequence, length, cache, self.total - self._taken(self._reserved))

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

    def gathered(self, layout: CacheLayout, numbers: list[int]) -> CacheGroup:
        """The sequences as one group, in an order of its own; others that were in a group with one of them are put
        apart."""
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
    """A group of those that are wanted, no wider than the longest."""
    rows = [[row for row, number in enumerate(group.numbers) if number in members] for group in groups]
    numbers = [group.numbers[row] for group, some in zip(groups, rows, strict=True) for row in some]
    lengths = [group.lengths[row] for group, some in zip(groups, rows, strict=True) for row in some]
    if not numbers:
        return None
    parts = [(group.cache, some, group.width) for group, some in zip(groups, rows, strict=True) if some]
    return CacheGroup(numbers, lengths, max(lengths), assemble(layout, parts, max(lengths)))
