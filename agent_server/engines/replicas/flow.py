"""One generation of a set: what came so far, what was asked of it, and whether it goes on after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agent_server.engine.continuation import may_continue
from agent_server.engine.protocol import Control, Delta, Finished, GenerationRequest, Timings
from agent_server.engines.replicas.balancer import Place
from agent_server.engines.replicas.replica import Replica

Action = Literal["paused", "resumed", "modified"]


@dataclass(eq=False, slots=True)
class Flow:
    """request: as it was asked, with the modifications since. generated: ids of all tokens so far.

    attempts: how many began and failed. owed: acknowledgements that the reader is still to get, in order. Times are
    on the set's clock, in seconds.
    """

    request: GenerationRequest
    place: Place
    arrived: float
    generated: list[int]
    attempts: int = 0
    resumed: int = 0
    paused: bool = False
    owed: list[Action] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    placed: float | None = None
    first: float | None = None

    @property
    def begun(self) -> bool:
        """Its reader has got something."""
        return self.first is not None

    def upstream_request(self) -> GenerationRequest:
        """The next attempt, under a fresh id: a lost engine may still be busy with the last one."""
        name = self.request.request_id
        number = f".{self.attempts}" if self.attempts else ""
        return msgspec.structs.replace(self.request, request_id=name + number, generated=tuple(self.generated))

    # what comes

    def take(self, delta: Delta, now: float) -> None:
        self.generated += [token.id for token in delta.tokens]
        if self.first is None and delta.tokens:
            self.first = now

    def acknowledged(self, control: Control) -> None:
        if control.action in self.owed:
            self.owed.remove(control.action)

    def acknowledgements(self) -> list[Control]:
        """What a lost replica can say no more, and what was asked while there was none."""
        owed, self.owed = self.owed, []
        return [Control(action=action, position=len(self.generated)) for action in owed]

    def ended(self, finished: Finished, now: float) -> Finished:
        """The end as the reader is told of it: the times are those of the whole, not of the last attempt."""
        first = None if self.first is None else self.first - self.arrived
        placed = self.arrived if self.placed is None else self.placed
        queued = placed - self.arrived + (finished.timings.queued if not self.attempts else 0.0)
        timings = Timings(queued=queued, first_token=first, total=now - self.arrived)
        return msgspec.structs.replace(finished, timings=timings, resumed=self.resumed + finished.resumed)

    # what becomes of it after a failure

    def lost(self, replica: Replica, replicas: Sequence[Replica]) -> bool:
        """The attempt failed. Whether some replica could take over what there is so far."""
        self.attempts += 1
        self.place.avoid.add(replica)
        if not self.generated:
            return True
        self.resumed += self.begun
        self.must_continue()
        return any(self.place.fits(each) for each in replicas)

    def must_continue(self) -> None:
        """From now on only replicas count that can go on from the tokens so far."""
        self.place.urgent = self.begun
        self.place.fits = self._may_continue_on

    def _may_continue_on(self, replica: Replica) -> bool:
        return replica.started and may_continue(self.request, replica.engine.info)
