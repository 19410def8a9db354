"""Paged memory: pages of a fixed number of tokens, shared by content between sequences of a tenant.

A full page is identified by a hash of all tokens up to its end, salted with the owner. An unused page stays in the
prefix cache until its memory is needed; the least recently used is evicted first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from hashlib import blake2b

from agent_server.generation.scheduling.leases import Key, Lease, Leases, LeaseTerms
from agent_server.generation.scheduling.sequence import Sequence, common_prefix


@dataclass(slots=True)
class _Holding:
    """The pages of a running sequence or of a lease; the first `published` are in the prefix cache under their hashes.
    owner, tokens: the input of the hashes, kept under a lease for the conversation's next turn."""

    pages: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)
    published: int = 0
    owner: str = ""
    tokens: Items[int] = ()


class PagedMemory:
    """`pages` pages of `page_size` tokens. Page 0 belongs to no sequence: padding is written there and never read."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.total = pages - 1
        self.longest = self.total * page_size
        self.holdings: dict[int, _Holding] = {}
        self.leases = Leases(self.longest, self._drop)
        self._free = list(range(pages - 1, 0, -1))
        self._references = [0] * pages
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._unused: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """The number of pages that neither a running sequence nor a lease holds."""
        return len(self._free) + len(self._unused)

    @property
    def usage(self) -> float:
        if not self.leases:
            return 1.0 - self.available / self.total
        return len({page for holding in self.holdings.values() for page in holding.pages}) / self.total

    def table(self, sequence: Sequence) -> list[int]:
        """The sequence's pages in order."""
        return self.holdings[sequence.number].pages

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        holding = _Holding()
        lease = None if sequence.lease_key is None else self.leases.get(sequence.lease_key)
        if lease is not None and lease.entry.owner == sequence.owner:
            # Reuse the hashes of the prefix that this turn has in common with the conversation's previous one.
            tokens = lease.entry.tokens
            shared = common_prefix(sequence.tokens, tokens, 0, min(sequence.known, len(tokens)))
            holding.hashes = lease.entry.hashes[: shared // self.page_size]
        # Reference the cached pages of the sequence's prefix. At least one token stays to be computed.
        for index in range((sequence.known - 1) // self.page_size if sequence.shareable else 0):
            page = self._by_hash.get(self._hash(sequence, holding, index))
            if page is None:
                break
            self._references[page] += 1
            self._unused.pop(page, None)
            holding.pages.append(page)
            holding.published += 1
        needed_pages = -(-(len(sequence.tokens) + 1) // self.page_size) - len(holding.pages)
        spare = 0 if alone else len(self.holdings)
        if not self._make_room(needed_pages + spare, sequence.lease_key):
            self._drop(holding)
            return None
        if sequence.lease_key is not None and (lease := self.leases.take(sequence.lease_key)) is not None:
            self.leases.reused += sequence.terms is None
            self._drop(lease.entry)
        self.holdings[sequence.number] = holding
        self._extend(holding, needed_pages)
        return holding.published * self.page_size

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        holding = self.holdings[sequence.number]
        needed_pages = -(-tokens // self.page_size) - len(holding.pages)
        if not self._make_room(needed_pages):
            return False
        self._extend(holding, needed_pages)
        return True

    def _make_room(self, pages: int, last: Key | None = None) -> bool:
        """Evict leases until that many pages are available; return False if there are not enough. last: the lease to
        evict after all others."""
        while pages > self.available:
            if not self.leases.evict(last):
                return False
        return True

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        return length - leader.computed >= least

    def publish(self, sequence: Sequence) -> None:
        if not sequence.shareable:
            return
        holding = self.holdings[sequence.number]
        full = min(sequence.computed, sequence.known) // self.page_size
        for index in range(holding.published, full):
            digest = self._hash(sequence, holding, index)
            if digest not in self._by_hash:
                self._by_hash[digest] = holding.pages[index]
                self._hash_of[holding.pages[index]] = digest
        holding.published = max(full, holding.published)

    def release(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        self.publish(sequence)
        holding = self.holdings.pop(sequence.number)
        if terms is not None and sequence.shareable:
            # Lease the full pages that the prefix cache has under these hashes, which may be another sequence's.
            hashes = holding.hashes[: holding.published]
            leased = _Holding(
                hashes=hashes, owner=sequence.owner, tokens=sequence.tokens[: len(hashes) * self.page_size]
            )
            for digest in hashes:
                page = self._by_hash[digest]
                self._references[page] += 1
                self._unused.pop(page, None)
                leased.pages.append(page)
            self.leases.grant(Lease(terms, len(leased.pages) * self.page_size, leased))
        self._drop(holding)

    def _hash(self, sequence: Sequence, holding: _Holding, index: int) -> bytes:
        while len(holding.hashes) <= index:
            start = len(holding.hashes) * self.page_size
            before = holding.hashes[-1] if holding.hashes else sequence.owner.encode()
            content = array("q", sequence.tokens[start : start + self.page_size]).tobytes()
            salted = len(before).to_bytes(4, "little") + before + content
            holding.hashes.append(blake2b(salted, digest_size=16).digest())
        return holding.hashes[index]

    def _extend(self, holding: _Holding, count: int) -> None:
        for _ in range(count):
            if self._free:
                page = self._free.pop()
            else:
                # Evict the least recently used page of the prefix cache.
                page, _ = self._unused.popitem(last=False)
                del self._by_hash[self._hash_of.pop(page)]
            self._references[page] = 1
            holding.pages.append(page)

    def _drop(self, holding: _Holding) -> None:
        """Release the pages of a holding, last page first, so that the beginning of a prompt is evicted last."""
        for page in reversed(holding.pages):
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._hash_of:
                self._unused[page] = None
            else:
                self._free.append(page)
