"""Starts replicas, checks them at intervals, and sums up their state and abilities."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import msgspec

from agent_server.engine_protocol.protocol import EngineError, EngineInfo, EngineStatus
from agent_server.engines.replicas.balancer import Balancer
from agent_server.engines.replicas.replica import Replica
from agent_server.settings import ReplicaSettings

logger = logging.getLogger("agent_server.replicas")
RESTART_SECONDS = 30.0
"""The longest pause before a replica is started again."""
MAX_NAMED = 8
"""Replicas that a status message names."""


class Supervisor:
    """Starts replicas, repeatedly where that may help, and lets the balancer check its queue at intervals."""

    def __init__(
        self, replicas: Sequence[Replica], settings: ReplicaSettings, balancer: Balancer, now: Callable[[], float]
    ) -> None:
        self._replicas = replicas
        self._settings = settings
        self._balancer = balancer
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self._settled = asyncio.Event()
        self._combined_infos: list[EngineInfo] = []
        self._info: EngineInfo | None = None
        self._conditions: dict[str, str] = {}

    async def start(self) -> None:
        """Start all replicas. Returns when one is ready; the others continue to start in the background. Raises
        EngineError if none can ever become ready."""
        self._tasks = [asyncio.create_task(self._keep_starting(replica)) for replica in self._replicas]
        self._tasks.append(asyncio.create_task(self._check()))
        await self._settled.wait()
        if not any(replica.started for replica in self._replicas):
            raise EngineError("unavailable", self._reasons(self._now()) or "There are no replicas.")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._settled.set()

    async def _keep_starting(self, replica: Replica) -> None:
        pause = self._settings.check
        while not replica.started and not replica.hopeless:
            try:
                await replica.engine.start()
                # Accept a started engine.
                size = replica.engine.info.vocab_size
                other = next((each for each in self._replicas if each.started), None)
                if other is not None and other.engine.info.vocab_size != size:
                    message = (
                        f"Its vocabulary has {size} tokens, that of {other.name} has {other.engine.info.vocab_size}: "
                        "all engines must serve the same model."
                    )
                    raise EngineError("invalid_request", message)
                replica.started = True
            except EngineError as error:
                replica.refusal, replica.hopeless = error.message, not error.retryable
            except Exception as error:
                # An error that is not an EngineError is a bug or a wrong installation, which time does not mend.
                logger.exception("The replica %s cannot be started.", replica.name)
                replica.refusal, replica.hopeless = f"It cannot be started: {error}", True
            if not replica.started and not replica.hopeless:
                await asyncio.sleep(pause)
                pause = min(RESTART_SECONDS, 2 * pause)
        if replica.started or all(each.hopeless for each in self._replicas):
            self._settled.set()
        self._balancer.dispatch()

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(self._settings.check)
            self._balancer.tick()
            # Log replicas whose condition changed, and forget what those had cached that are not healthy any more.
            now = self._now()
            for replica in self._replicas:
                condition, before = replica.condition(now), self._conditions.get(replica.name)
                self._conditions[replica.name] = condition
                if condition == before:
                    continue
                level = logging.INFO if condition in ("ready", "draining") else logging.WARNING
                logger.log(level, "The replica %s is %s", replica.name, condition)
                if before is not None and not replica.healthy:
                    self._balancer.prefixes.forget(replica.number)

    # the replicas as one engine

    @property
    def info(self) -> EngineInfo:
        infos = [replica.engine.info for replica in self._replicas if replica.started]
        if not infos:
            raise EngineError("unavailable", self._reasons(self._now()), retryable=True)
        # The engines' infos are compared by identity: this is read for every request, and a worker's info may change.
        if self._info is None or [id(each) for each in infos] != [id(each) for each in self._combined_infos]:
            self._combined_infos, self._info = infos, common(infos)
        return self._info

    def status(self, now: float) -> EngineStatus:
        usable = [replica for replica in self._replicas if replica.available(now)]
        if len(usable) == len(self._replicas):
            return EngineStatus(state="ready", progress=1.0)
        if usable:
            message = f"{len(usable)} of {len(self._replicas)} replicas are ready. {self._reasons(now)}"
            return EngineStatus(state="degraded", message=message)
        if self._replicas and all(replica.hopeless for replica in self._replicas):
            return EngineStatus(state="failed", message=self._reasons(now))
        statuses = [replica.status for replica in self._replicas]
        progress = max((s.progress for s in statuses if s.state == "loading" and s.progress is not None), default=None)
        loading = any(status.state == "loading" for status in statuses)
        message = f"No replica is ready. {self._reasons(now)}"
        return EngineStatus(state="loading" if loading else "starting", progress=progress, message=message)

    def _reasons(self, now: float) -> str:
        absent = [f"{r.name}: {r.condition(now)}" for r in self._replicas if not r.available(now)]
        more = [f"and {len(absent) - MAX_NAMED} more"] if len(absent) > MAX_NAMED else []
        return "; ".join(absent[:MAX_NAMED] + more)


def common(infos: Sequence[EngineInfo]) -> EngineInfo:
    """Return the capabilities that all engines have in common, so that a generation may go to any of them."""
    continues = {info.continues for info in infos}
    return msgspec.structs.replace(
        infos[0],
        context_length=min(info.context_length for info in infos),
        sampling=frozenset.intersection(*(info.sampling for info in infos)),
        supports_constraints=all(info.supports_constraints for info in infos),
        supports_pause=all(info.supports_pause for info in infos),
        tells_progress=all(info.tells_progress for info in infos),
        supports_modify=all(info.supports_modify for info in infos),
        continues=next(word for word in ("no", "plain", "exact") if word in continues),
    )
