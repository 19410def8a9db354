"""Contiguous memory: every sequence has one slab, a power of two tokens long, in one arena (a buddy system).

Attention over contiguous keys is much faster than over gathered pages on a CPU. Slabs of one size lie at multiples
of that size, so that sequences of similar length can be attended in one call on a view of the arena.

A slab whose sequence is gone stays findable by its tokens until it is the least recently used and its room is
needed. A prompt that begins as such a slab does takes the slab over, or copies the common part when the slab is in
use, or holds more than the common part and there is room to keep it.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_server.generation.scheduling.leases import Lease, Leases, LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence, common_prefix

BLOCK = 32
"""Tokens by which common beginnings are found; the exact length is then compared token by token."""
HEADROOM = 256
"""Tokens that a sequence may generate before its slab must grow, where so many are wanted."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Keys and values of `length` tokens to be copied before the next step, from the slab at `source` to the one at
    `target`; the same place with another size is a slab that has grown. All in tokens."""

    source: int
    source_size: int
    target: int
    target_size: int
    length: int


@dataclass(eq=False, slots=True)
class Slab:
    """Tokens `offset` to `offset + size` of the arena; the first `computed` of `tokens` are in it."""

    offset: int
    size: int
    tenant: str
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    keys: list[int] = field(default_factory=list)


class Buddies:
    """Free blocks of an arena of `smallest << orders` tokens, each a power of two and aligned to its size."""

    def __init__(self, total: int, smallest: int) -> None:
        self.total = total
        self.smallest = smallest
        self._free: dict[int, list[int]] = {}
        size = smallest
        while size <= total:
            self._free[size] = []
            size *= 2
        self.largest = size // 2
        offset = 0
        for size in sorted(self._free, reverse=True):
            while total - offset >= size:
                self._free[size].append(offset)
                offset += size

    @property
    def free(self) -> int:
        """Tokens in free blocks."""
        return sum(size * len(blocks) for size, blocks in self._free.items())

    def take(self, size: int) -> int | None:
        """The lowest block of that size, split from a larger one if need be."""
        found = size
        while found <= self.largest and not self._free[found]:
            found *= 2
        if found > self.largest:
            return None
        offset = self._free[found].pop(0)
        while found > size:
            found //= 2
            insort(self._free[found], offset + found)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Back, joined with its free neighbours."""
        while size < self.largest and (buddy := offset ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            offset = min(offset, buddy)
            size *= 2
        insort(self._free[size], offset)

    def extend(self, offset: int, size: int) -> bool:
        """Double a block where it lies, if what follows it is free."""
        if offset % (2 * size) or 2 * size > self.largest or offset + size not in self._free[size]:
            return False
        self._free[size].remove(offset + size)
        return True


class SlabMemory:
    """An arena of `total` tokens; the smallest slab has `smallest`. `copies` is for the owner of the tensors to carry
    out, in order, before the next step."""

    def __init__(self, total: int, smallest: int = 128) -> None:
        self.buddies = Buddies(total, smallest)
        self.total = self.buddies.free
        self.longest = self.buddies.largest
        self.slabs: dict[int, Slab] = {}
        self.copies: list[Copy] = []
        self.leases = Leases(self.total, self._let_go)
        self._kept: OrderedDict[Slab, None] = OrderedDict()
        self._found: dict[int, Slab] = {}

    @property
    def usage(self) -> float:
        return sum(slab.size for slab in self.slabs.values()) / self.total

    def slab(self, sequence: Sequence) -> Slab:
        return self.slabs[sequence.number]

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        needed = len(sequence.tokens) + 1
        lease = None if sequence.lease_key is None else self.leases.take(sequence.lease_key)
        if lease is not None:
            self._let_go(lease.entry)  # it may be taken over
        source, shared, keys = self._find(sequence, None if lease is None else lease.entry)
        slab = self._place(sequence, needed, source, shared)
        if slab is None:
            if lease is not None and lease.entry in self._kept:
                del self._kept[lease.entry]
                self.leases.grant(lease)
            return None
        self.leases.kept += lease is not None and sequence.terms is None
        slab.tokens = sequence.tokens
        slab.keys = slab.keys or keys[: slab.computed // BLOCK]
        self.slabs[sequence.number] = slab
        return slab.computed

    def _place(self, sequence: Sequence, needed: int, source: Slab | None, shared: int) -> Slab | None:
        """A slab with as much of `source` in it as can be had."""
        kept = source if source in self._kept else None
        if kept is not None and kept.computed - shared <= BLOCK and kept.size >= needed:
            return self._take_over(kept, shared)
        wanted = self._size(min(sequence.limit, needed + HEADROOM))
        room = self._take(wanted, keep=source) or self._take(self._size(needed), keep=source)
        if room is not None:
            # The common part into the new slab; a source of which hardly more is left is given up.
            slab = Slab(*room, sequence.owner)
            if source is None:
                return slab
            slab.computed = shared
            self.copies.append(Copy(source.offset, source.size, slab.offset, slab.size, shared))
            if source in self._kept:
                self._kept.move_to_end(source)
                if source.computed - shared <= BLOCK:
                    del self._kept[source]
                    self._discard(source)
            return slab
        if kept is None:
            return None
        if kept.size >= needed:
            return self._take_over(kept, shared)
        room = self._take(self._size(needed))
        return None if room is None else Slab(*room, sequence.owner)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        slab = self.slabs[sequence.number]
        while slab.size < tokens:
            if self.buddies.extend(slab.offset, slab.size):
                self.copies.append(Copy(slab.offset, slab.size, slab.offset, 2 * slab.size, sequence.computed))
                slab.size *= 2
            elif not self._move(slab, self._size(tokens), sequence.computed):
                return False
        return True

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        return length - leader.computed >= least

    def publish(self, sequence: Sequence) -> None:
        slab = self.slabs[sequence.number]
        slab.computed = min(sequence.computed, sequence.known)
        if sequence.shareable:
            # it may hold less than when it was published before: a step of it failed
            self._unindex(slab, slab.computed // BLOCK)
            for key in block_keys(slab.tenant, slab.tokens, slab.computed, slab.keys):
                self._found[key] = slab

    def release(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        self.publish(sequence)
        slab = self.slabs.pop(sequence.number)
        if sequence.shareable and slab.computed >= BLOCK:
            slab.tokens = slab.tokens[: slab.computed]
            if terms is None:
                self._kept[slab] = None
            else:
                self.leases.grant(Lease(terms, slab.size, slab))
        else:
            self._discard(slab)

    # slabs

    def _size(self, tokens: int) -> int:
        size = self.buddies.smallest
        while size < tokens:
            size *= 2
        return size

    def _take(self, size: int, keep: Slab | None = None) -> tuple[int, int] | None:
        """A block, for which those kept longest make room; `keep` is spared."""
        while size > self.buddies.free + sum(slab.size for slab in self._kept if slab is not keep):
            if not self.leases.give_up():
                return None
        while (offset := self.buddies.take(size)) is None:
            victim = next((slab for slab in self._kept if slab is not keep), None)
            if victim is None:
                if self.leases.give_up():
                    continue
                return None
            del self._kept[victim]
            self._discard(victim)
        return offset, size

    def _let_go(self, slab: Slab) -> None:
        """A slab that was kept by a lease may go like others, behind all that are there."""
        self._kept[slab] = None

    def _discard(self, slab: Slab) -> None:
        self._unindex(slab, 0)
        self.buddies.give(slab.offset, slab.size)

    def _move(self, slab: Slab, size: int, computed: int) -> bool:
        taken = self._take(size)
        if taken is None:
            return False
        self.copies.append(Copy(slab.offset, slab.size, *taken, computed))
        self.buddies.give(slab.offset, slab.size)
        slab.offset, slab.size = taken
        return True

    # what is already computed

    def _find(self, sequence: Sequence, earlier: Slab | None) -> tuple[Slab | None, int, list[int]]:
        """The slab with the longest common beginning, its length, and the sequence's keys as far as they were looked
        at; at least one token stays to be computed. earlier: the slab of the conversation's turn before, whose keys
        hold for what both begin with."""
        keys: list[int] = []
        if not sequence.shareable:
            return None, 0, keys
        most = sequence.known - 1
        if earlier is not None and earlier.tenant == sequence.owner:
            same = common_prefix(sequence.tokens, earlier.tokens, 0, min(most, earlier.computed))
            keys = earlier.keys[: same // BLOCK]
        best: Slab | None = None
        for number, key in enumerate(block_keys(sequence.owner, sequence.tokens, most, keys)):
            slab = self._found.get(key)
            if slab is None:
                keys = keys[:number]
                break
            best = slab
        if best is None or best.tenant != sequence.owner:
            return None, 0, keys
        shared = common_prefix(sequence.tokens, best.tokens, 0, min(most, best.computed))
        return (best, shared, keys) if shared >= BLOCK else (None, 0, keys)

    def _take_over(self, slab: Slab, shared: int) -> Slab:
        del self._kept[slab]
        self._unindex(slab, shared // BLOCK)
        slab.computed = shared
        return slab

    def _unindex(self, slab: Slab, start: int) -> None:
        for key in slab.keys[start:]:
            if self._found.get(key) is slab:
                del self._found[key]
        del slab.keys[start:]


def block_keys(tenant: str, tokens: list[int], length: int, keys: list[int]) -> Iterator[int]:
    """A key for each full block among the first `length` tokens, made of everything up to the block's end. keys: those
    of the first blocks, which are known; the others are made as they are asked for, and added."""
    for number in range(length // BLOCK):
        if number == len(keys):
            before = keys[-1] if keys else hash(tenant)
            keys.append(hash((before, tuple(tokens[number * BLOCK : (number + 1) * BLOCK]))))
        yield keys[number]
