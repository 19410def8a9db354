"""One engine of a set, with what the set knows about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_server.engine.protocol import Engine, EngineStatus
from agent_server.engines.replicas.breaker import Breaker

READY = frozenset({"ready", "degraded"})


@dataclass(slots=True)
class Counts:
    """Since the start. retries: generations that had to be begun elsewhere; resumes: continued elsewhere."""

    generations: int = 0
    failures: int = 0
    retries: int = 0
    resumes: int = 0


@dataclass(eq=False, slots=True)
class Replica:
    """`number`: its place in the set. `refusal`: why it was never of use, so far. `starting`: the task that starts it
    and tries again."""

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
    counts: Counts = field(default_factory=Counts)

    @property
    def status(self) -> EngineStatus:
        if self.refusal and not self.started:
            return EngineStatus(state="failed" if self.hopeless else "starting", message=self.refusal)
        return self.engine.status

    @property
    def healthy(self) -> bool:
        """It is loaded and says that it works."""
        return self.started and self.engine.status.state in READY

    def available(self, now: float) -> bool:
        """It may be given another generation, but for the number that it has."""
        return not self.draining and self.healthy and self.breaker.allows(now)

    def condition(self, now: float) -> str:
        """One word or sentence for a person."""
        if self.draining:
            return "draining"
        if not self.healthy:
            status = self.status
            return f"{status.state}: {status.message}".removesuffix(": ")
        return "ready" if self.breaker.allows(now) else "left alone after failures"


def distinct(names: Sequence[str]) -> list[str]:
    """The names, numbered where one comes again."""
    seen: dict[str, int] = {}
    found: list[str] = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return found


def described(replica: Replica, now: float) -> dict[str, Any]:
    """What an operator is shown of a replica."""
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
