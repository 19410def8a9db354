"""One engine of a ReplicaSet and its bookkeeping."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent_server.engine_protocol.protocol import Engine, EngineStatus
from agent_server.engines.replicas.breaker import Breaker

READY = frozenset({"ready", "degraded"})


@dataclass(slots=True)
class ReplicaCounts:
    """Counted since the start. retries: generations that another replica began again; resumes: that another
    continued."""

    generations: int = 0
    failures: int = 0
    retries: int = 0
    resumes: int = 0


@dataclass(eq=False, slots=True)
class Replica:
    """number: its index in the set. turn: grows with each use, so that equally loaded replicas are used in turn.
    refusal: why it could not be started yet, for the operator. hopeless: starting it again would not help. starting:
    the task that starts it."""

    number: int
    name: str
    engine: Engine
    breaker: Breaker
    in_flight: int = 0
    turn: int = 0
    started: bool = False
    draining: bool = False
    refusal: str = ""
    hopeless: bool = False
    starting: asyncio.Task[None] | None = None
    counts: ReplicaCounts = field(default_factory=ReplicaCounts)

    @property
    def status(self) -> EngineStatus:
        if self.refusal and not self.started:
            return EngineStatus(state="failed" if self.hopeless else "starting", message=self.refusal)
        return self.engine.status

    @property
    def healthy(self) -> bool:
        """Whether its engine has been started and reports that it is ready."""
        return self.started and self.engine.status.state in READY

    def available(self, now: float) -> bool:
        """Whether it may get another generation, apart from the limit on how many it has."""
        return not self.draining and self.healthy and self.breaker.allows(now)

    def condition(self, now: float) -> str:
        """Its condition in one word or sentence, for the operator."""
        if self.draining:
            return "draining"
        if not self.healthy:
            status = self.status
            return f"{status.state}: {status.message}".removesuffix(": ")
        return "ready" if self.breaker.allows(now) else "left alone after failures"


def distinct(names: Sequence[str]) -> list[str]:
    """The names, with `#2`, `#3` ... appended to repeated ones."""
    seen: dict[str, int] = {}
    numbered: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        numbered.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return numbered


def described(replica: Replica, now: float) -> dict[str, object]:
    """A replica as the operator's command and route show it."""
    counts = replica.counts
    return {
        "name": replica.name,
        "condition": replica.condition(now),
        "healthy": replica.healthy,
        "draining": replica.draining,
        "circuit": replica.breaker.state,
        "inFlight": replica.in_flight,
        "generations": counts.generations,
        "failures": counts.failures,
        "retries": counts.retries,
        "resumes": counts.resumes,
    }
