"""One generation across its attempts: the tokens so far, the commands to it, and whether it can continue elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agent_server.engine_protocol.continuation import may_continue
from agent_server.engine_protocol.protocol import Control, Delta, Finished, GenerationRequest, Timings
from agent_server.engines.replicas.balancer import ReplicaNeed
from agent_server.engines.replicas.replica import Replica

Action = Literal["paused", "resumed", "modified"]


@dataclass(eq=False, slots=True)
class Flow:
    """request: the request with the modifications since. place: what it needs of a replica. arrived: when it began.
    generated: ids of all tokens so far.

    attempts: how many have failed. resumed: how many of them had delivered tokens. owed: acknowledgements that the
    reader has not received yet, in order. changed: set when a command arrives while there is no attempt. placed: when
    it first got a replica. first: when its first token came. Times are on the set's clock, in seconds.
    """

    request: GenerationRequest
    place: ReplicaNeed
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
        """Whether its reader has received tokens."""
        return self.first is not None

    def upstream_request(self) -> GenerationRequest:
        """The request of the next attempt. Its id is new, because the lost engine may still run the last attempt under
        the old one."""
        name = self.request.request_id
        number = f".{self.attempts}" if self.attempts else ""
        return msgspec.structs.replace(self.request, request_id=name + number, generated=tuple(self.generated))

    # what the engine yields

    def take(self, delta: Delta, now: float) -> None:
        self.generated += [token.id for token in delta.tokens]
        if self.first is None and delta.tokens:
            self.first = now

    def acknowledged(self, control: Control) -> None:
        if control.action in self.owed:
            self.owed.remove(control.action)

    def acknowledgements(self) -> list[Control]:
        """The acknowledgements that a lost replica did not send, and those of commands that came while there was
        none."""
        owed, self.owed = self.owed, []
        return [Control(action=action, position=len(self.generated)) for action in owed]

    def ended(self, finished: Finished, now: float) -> Finished:
        """The last item for the reader, with the times of the whole generation instead of the last attempt's."""
        first = None if self.first is None else self.first - self.arrived
        placed = self.arrived if self.placed is None else self.placed
        # The engine's own queue counts only in the first attempt: in a later one it is not time before the start.
        queued = placed - self.arrived + (finished.timings.queued if not self.attempts else 0.0)
        timings = Timings(queued=queued, first_token=first, total=now - self.arrived)
        return msgspec.structs.replace(finished, timings=timings, resumed=self.resumed + finished.resumed)

    # after a failure

    def lost(self, replica: Replica, replicas: Sequence[Replica]) -> bool:
        """Note that the attempt failed. True if some replica of the set could continue from the tokens so far."""
        self.attempts += 1
        self.place.avoid.add(replica)
        if not self.generated:
            return True  # nothing to continue from: any replica can start from the prompt
        self.resumed += self.begun
        self.must_continue()
        return any(self.place.fits(each) for each in replicas)

    def must_continue(self) -> None:
        """Accept from now on only replicas that can continue from the tokens so far."""
        self.place.urgent = self.begun
        self.place.fits = self._may_continue_on

    def _may_continue_on(self, replica: Replica) -> bool:
        return replica.started and may_continue(self.request, replica.engine.info)
