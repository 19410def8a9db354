"""Which replica gets a generation, and who waits while none has room."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agent_server.engine.protocol import EngineError
from agent_server.engines.replicas.affinity import Chain, Prefixes
from agent_server.engines.replicas.replica import Replica
from agent_server.engines.replicas.settings import ReplicaSettings


def _any(replica: Replica) -> bool:
    return True


@dataclass(eq=False, slots=True)
class Place:
    """What a generation needs of a replica. `chain`: its prompt's blocks. `avoid`: replicas that lost it, which are
    used again only where there is no other. `fits`: whether a replica can do what it asks. `urgent`: somebody is
    reading already. `deserted`: since when there has been no replica for it, of those that wait."""

    chain: Chain
    avoid: set[Replica] = field(default_factory=set)
    fits: Callable[[Replica], bool] = _any
    urgent: bool = False
    given: asyncio.Future[Replica] | None = None
    deserted: float | None = None


class Balancer:
    """Least loaded, with a preference for where the prompt's beginning is cached."""

    def __init__(self, replicas: Sequence[Replica], settings: ReplicaSettings, now: Callable[[], float]) -> None:
        self.replicas = replicas
        self.prefixes = Prefixes(settings.prefixes)
        self._settings = settings
        self._now = now
        self._waiting: deque[Place] = deque()
        self._turns = itertools.count(1)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, place: Place) -> Replica:
        """A replica with room, now or later; `release` must follow. EngineError: overloaded where too many wait,
        unavailable where there is no replica at all for too long."""
        if not self._waiting or place.urgent:
            replica = self._choose(place)
            if replica is not None:
                return self._take(replica, place)
        if not place.urgent and len(self._waiting) >= self._settings.queued:
            raise EngineError("overloaded", "Every replica is busy and the queue is full.", retryable=True)
        place.given = asyncio.get_running_loop().create_future()
        if place.urgent:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        self.dispatch()
        try:
            return await place.given
        except asyncio.CancelledError:
            self._withdraw(place)
            raise

    def _withdraw(self, place: Place) -> None:
        """Nobody waits for this any more; what it was given in the meantime goes back."""
        with contextlib.suppress(ValueError):
            self._waiting.remove(place)
        given = place.given
        if given is not None and given.done() and not given.cancelled() and given.exception() is None:
            self.release(given.result())

    def release(self, replica: Replica) -> None:
        replica.in_flight -= 1
        self.dispatch()

    def dispatch(self) -> None:
        """Give what is free to those who wait, first come first served; who cannot use it does not block the rest."""
        passed: list[Place] = []
        while self._waiting and any(self._free(each) for each in self.replicas):
            place = self._waiting.popleft()
            replica = self._choose(place)
            if replica is None:
                passed.append(place)
            elif place.given is not None and not place.given.done():
                place.given.set_result(self._take(replica, place))
        self._waiting.extendleft(reversed(passed))

    def tick(self) -> None:
        """Look again at who may be used now, and tell those for whom there has long been nobody."""
        self.dispatch()
        now = self._now()
        for place in list(self._waiting):
            if self._usable(place, now):
                place.deserted = None
                continue
            place.deserted = now if place.deserted is None else place.deserted
            if now - place.deserted >= self._settings.wait:
                self._waiting.remove(place)
                self._refuse(place, EngineError("unavailable", "No replica is available.", retryable=True))

    def _refuse(self, place: Place, error: EngineError) -> None:
        if place.given is not None and not place.given.done():
            place.given.set_exception(error)

    def fail(self, error: EngineError) -> None:
        """Everybody who waits gets the error."""
        for place in self._waiting:
            self._refuse(place, error)
        self._waiting.clear()

    def elsewhere(self, place: Place) -> bool:
        """Whether there is a replica that has not lost this generation."""
        return any(replica not in place.avoid for replica in self._usable(place, self._now()))

    # choosing

    def _usable(self, place: Place, now: float) -> list[Replica]:
        return [replica for replica in self.replicas if replica.available(now) and place.fits(replica)]

    def _free(self, replica: Replica) -> bool:
        return replica.in_flight < self._settings.in_flight and replica.available(self._now())

    def _choose(self, place: Place) -> Replica | None:
        """The replica with the least to do, where a prompt's cached share counts like generations less. None while
        those that may be used are full."""
        now = self._now()
        usable = self._usable(place, now)
        usable = [replica for replica in usable if replica not in place.avoid] or usable
        free = [replica for replica in usable if replica.in_flight < self._settings.in_flight]
        if len(free) < 2:
            return free[0] if free else None
        shares = self.prefixes.shares(place.chain, len(self.replicas))
        worth = self._settings.affinity
        return min(free, key=lambda r: (r.in_flight - worth * shares[r.number], r.turn))

    def _take(self, replica: Replica, place: Place) -> Replica:
        replica.in_flight += 1
        replica.turn = next(self._turns)
        self.prefixes.add(place.chain, replica.number)
        return replica
