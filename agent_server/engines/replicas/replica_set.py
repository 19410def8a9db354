"""Several engines used as one, so that a generation outlives the engine that began it.

A generation that fails before its first token begins again on another replica. One that fails later continues on
another replica from the tokens so far, if an engine can do that. Its reader sees neither a gap nor a repetition;
Finished counts how often it moved. A generation that its reader cancelled is not tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent_server.engine_protocol.protocol import (
    Engine,
    EngineError,
    EngineInfo,
    EngineItem,
    EngineStatus,
    Finished,
    GenerationRequest,
    changed_sampling,
)
from agent_server.engines.replicas.attempt import Action, Attempt, Flow
from agent_server.engines.replicas.balancer import Balancer, ReplicaNeed, chain_of
from agent_server.engines.replicas.replica import Breaker, Replica, described
from agent_server.engines.replicas.supervision import Supervisor
from agent_server.settings import ReplicaSettings

logger = logging.getLogger("agent_server.replicas")
RETRY_SECONDS = 0.1
"""The pause before a generation returns to a replica that lost it because there is no other; doubled each time."""


class ReplicaSet:
    """engines: must serve the same model. names: shown to operators, by default the engines' numbers. now: a clock, in
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
        failures, cooldowns = self.settings.failures, (self.settings.cooldown, self.settings.longest_cooldown)
        self.replicas = [
            Replica(number, names[number] if names else str(number), engine, Breaker(failures, *cooldowns))
            for number, engine in enumerate(engines)
        ]
        self.balancer = Balancer(self.replicas, self.settings, self._now)
        self._supervisor = Supervisor(self.replicas, self.settings, self.balancer, self._now)
        self._flows: dict[str, Flow] = {}
        self._attempts: dict[Flow, Attempt] = {}
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        """The capabilities that all started replicas have in common, with the shortest of their context lengths."""
        return self._supervisor.info

    @property
    def status(self) -> EngineStatus:
        """ "degraded" while some replicas cannot be used, not ready while none can."""
        return EngineStatus(state="stopped") if self._closed else self._supervisor.status(self._now())

    async def start(self) -> None:
        """Start all replicas. Returns when one is ready, while the others are still starting. Raises EngineError if
        none can ever become ready."""
        await self._supervisor.start()

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._supervisor.close()
        self.balancer.fail(_closed())
        # Paused generations without a replica wait for this event; they see the closed set and end.
        for flow in self._flows.values():
            flow.changed.set()
        await asyncio.gather(*(replica.engine.close() for replica in self.replicas), return_exceptions=True)

    # generating

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[EngineItem, None]:
        if self._closed:
            raise _closed()
        if request.request_id in self._flows:
            raise EngineError("invalid_request", f"A generation {request.request_id} is already running.")
        several = len(self.replicas) > 1
        place = ReplicaNeed(chain_of(request.tenant, request.prompt_token_ids) if several else ())
        flow = Flow(request, place, self._now(), list(request.generated))
        if request.generated:
            flow.require_continuation()
        self._flows[request.request_id] = flow
        try:
            while True:
                # Between attempts a paused generation waits here and takes no replica.
                while flow.paused or flow.owed:
                    for control in flow.acknowledgements():
                        yield control
                    # Wait until the generation, which has no replica, is resumed or has an acknowledgement to yield.
                    while flow.paused and not flow.owed:
                        flow.changed.clear()
                        await flow.changed.wait()
                        if self._closed:
                            raise _closed()
                attempt = await self._attempt(flow)
                if attempt is None:
                    continue  # paused while it waited for a replica
                try:
                    # Commands that arrived while it waited already apply to this attempt, so its engine will not
                    # acknowledge them.
                    for control in flow.acknowledgements():
                        yield control
                    while True:
                        item = await attempt.next()
                        yield item
                        if isinstance(item, Finished):
                            if len(self.replicas) > 1:  # the next prompt of the conversation begins with these
                                whole = (*flow.request.prompt_token_ids, *flow.generated)
                                chain = chain_of(flow.request.tenant, whole)
                                self.balancer.prefixes.add(chain, attempt.replica.number)
                            return
                except EngineError as error:
                    self._count_or_raise(flow, attempt, error)
                finally:
                    self._attempts.pop(flow, None)
                    try:
                        await attempt.close()
                    finally:
                        self.balancer.release(attempt.replica)
                # Pause before the next attempt if only replicas that lost the generation can take it.
                if not self.balancer.elsewhere(flow.place):
                    await asyncio.sleep(RETRY_SECONDS * 2 ** (flow.attempts - 1))
        finally:
            del self._flows[request.request_id]

    async def _attempt(self, flow: Flow) -> Attempt | None:
        """Begin the next attempt as soon as a replica has a free slot. None if the generation was paused meanwhile."""
        replica = await self.balancer.acquire(flow.place)
        if flow.paused:
            self.balancer.release(replica)
            return None
        if flow.placed is None:
            flow.placed = self._now()
        try:
            attempt = self._attempts[flow] = Attempt(flow, replica, self.settings, self._now)
        except BaseException:  # no attempt exists that would release the replica when it is closed
            self.balancer.release(replica)
            raise
        return attempt

    def _count_or_raise(self, flow: Flow, attempt: Attempt, error: EngineError) -> None:
        """Count the failure, and raise the error unless another attempt may follow."""
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
        """Pause or resume on the replica; without one, the next attempt begins in that state."""
        attempt = self._attempts.get(flow)
        if attempt is not None and not attempt.replica.engine.info.supports_pause:
            return False
        pausing = action == "paused"
        # The state is set before the engine is called: if the engine is lost meanwhile, the next attempt must respect
        # it.
        flow.paused = pausing
        flow.owed.append(action)
        flow.changed.set()
        if attempt is None:
            return True
        attempt.set_paused(pausing)
        engine, name = attempt.replica.engine, attempt.request_id
        done = await attempt.tell(lambda: engine.pause(name) if pausing else engine.resume(name))
        return done or self._undo_unless_lost(flow, attempt, action, lambda: setattr(flow, "paused", not pausing))

    def _undo_unless_lost(self, flow: Flow, attempt: Attempt, action: Action, undo: Callable[[], None]) -> bool:
        """Undo a command that the engine did not execute. If the engine was lost meanwhile, the command stays in effect
        for the next attempt; returns whether the generation then still runs."""
        if self._attempts.get(flow) is not attempt:
            return flow.request.request_id in self._flows
        undo()
        if action in flow.owed:
            flow.owed.remove(action)
        attempt.set_paused(flow.paused)
        return False

    async def modify(self, request_id: str, changes: dict[str, object]) -> bool:
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
        engine, name = attempt.replica.engine, attempt.request_id

        def undo() -> None:
            flow.request = before

        try:
            done = await attempt.tell(lambda: engine.modify(name, changes))
        except EngineError:
            self._undo_unless_lost(flow, attempt, "modified", undo)
            raise
        return done or self._undo_unless_lost(flow, attempt, "modified", undo)

    # for operators

    def drain(self, name: str, draining: bool = True) -> bool:
        """Stop or resume giving generations to the replica; those that it has continue. Return False if no replica has
        this name."""
        named = [replica for replica in self.replicas if replica.name == name]
        for replica in named:
            replica.draining = draining
        self.balancer.dispatch()
        return bool(named)

    def describe(self) -> list[dict[str, Any]]:
        """Describe all replicas for the operator's command and route."""
        now = self._now()
        return [described(replica, now) for replica in self.replicas]

    def metrics(self) -> dict[str, float]:
        """Return the combined metrics of all healthy replicas: the mean of shares (`_perc`), the sum of all others."""
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


PREFIX = "agent_server:replica_"
CIRCUITS = ("closed", "half_open", "open")


class ReplicaCollector(Collector):
    """Reads a ReplicaSet whenever Prometheus scrapes."""

    def __init__(self, replicas: ReplicaSet) -> None:
        self._set = replicas

    def collect(self) -> Iterable[Metric]:
        rows = self._set.describe()
        gauges = {
            "requests_in_flight": ("Generations that the replica is working on", "inFlight"),
            "healthy": ("1 while the replica is loaded and answers", "healthy"),
            "draining": ("1 while an operator keeps new generations away", "draining"),
        }
        counters = {
            "generations": ("Generations given to the replica", "generations"),
            "failures": ("Generations that the replica lost", "failures"),
            "retries": ("Generations begun again elsewhere before their first token", "retries"),
            "resumes": ("Generations continued elsewhere after their first token", "resumes"),
        }
        for name, (text, key) in gauges.items():
            yield _family(GaugeMetricFamily(PREFIX + name, text, labels=["replica"]), rows, key)
        for name, (text, key) in counters.items():
            yield _family(CounterMetricFamily(PREFIX + name, text, labels=["replica"]), rows, key)
        # One gauge for each state of the circuit; that of the present state is 1, the others are 0.
        circuits = GaugeMetricFamily(PREFIX + "circuit", "1 for the state of the circuit", labels=["replica", "state"])
        for row in rows:
            for state in CIRCUITS:
                circuits.add_metric([str(row["name"]), state], float(row["circuit"] == state))
        yield circuits


def _family(family: GaugeMetricFamily | CounterMetricFamily, rows: list[dict[str, Any]], key: str) -> Metric:
    for row in rows:
        family.add_metric([str(row["name"])], float(row[key]))
    return family
