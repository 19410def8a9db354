"""One attempt at a generation, on one replica. Whatever goes wrong with it is raised as an EngineError."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from agent_server.engine_protocol.continuation import may_continue
from agent_server.engine_protocol.protocol import (
    Control,
    Delta,
    EngineError,
    EngineItem,
    Finished,
    GenerationRequest,
    Timings,
)
from agent_server.engines.replicas.balancer import ReplicaNeed
from agent_server.engines.replicas.replica import Replica, SilenceWatch
from agent_server.settings import ReplicaSettings

Action = Literal["paused", "resumed", "modified"]


@dataclass(eq=False, slots=True)
class Flow:
    """One generation across its attempts. request: with all modifications so far. place: what it needs of a replica.
    arrived: when it arrived. generated: ids of all tokens so far.

    attempts: number of failed attempts. resumed: how many of those had delivered tokens. owed: acknowledgements that
    the reader has not received yet, in order. changed: set when a command arrives while there is no attempt. placed:
    when it first got a replica. first: when its first token arrived. Times are on the set's clock, in seconds.
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
        """Return the request of the next attempt. Its id is new, because the lost engine may still run the previous
        attempt under the old one."""
        name = self.request.request_id
        number = f".{self.attempts}" if self.attempts else ""
        return msgspec.structs.replace(self.request, request_id=name + number, generated=tuple(self.generated))

    # what the engine yields

    def take(self, delta: Delta, now: float) -> None:
        self.generated += [token.id for token in delta.tokens]
        if self.first is None and delta.tokens:
            self.first = now

    def note_acknowledgement(self, control: Control) -> None:
        if control.action in self.owed:
            self.owed.remove(control.action)

    def acknowledgements(self) -> list[Control]:
        """Return the acknowledgements that a lost replica did not send, and those of commands that arrived while there
        was no attempt."""
        owed, self.owed = self.owed, []
        return [Control(action=action, position=len(self.generated)) for action in owed]

    def ended(self, finished: Finished, now: float) -> Finished:
        """Return the last item for the reader, with the times of the whole generation instead of the last attempt's."""
        first = None if self.first is None else self.first - self.arrived
        placed = self.arrived if self.placed is None else self.placed
        # The engine's own queue counts only in the first attempt: in a later one it is not time before the start.
        queued = placed - self.arrived + (finished.timings.queued if not self.attempts else 0.0)
        timings = Timings(queued=queued, first_token=first, total=now - self.arrived)
        return msgspec.structs.replace(finished, timings=timings, resumed=self.resumed + finished.resumed)

    # after a failure

    def lost(self, replica: Replica, replicas: Sequence[Replica]) -> bool:
        """Record that the attempt failed. Return whether any replica could continue from the tokens so far."""
        self.attempts += 1
        self.place.avoid.add(replica)
        if not self.generated:
            return True  # nothing to continue from: any replica can start from the prompt
        self.resumed += self.begun
        self.require_continuation()
        return any(self.place.fits(each) for each in replicas)

    def require_continuation(self) -> None:
        """Accept from now on only replicas that can continue from the tokens so far."""
        self.place.urgent = self.begun
        self.place.fits = lambda replica: replica.started and may_continue(self.request, replica.engine.info)


logger = logging.getLogger("agent_server.replicas")
OWN_FAULTS = frozenset({"connection", "timeout", "unavailable", "internal"})
"""Kinds of errors that are the replica's fault and count against it; the others are the request's."""


class Attempt:
    """`next` returns the items up to Finished; `close` frees the replica. now: a clock, in seconds."""

    def __init__(self, flow: Flow, replica: Replica, settings: ReplicaSettings, now: Callable[[], float]) -> None:
        self.flow = flow
        self.replica = replica
        request = flow.upstream_request()
        self.request_id = request.request_id
        self.answering = False
        self._settings = settings
        self._now = now
        self._deferred: list[Callable[[], Awaitable[bool]]] = []
        self._stream = replica.engine.generate(request)
        self._watch = SilenceWatch(settings.first_token)
        self._has_tokens = False
        self._on_trial = replica.breaker.begin()
        replica.counts.generations += 1

    async def next(self) -> EngineItem:
        """Return the next item. Each exception of the engine is raised as an EngineError."""
        try:
            item = await self._watch.next(self._stream)
        except EngineError:
            raise
        except StopAsyncIteration:
            # The protocol requires Finished as the last item: without it tokens may be missing.
            message = "The engine ended a generation without its last item, Finished."
            raise EngineError("connection", message, retryable=True) from None
        except TimeoutError:
            message = f"The engine {self.replica.name} sent nothing within the time limit."
            raise EngineError("timeout", message, retryable=True) from None
        except Exception as error:
            logger.exception("The engine %s raised an unexpected exception.", self.replica.name)
            raise EngineError("internal", "The engine failed.", retryable=True) from error
        if not self.answering:
            self.answering = True
            for command in self._deferred:
                with contextlib.suppress(EngineError):
                    await command()
        if isinstance(item, Delta):
            if not self._has_tokens and item.tokens:
                self._has_tokens = True
                # The first token shows that the replica works, so a trial has succeeded while the generation continues.
                self.replica.breaker.record_first_token()
                if not self.flow.paused:
                    self._watch.set_limit(self._settings.idle)
            self.flow.take(item, self._now())
        elif isinstance(item, Control):
            self.flow.note_acknowledgement(item)
        elif isinstance(item, Finished):
            if item.reason == "cancelled":
                # A cancelled reader closes this attempt instead of reading on, so the engine cancelled by itself.
                message = "The engine cancelled a generation without being asked to."
                raise EngineError("connection", message, retryable=True)
            self.replica.breaker.record_success()
            return self.flow.ended(item, self._now())
        return item

    def failed(self, error: EngineError) -> None:
        """Count the failure if it is the replica's fault."""
        if error.kind not in OWN_FAULTS:
            return
        self.replica.counts.failures += 1
        self.replica.breaker.record_failure(self._now())
        self._on_trial = False

    async def close(self) -> None:
        """Cancel the generation if it is still running."""
        # A cancelled reader or an error of the request shows nothing about the replica: let another generation try.
        if self._on_trial:
            self.replica.breaker.give_up()
        self._watch.close()
        with contextlib.suppress(Exception):
            await self._stream.aclose()

    # control

    async def tell(self, command: Callable[[], Awaitable[bool]]) -> bool:
        """Forward a command to the engine. An engine that has not answered yet may not know the generation; the command
        is then repeated after its first item."""
        done = await command()
        if not done and not self.answering:
            self._deferred.append(command)
            return True
        return done

    def set_paused(self, paused: bool) -> None:
        """Lift the limit on silence while the generation is paused."""
        limit = self._settings.idle if self._has_tokens else self._settings.first_token
        self._watch.set_limit(None if paused else limit)
