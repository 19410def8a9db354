"""Contiguous memory: every sequence has one slab, a power of two tokens long, in one arena (a buddy allocator).

Attention over contiguous keys is much faster than over gathered pages on a CPU. Slabs are aligned to their size, so
that sequences of similar length can be attended in one call on a view of the arena.

The slab of a finished sequence stays in the prefix cache until its memory is needed; the least recently used is evicted
first. A prompt with the same prefix takes the slab over. It copies the common part instead where the slab is in use, or
holds more than the common part and there is memory for both.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_server.generation.scheduling.leases import Lease, Leases, LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence, common_prefix

BLOCK = 32
"""Tokens in a block. Common prefixes are looked up by blocks; their exact length is then compared token by token."""
HEADROOM = 256
"""Tokens that a sequence may generate before its slab must grow, if its limit is as high."""


@dataclass(frozen=True, slots=True)
class SlabCopy:
    """Keys and values of `length` tokens to be copied before the next step, from the slab at `source` to the one at
    `target`. The same offset with another size is a slab that has grown. All in tokens."""

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


class BuddyAllocator:
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
        """Allocate the lowest block of that size and return its offset; split a larger one if necessary."""
        available = size
        while available <= self.largest and not self._free[available]:
            available *= 2
        if available > self.largest:
            return None
        offset = self._free[available].pop(0)
        while available > size:
            available //= 2
            insort(self._free[available], offset + available)
        return offset

    def give(self, offset: int, size: int) -> None:
        """Free a block and merge it with its free buddies."""
        while size < self.largest and (buddy := offset ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            offset = min(offset, buddy)
            size *= 2
        insort(self._free[size], offset)

    def extend(self, offset: int, size: int) -> bool:
        """Double a block in place; return False if the following block is not free."""
        if offset % (2 * size) or 2 * size > self.largest or offset + size not in self._free[size]:
            return False
        self._free[size].remove(offset + size)
        return True


class SlabMemory:
    """An arena of `total` tokens; the smallest slab has `smallest`. The owner of the tensors must execute `copies`, in
    order, before the next step."""

    def __init__(self, total: int, smallest: int = 128) -> None:
        self.buddies = BuddyAllocator(total, smallest)
        self.total = self.buddies.free
        self.longest = self.buddies.largest
        self.slabs: dict[int, Slab] = {}
        self.copies: list[SlabCopy] = []
        self.leases = Leases(self.total, self._cache)
        self._cached: OrderedDict[Slab, None] = OrderedDict()
        self._slab_of_block: dict[int, Slab] = {}

    @property
    def usage(self) -> float:
        return sum(slab.size for slab in self.slabs.values()) / self.total

    def slab(self, sequence: Sequence) -> Slab:
        return self.slabs[sequence.number]

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        needed = len(sequence.tokens) + 1
        lease = None if sequence.lease_key is None else self.leases.take(sequence.lease_key)
        if lease is not None:
            self._cache(lease.entry)  # it may be taken over
        source, shared, keys = self._find(sequence, None if lease is None else lease.entry)
        slab = self._place(sequence, needed, source, shared)
        if slab is None:
            if lease is not None and lease.entry in self._cached:
                del self._cached[lease.entry]
                self.leases.grant(lease)
            return None
        self.leases.reused += lease is not None and sequence.terms is None
        slab.tokens = sequence.tokens
        slab.keys = slab.keys or keys[: slab.computed // BLOCK]
        self.slabs[sequence.number] = slab
        return slab.computed

    def _place(self, sequence: Sequence, needed: int, source: Slab | None, shared: int) -> Slab | None:
        """Allocate a slab that contains as much of the first `shared` tokens of `source` as possible."""
        cached = source if source in self._cached else None
        if cached is not None and cached.computed - shared <= BLOCK and cached.size >= needed:
            return self._take_over(cached, shared)
        preferred_size = self._size(min(sequence.limit, needed + HEADROOM))
        block = self._take(preferred_size, keep=source) or self._take(self._size(needed), keep=source)
        if block is not None:
            # Copy the common part; discard a source that contains hardly more than that.
            slab = Slab(*block, sequence.owner)
            if source is None:
                return slab
            slab.computed = shared
            self.copies.append(SlabCopy(source.offset, source.size, slab.offset, slab.size, shared))
            if source in self._cached:
                self._cached.move_to_end(source)
                if source.computed - shared <= BLOCK:
                    del self._cached[source]
                    self._discard(source)
            return slab
        if cached is None:
            return None
        if cached.size >= needed:
            return self._take_over(cached, shared)
        block = self._take(self._size(needed))
        return None if block is None else Slab(*block, sequence.owner)

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        slab = self.slabs[sequence.number]
        while slab.size < tokens:
            if self.buddies.extend(slab.offset, slab.size):
                self.copies.append(SlabCopy(slab.offset, slab.size, slab.offset, 2 * slab.size, sequence.computed))
                slab.size *= 2
            else:
                block = self._take(self._size(tokens))
                if block is None:
                    return False
                self.copies.append(SlabCopy(slab.offset, slab.size, *block, sequence.computed))
                self.buddies.give(slab.offset, slab.size)
                slab.offset, slab.size = block
        return True

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        return length - leader.computed >= least

    def publish(self, sequence: Sequence) -> None:
        slab = self.slabs[sequence.number]
        slab.computed = min(sequence.computed, sequence.known)
        if sequence.shareable:
            # It may hold less than when it was last published, if a step failed.
            self._unindex(slab, slab.computed // BLOCK)
            for key in block_keys(slab.tenant, slab.tokens, slab.computed, slab.keys):
                self._slab_of_block[key] = slab

    def release(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        self.publish(sequence)
        slab = self.slabs.pop(sequence.number)
        if sequence.shareable and slab.computed >= BLOCK:
            slab.tokens = slab.tokens[: slab.computed]
            if terms is None:
                self._cached[slab] = None
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
        """Allocate a block and return its offset and size. Evicts the least recently used slabs except `keep`, and
        then leases."""
        while size > self.buddies.free + sum(slab.size for slab in self._cached if slab is not keep):
            if not self.leases.evict():
                return None
        while (offset := self.buddies.take(size)) is None:
            victim = next((slab for slab in self._cached if slab is not keep), None)
            if victim is None:
                if self.leases.evict():
                    continue
                return None
            del self._cached[victim]
            self._discard(victim)
        return offset, size

    def _cache(self, slab: Slab) -> None:
        """Return a leased slab to the cache, as its most recently used one."""
        self._cached[slab] = None

    def _discard(self, slab: Slab) -> None:
        self._unindex(slab, 0)
        self.buddies.give(slab.offset, slab.size)

    # what is already computed

    def _find(self, sequence: Sequence, earlier: Slab | None) -> tuple[Slab | None, int, list[int]]:
        """Find the slab with the longest common prefix. Return it, the length of the prefix, and the sequence's block
        keys that were computed. At least one token stays to be computed. earlier: the slab of the conversation's
        previous turn, whose keys are valid for the prefix that both have in common."""
        keys: list[int] = []
        if not sequence.shareable:
            return None, 0, keys
        most = sequence.known - 1
        if earlier is not None and earlier.tenant == sequence.owner:
            same = common_prefix(sequence.tokens, earlier.tokens, 0, min(most, earlier.computed))
            keys = earlier.keys[: same // BLOCK]
        best: Slab | None = None
        for number, key in enumerate(block_keys(sequence.owner, sequence.tokens, most, keys)):
            slab = self._slab_of_block.get(key)
            if slab is None:
                keys = keys[:number]
                break
            best = slab
        if best is None or best.tenant != sequence.owner:
            return None, 0, keys
        shared = common_prefix(sequence.tokens, best.tokens, 0, min(most, best.computed))
        return (best, shared, keys) if shared >= BLOCK else (None, 0, keys)

    def _take_over(self, slab: Slab, shared: int) -> Slab:
        del self._cached[slab]
        self._unindex(slab, shared // BLOCK)
        slab.computed = shared
        return slab

    def _unindex(self, slab: Slab, start: int) -> None:
        for key in slab.keys[start:]:
            if self._slab_of_block.get(key) is slab:
                del self._slab_of_block[key]
        del slab.keys[start:]


def block_keys(tenant: str, tokens: list[int], length: int, keys: list[int]) -> Iterator[int]:
    """Yield a key for each full block among the first `length` tokens, a hash of everything up to the block's end.
    keys: the known keys of the first blocks; the others are computed lazily and appended."""
    for number in range(length // BLOCK):
        if number == len(keys):
            before = keys[-1] if keys else hash(tenant)
            keys.append(hash((before, tuple(tokens[number * BLOCK : (number + 1) * BLOCK]))))
        yield keys[number]
