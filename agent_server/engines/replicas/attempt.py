"""One attempt at a generation, on one replica: whatever goes wrong with it is an EngineError."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable

from agent_server.engine.protocol import Control, Delta, EngineError, EngineItem, Finished
from agent_server.engines.replicas.flow import Flow
from agent_server.engines.replicas.replica import Replica
from agent_server.engines.replicas.settings import ReplicaSettings
from agent_server.engines.replicas.watch import SilenceWatch

logger = logging.getLogger("agent_server.replicas")
OWN_FAULTS = frozenset({"connection", "timeout", "unavailable", "internal"})
"""Errors that speak against the replica, not against the request."""


class Attempt:
    """`next` yields items until Finished; `close` frees the replica. now: seconds."""

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
        self._speaking = False
        self._on_trial = replica.breaker.begin()
        replica.counts.generations += 1

    async def next(self) -> EngineItem:
        item = await self._read()
        if not self.answering:
            await self._answered()
        if isinstance(item, Delta):
            self._take(item)
        elif isinstance(item, Control):
            self.flow.acknowledged(item)
        else:
            return self._end(item)
        return item

    async def _read(self) -> EngineItem:
        try:
            return await self._watch.next(self._stream)
        except EngineError:
            raise
        except StopAsyncIteration:
            message = "The engine ended a generation without saying how."
            raise EngineError("connection", message, retryable=True) from None
        except TimeoutError:
            message = f"The engine {self.replica.name} was silent for too long."
            raise EngineError("timeout", message, retryable=True) from None
        except Exception as error:
            logger.exception("The engine %s failed in a way of its own.", self.replica.name)
            raise EngineError("internal", "The engine failed.", retryable=True) from error

    def _take(self, delta: Delta) -> None:
        if not self._speaking and delta.tokens:
            self._speaking = True
            self.replica.breaker.answered()
            if not self.flow.paused:
                self._watch.set_limit(self._settings.idle)
        self.flow.take(delta, self._now())

    def _end(self, finished: Finished) -> Finished:
        if finished.reason == "cancelled":
            message = "The engine cancelled a generation that nobody asked it to."
            raise EngineError("connection", message, retryable=True)
        self.replica.breaker.succeeded()
        return self.flow.ended(finished, self._now())

    def failed(self, error: EngineError) -> None:
        """What the error says about the replica."""
        if error.kind not in OWN_FAULTS:
            return
        self.replica.counts.failures += 1
        self.replica.breaker.failed(self._now())
        self._on_trial = False

    async def close(self) -> None:
        """Cancels what still runs."""
        if self._on_trial:
            self.replica.breaker.give_up()
        self._watch.close()
        with contextlib.suppress(Exception):
            await self._stream.aclose()

    # control

    async def tell(self, command: Callable[[], Awaitable[bool]]) -> bool:
        """Pass a command on. An engine that has said nothing yet may not know the generation: it is told again with
        its first word."""
        told = await command()
        if not told and not self.answering:
            self._deferred.append(command)
            return True
        return told

    async def _answered(self) -> None:
        self.answering = True
        for command in self._deferred:
            with contextlib.suppress(EngineError):
                await command()

    def hush(self, paused: bool) -> None:
        """A paused generation may be silent."""
        limit = self._settings.idle if self._speaking else self._settings.first_token
        self._watch.set_limit(None if paused else limit)
