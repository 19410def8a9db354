"""Several engines as one: a generation outlives the engine that began it.

Before its first token a generation that failed is begun again elsewhere. After it, it goes on elsewhere from the
tokens so far, where an engine can do that; its reader sees neither a gap nor a repetition, and is told at the end how
often it happened. What the reader cancels is never tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

import msgspec

from agent_server.engine.checks import changed_sampling
from agent_server.engine.protocol import (
    Engine,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    Finished,
    GenerationRequest,
)
from agent_server.engines.replicas.affinity import chain_of
from agent_server.engines.replicas.attempt import Attempt
from agent_server.engines.replicas.balancer import Balancer, Place
from agent_server.engines.replicas.breaker import Breaker
from agent_server.engines.replicas.flow import Action, Flow
from agent_server.engines.replicas.replica import Replica, described
from agent_server.engines.replicas.settings import ReplicaSettings
from agent_server.engines.replicas.supervision import Supervisor

logger = logging.getLogger("agent_server.replicas")
RETRY_SECONDS = 0.1
"""Before a generation returns to a replica that lost it, there being no other; doubled each time."""


class ReplicaSet:
    """engines: of the same model; names: what operators call them, by default their numbers. now: the clock, in
    seconds."""

    def __init__(
        self,
        engines: Sequence[Engine],
        settings: ReplicaSettings | None = None,
        *,
        names: Sequence[str] = (),
        now: Callable[[], float] | None = None,
    ) -> None:
        self.settings = settings or ReplicaSettings()
        self._now = now or (lambda: asyncio.get_running_loop().time())
        self.replicas = [
            Replica(number, names[number] if names else str(number), engine, self._breaker())
            for number, engine in enumerate(engines)
        ]
        self.balancer = Balancer(self.replicas, self.settings, self._now)
        self._supervisor = Supervisor(self.replicas, self.settings, self.balancer, self._now)
        self._flows: dict[str, Flow] = {}
        self._attempts: dict[Flow, Attempt] = {}
        self._closed = False

    def _breaker(self) -> Breaker:
        return Breaker(self.settings.failures, self.settings.cooldown, self.settings.longest_cooldown)

    @property
    def info(self) -> EngineInfo:
        """What all replicas that were ever ready can do; the shortest of their contexts."""
        return self._supervisor.info

    @property
    def status(self) -> EngineStatus:
        """ "degraded" while some replica cannot be used; not ready while none can."""
        return EngineStatus(state="stopped") if self._closed else self._supervisor.status(self._now())

    async def start(self) -> None:
        """Start every replica; returns once one is ready, raises once none can ever be. The others follow."""
        await self._supervisor.start()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._supervisor.close()
        self.balancer.fail(_closed())
        for flow in self._flows.values():
            flow.changed.set()
        await asyncio.gather(*(replica.engine.close() for replica in self.replicas), return_exceptions=True)

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        flow = self._begin(request)
        try:
            while True:
                while flow.paused or flow.owed:
                    for control in flow.acknowledgements():
                        yield control
                    await self._go_on(flow)
                attempt = await self._attempt(flow)
                if attempt is None:
                    continue
                try:
                    for control in flow.acknowledgements():
                        yield control
                    while True:
                        item = await attempt.next()
                        yield item
                        if isinstance(item, Finished):
                            self._remember(flow, attempt.replica)
                            return
                except EngineError as error:
                    self._lose(flow, attempt, error)
                finally:
                    await self._end(flow, attempt)
                await self._breathe(flow)
        finally:
            del self._flows[request.request_id]

    def _begin(self, request: GenerationRequest) -> Flow:
        if self._closed:
            raise _closed()
        if request.request_id in self._flows:
            raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
        several = len(self.replicas) > 1
        place = Place(chain_of(request.tenant, request.prompt_token_ids) if several else ())
        flow = Flow(request, place, self._now(), list(request.generated))
        if request.generated:
            flow.must_continue()
        self._flows[request.request_id] = flow
        return flow

    async def _go_on(self, flow: Flow) -> None:
        """Until the generation, which has no replica, is not paused or has something to say."""
        while flow.paused and not flow.owed:
            flow.changed.clear()
            await flow.changed.wait()
            if self._closed:
                raise _closed()

    async def _attempt(self, flow: Flow) -> Attempt | None:
        """The next attempt, once there is room for it; None if it was paused meanwhile."""
        replica = await self.balancer.acquire(flow.place)
        if flow.paused:
            self.balancer.release(replica)
            return None
        if flow.placed is None:
            flow.placed = self._now()
        try:
            attempt = self._attempts[flow] = Attempt(flow, replica, self.settings, self._now)
        except BaseException:
            self.balancer.release(replica)
            raise
        return attempt

    async def _end(self, flow: Flow, attempt: Attempt) -> None:
        self._attempts.pop(flow, None)
        try:
            await attempt.close()
        finally:
            self.balancer.release(attempt.replica)

    def _lose(self, flow: Flow, attempt: Attempt, error: EngineError) -> None:
        """Count the failure, and raise it unless another attempt may follow."""
        replica = attempt.replica
        attempt.failed(error)
        if self._closed or not error.retryable or flow.attempts + 1 >= self.settings.attempts:
            raise error
        if flow.begun and not self.settings.resume:
            raise error
        if not flow.lost(replica, self.replicas):
            raise error
        logger.info("The replica %s lost a generation: %s: %s", replica.name, error.kind, error.message)
        if flow.begun:
            replica.counts.resumes += 1
        else:
            replica.counts.retries += 1

    async def _breathe(self, flow: Flow) -> None:
        """A pause where the next attempt can only go where the last ones went."""
        if not self.balancer.elsewhere(flow.place):
            await asyncio.sleep(RETRY_SECONDS * 2 ** (flow.attempts - 1))

    def _remember(self, flow: Flow, replica: Replica) -> None:
        """The answer is cached too, for the conversation's next turn."""
        if len(self.replicas) < 2:
            return
        whole = (*flow.request.prompt_token_ids, *flow.generated)
        self.balancer.prefixes.add(chain_of(flow.request.tenant, whole), replica.number)

    # control

    async def pause(self, request_id: str) -> bool:
        flow = self._flows.get(request_id)
        if flow is None or flow.paused:
            return flow is not None
        return await self._switch(flow, "paused")

    async def resume(self, request_id: str) -> bool:
        flow = self._flows.get(request_id)
        if flow is None or not flow.paused:
            return flow is not None
        return await self._switch(flow, "resumed")

    async def _switch(self, flow: Flow, action: Action) -> bool:
        """Pause or resume, on the replica or, where there is none, for the next one."""
        attempt = self._attempts.get(flow)
        if attempt is not None and not attempt.replica.engine.info.supports_pause:
            return False
        pausing = action == "paused"
        flow.paused = pausing
        flow.owed.append(action)
        flow.changed.set()
        if attempt is None:
            return True
        attempt.hush(pausing)
        engine, name = attempt.replica.engine, attempt.request_id
        done = await attempt.tell(lambda: engine.pause(name) if pausing else engine.resume(name))
        return done or self._taken_back(flow, attempt, action, lambda: setattr(flow, "paused", not pausing))

    def _taken_back(self, flow: Flow, attempt: Attempt, action: Action, undo: Callable[[], None]) -> bool:
        """The engine would not. If it was lost meanwhile, what was asked holds for the next one."""
        if self._attempts.get(flow) is not attempt:
            return flow.request.request_id in self._flows
        undo()
        if action in flow.owed:
            flow.owed.remove(action)
        attempt.hush(flow.paused)
        return False

    async def modify(self, request_id: str, changes: dict[str, Any]) -> bool:
        flow = self._flows.get(request_id)
        if flow is None:
            return False
        before = flow.request
        after = msgspec.structs.replace(before, sampling=changed_sampling(before.sampling, changes))
        attempt = self._attempts.get(flow)
        if attempt is not None and not attempt.replica.engine.info.supports_modify:
            return False
        flow.request = after
        flow.owed.append("modified")
        if attempt is None:
            flow.changed.set()
            return True
        return await self._modify(flow, attempt, before, changes)

    async def _modify(self, flow: Flow, attempt: Attempt, before: GenerationRequest, changes: dict[str, Any]) -> bool:
        engine, name = attempt.replica.engine, attempt.request_id

        def undo() -> None:
            flow.request = before

        command: Callable[[], Awaitable[bool]] = lambda: engine.modify(name, changes)  # noqa: E731
        try:
            done = await attempt.tell(command)
        except EngineError:
            self._taken_back(flow, attempt, "modified", undo)
            raise
        return done or self._taken_back(flow, attempt, "modified", undo)

    # for operators

    def drain(self, name: str, draining: bool = True) -> bool:
        """Give the replica no more generations, or give it some again; those under way are not disturbed. False if
        there is no such replica."""
        found = [replica for replica in self.replicas if replica.name == name]
        for replica in found:
            replica.draining = draining
        self.balancer.dispatch()
        return bool(found)

    def describe(self) -> list[dict[str, Any]]:
        """Every replica as an operator sees it."""
        now = self._now()
        return [described(replica, now) for replica in self.replicas]

    def metrics(self) -> dict[str, float]:
        """The replicas' own gauges and counters together: shares as their mean, all else as their sum."""
        read = [replica.engine.metrics() for replica in self.replicas if replica.healthy]
        together: dict[str, float] = {"num_replicas": float(len(self.replicas))}
        for name in sorted({name for values in read for name in values}):
            values = [each[name] for each in read if name in each]
            total = sum(values)
            together[name] = total / len(values) if name.endswith("_perc") else total
        together["replica_queue_waiting"] = float(self.balancer.waiting)
        return together


def _closed() -> EngineError:
    return EngineError("unavailable", "The engine was closed.", retryable=True)
