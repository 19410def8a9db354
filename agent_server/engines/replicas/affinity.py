"""Which replica has computed the beginning of a prompt before, and so probably still has its keys and values cached.

A prompt is cut into blocks of token ids. The key of a block is a hash of the block and everything before it, so that
one look-up answers for the whole prefix. The tenant is hashed too, because engines keep the prefix caches of tenants
apart.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 32
MAX_BLOCKS = 2048
"""Blocks of one prompt that are considered; the rest of a longer prompt is not."""
HASH_BYTES = 8

Chain = tuple[bytes, ...]


def chain_of(tenant: str, token_ids: Sequence[int]) -> Chain:
    """One hash for each whole block of the prompt; each covers everything up to the end of its block."""
    state = blake2b(tenant.encode(), digest_size=HASH_BYTES)
    hashes: list[bytes] = []
    for end in range(BLOCK_TOKENS, min(len(token_ids), MAX_BLOCKS * BLOCK_TOKENS) + 1, BLOCK_TOKENS):
        state.update(array("q", token_ids[end - BLOCK_TOKENS : end]).tobytes())
        hashes.append(state.digest())
    return tuple(hashes)


MAX_BITS = 512
"""Replicas, counting each restart of one, before the table is emptied."""


class Prefixes:
    """Block → the replicas that computed it, one bit for each.

    At most `most` blocks are kept: the least recently used are dropped first, and of one prompt the end before the
    beginning. A replica that restarted gets a new bit, so that no block has to be searched for its old one. When all
    bits have been given out, the table is emptied."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: OrderedDict[bytes, int] = OrderedDict()
        self._bits: dict[int, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, chain: Chain, replica: int) -> None:
        """Remember that the replica with this number computes the prompt."""
        bit = 1 << self._bit(replica)
        # The first block is touched last: it is the one that most other prompts share, so it must be dropped last.
        for block in reversed(chain):
            self._holders[block] = self._holders.get(block, 0) | bit
            self._holders.move_to_end(block)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def _bit(self, replica: int) -> int:
        if replica not in self._bits:
            if self._next >= MAX_BITS:
                self._holders.clear()
                self._bits.clear()
                self._next = 0
            self._bits[replica] = self._next
            self._next += 1
        return self._bits[replica]

    def shares(self, chain: Chain, replicas: int) -> list[float]:
        """For each replica, the share (0 to 1) of the prompt's blocks that it has computed without a gap from the
        start."""
        lengths = [0] * replicas
        known = [(number, 1 << self._bits[number]) for number in range(replicas) if number in self._bits]
        left = sum(bit for _, bit in known)
        # A prefix cache can only be used up to the first block that is missing, so a replica that lacks one drops out.
        for length, block in enumerate(chain, 1):
            left &= self._holders.get(block, 0)
            if not left:
                break
            for number, bit in known:
                if left & bit:
                    lengths[number] = length
        return [length / len(chain) for length in lengths] if chain else [0.0] * replicas

    def forget(self, replica: int) -> None:
        """The replica restarted, so its cache is empty."""
        self._bits.pop(replica, None)
