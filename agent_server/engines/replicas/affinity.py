"""Which replica has computed the beginning of a prompt before: where its keys and values are probably still cached.

A prompt is cut into blocks of token ids, and each block is named by a hash of itself and everything before it, so
that one look-up answers for the whole prefix. The tenant is hashed in, as engines keep their prefix caches apart.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

BLOCK_TOKENS = 32
MAX_BLOCKS = 2048
"""Of one prompt: what lies beyond is not looked at."""
HASH_BYTES = 8

Chain = tuple[bytes, ...]


def chain_of(tenant: str, token_ids: Sequence[int]) -> Chain:
    """One hash for each whole block of the prompt, each covering everything up to its end."""
    state = blake2b(tenant.encode(), digest_size=HASH_BYTES)
    found: list[bytes] = []
    for end in range(BLOCK_TOKENS, min(len(token_ids), MAX_BLOCKS * BLOCK_TOKENS) + 1, BLOCK_TOKENS):
        state.update(array("q", token_ids[end - BLOCK_TOKENS : end]).tobytes())
        found.append(state.digest())
    return tuple(found)


MAX_BITS = 512


class Prefixes:
    """block → the replicas that computed it, as bits. The least recently used are forgotten beyond `most` blocks,
    the ends of prompts before their beginnings. A replica that began anew gets another bit, so that nothing need be
    searched for; when the bits run out, everything is forgotten."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: OrderedDict[bytes, int] = OrderedDict()
        self._bits: dict[int, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, chain: Chain, replica: int) -> None:
        """The replica, by its number, computes this prompt."""
        bit = 1 << self._bit(replica)
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
        """For each replica the share of the prompt's blocks that it has from the beginning on, 0 to 1."""
        lengths = [0] * replicas
        known = [(number, 1 << self._bits[number]) for number in range(replicas) if number in self._bits]
        left = sum(bit for _, bit in known)
        for length, block in enumerate(chain, 1):
            left &= self._holders.get(block, 0)
            if not left:
                break
            for number, bit in known:
                if left & bit:
                    lengths[number] = length
        return [length / len(chain) for length in lengths] if chain else [0.0] * replicas

    def forget(self, replica: int) -> None:
        """The replica began anew: nothing is cached there."""
        self._bits.pop(replica, None)
