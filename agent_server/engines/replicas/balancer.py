"""Gives generations to replicas, and lets them wait in a queue while every replica is full."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.replicas.replica import Replica
from agent_server.settings import ReplicaSettings

BLOCK_TOKENS = 32
MAX_BLOCKS = 2048
"""Blocks of one prompt that are considered; the rest of a longer prompt is not."""
HASH_BYTES = 8

Chain = tuple[bytes, ...]


def chain_of(tenant: str, token_ids: Sequence[int]) -> Chain:
    """Return one hash for each whole block of the prompt; each covers everything up to the end of its block."""
    state = blake2b(tenant.encode(), digest_size=HASH_BYTES)
    hashes: list[bytes] = []
    for end in range(BLOCK_TOKENS, min(len(token_ids), MAX_BLOCKS * BLOCK_TOKENS) + 1, BLOCK_TOKENS):
        state.update(array("q", token_ids[end - BLOCK_TOKENS : end]).tobytes())
        hashes.append(state.digest())
    return tuple(hashes)


MAX_BITS = 512
"""Replicas, counting each restart of one, before the table is emptied."""


class Prefixes:
    """A table of block → the replicas that computed it, one bit for each.

    It has at most `most` blocks: the least recently used are dropped first, and the end of a prompt before its
    beginning. A restarted replica gets a new bit, so that the blocks need not be searched for its old one. When all
    bits are used, the table is cleared."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._holders: OrderedDict[bytes, int] = OrderedDict()
        self._bits: dict[int, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, chain: Chain, replica: int) -> None:
        """Remember that the replica with this number computes the prompt."""
        if replica not in self._bits:
            if self._next >= MAX_BITS:
                self._holders.clear()
                self._bits.clear()
                self._next = 0
            self._bits[replica] = self._next
            self._next += 1
        bit = 1 << self._bits[replica]
        # The first block is touched last: it is the one that most other prompts share, so it must be dropped last.
        for block in reversed(chain):
            self._holders[block] = self._holders.get(block, 0) | bit
            self._holders.move_to_end(block)
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def shares(self, chain: Chain, replicas: int) -> list[float]:
        """Return for each replica the share (0 to 1) of the prompt's blocks that it has computed contiguously from the
        start."""
        lengths = [0] * replicas
        bits = [(number, 1 << self._bits[number]) for number in range(replicas) if number in self._bits]
        candidates = sum(bit for _, bit in bits)
        # A prefix cache can only be used up to the first block that is missing, so a replica that lacks one drops out.
        for length, block in enumerate(chain, 1):
            candidates &= self._holders.get(block, 0)
            if not candidates:
                break
            for number, bit in bits:
                if candidates & bit:
                    lengths[number] = length
        return [length / len(chain) for length in lengths] if chain else [0.0] * replicas

    def forget(self, replica: int) -> None:
        """Forget the blocks of a replica that restarted: its cache is empty."""
        self._bits.pop(replica, None)


@dataclass(eq=False, slots=True)
class ReplicaNeed:
    """A generation's requirements of a replica.

    chain: the blocks of its prompt. avoid: replicas that lost it, which are used again only if there is no other. fits:
    whether a replica can do what it asks. urgent: its reader has already received tokens, so it goes before the others.
    assigned: the replica that it waits for. stranded_since: when it was first seen waiting without any usable
    replica."""

    chain: Chain
    avoid: set[Replica] = field(default_factory=set)
    fits: Callable[[Replica], bool] = lambda replica: True
    urgent: bool = False
    assigned: asyncio.Future[Replica] | None = None
    stranded_since: float | None = None


class Balancer:
    """Chooses the least loaded replica, with a preference for one that has the prompt's beginning cached."""

    def __init__(self, replicas: Sequence[Replica], settings: ReplicaSettings, now: Callable[[], float]) -> None:
        self.replicas = replicas
        self.prefixes = Prefixes(settings.prefixes)
        self._settings = settings
        self._now = now
        self._waiting: deque[ReplicaNeed] = deque()
        self._turns = itertools.count(1)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, place: ReplicaNeed) -> Replica:
        """Wait for a replica with a free slot; the caller must `release` it. Raises EngineError("overloaded") if the
        queue is full, EngineError("unavailable") if no replica is usable for `settings.wait` seconds."""
        # While others wait, a new generation joins them at the end instead of taking the next free place.
        if not self._waiting or place.urgent:
            replica = self._choose(place)
            if replica is not None:
                return self._take(replica, place)
        if not place.urgent and len(self._waiting) >= self._settings.queued:
            message = "All replicas are busy and the queue is full. Try again later."
            raise EngineError("overloaded", message, retryable=True)
        place.assigned = asyncio.get_running_loop().create_future()
        if place.urgent:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        self.dispatch()
        try:
            return await place.assigned
        except asyncio.CancelledError:
            # The generation was cancelled: leave the queue.
            with contextlib.suppress(ValueError):
                self._waiting.remove(place)
            # A replica may have been assigned in the same turn of the event loop; without a release its place would be
            # lost.
            assigned = place.assigned
            if assigned is not None and assigned.done() and not assigned.cancelled() and assigned.exception() is None:
                self.release(assigned.result())
            raise

    def release(self, replica: Replica) -> None:
        replica.in_flight -= 1
        self.dispatch()

    def dispatch(self) -> None:
        """Give free replicas to the waiting generations in their order. One that cannot use any of them keeps its place
        and does not block those behind it."""
        skipped: list[ReplicaNeed] = []
        limit, now = self._settings.in_flight, self._now
        while self._waiting and any(each.in_flight < limit and each.available(now()) for each in self.replicas):
            place = self._waiting.popleft()
            replica = self._choose(place)
            if replica is None:
                skipped.append(place)
            elif place.assigned is not None and not place.assigned.done():
                place.assigned.set_result(self._take(replica, place))
        self._waiting.extendleft(reversed(skipped))

    def tick(self) -> None:
        """Called at intervals: retry the queue, since a cooldown may have ended without an event, and refuse
        generations that have had no usable replica for `settings.wait` seconds."""
        self.dispatch()
        now = self._now()
        for place in list(self._waiting):
            if self._usable(place, now):
                place.stranded_since = None
                continue
            place.stranded_since = now if place.stranded_since is None else place.stranded_since
            if now - place.stranded_since >= self._settings.wait:
                self._waiting.remove(place)
                message = "No replica is available. Try again later."
                self._refuse(place, EngineError("unavailable", message, retryable=True))

    def _refuse(self, place: ReplicaNeed, error: EngineError) -> None:
        if place.assigned is not None and not place.assigned.done():
            place.assigned.set_exception(error)

    def fail(self, error: EngineError) -> None:
        """End the wait of every generation in the queue with the error."""
        for place in self._waiting:
            self._refuse(place, error)
        self._waiting.clear()

    def elsewhere(self, place: ReplicaNeed) -> bool:
        """Return whether a usable replica exists that has not lost this generation."""
        return any(replica not in place.avoid for replica in self._usable(place, self._now()))

    # choosing

    def _usable(self, place: ReplicaNeed, now: float) -> list[Replica]:
        return [replica for replica in self.replicas if replica.available(now) and place.fits(replica)]

    def _choose(self, place: ReplicaNeed) -> Replica | None:
        """Return the replica with the fewest generations in flight, minus `affinity` times the share of the prompt that
        it has cached; among equals, the least recently used one. None while all usable replicas are full."""
        now = self._now()
        usable = self._usable(place, now)
        usable = [replica for replica in usable if replica not in place.avoid] or usable
        free = [replica for replica in usable if replica.in_flight < self._settings.in_flight]
        if len(free) < 2:
            return free[0] if free else None
        shares = self.prefixes.shares(place.chain, len(self.replicas))
        worth = self._settings.affinity
        return min(free, key=lambda r: (r.in_flight - worth * shares[r.number], r.turn))

    def _take(self, replica: Replica, place: ReplicaNeed) -> Replica:
        replica.in_flight += 1
        replica.turn = next(self._turns)
        self.prefixes.add(place.chain, replica.number)
        return replica
