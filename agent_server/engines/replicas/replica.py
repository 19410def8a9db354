"""One engine of a ReplicaSet and its bookkeeping."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from agent_server.engine_protocol.protocol import Engine, EngineStatus

State = Literal["closed", "open", "half_open"]


class Breaker:
    """closed: every generation passes. open: none passes until the cooldown is over. half_open: one generation is on
    trial; its first token closes the circuit, its failure opens it for twice as long. Times in seconds."""

    def __init__(self, failures: int, cooldown: float, longest_cooldown: float) -> None:
        self._allowed = failures
        self._first_cooldown = self._cooldown = cooldown
        self._longest = longest_cooldown
        self._failures = 0
        self._until = 0.0
        self._trying = False
        self.state: State = "closed"

    def allows(self, now: float) -> bool:
        if self.state == "closed":
            return True
        return not self._trying and (self.state == "half_open" or now >= self._until)

    def begin(self) -> bool:
        """Begin a generation that `allows` admitted. Return True if it is on trial: then its result must be reported
        with `answered`, `succeeded`, `failed` or `give_up`."""
        if self.state == "closed":
            return False
        self.state, self._trying = "half_open", True
        return True

    def give_up(self) -> None:
        """Record that the trial ended without showing whether the replica works, for example because its reader
        cancelled."""
        self._trying = False

    def record_first_token(self) -> None:
        """Record that a generation yielded its first token."""
        if self.state != "closed":
            self.state, self._trying = "closed", False
            # One token proves little: the next failure opens the circuit again at once, with the longer cooldown.
            self._failures = self._allowed - 1

    def record_success(self) -> None:
        """Record that a generation was completed, which resets the count of failures and the cooldown."""
        self.state, self._trying = "closed", False
        self._failures, self._cooldown = 0, self._first_cooldown

    def record_failure(self, now: float) -> None:
        """Record that a generation was lost."""
        # When a replica dies, all its generations fail together; only the first of them may start a cooldown.
        if self.state == "open":
            return
        self._failures += 1
        self._trying = False
        if self.state == "closed" and self._failures < self._allowed:
            return
        self._until = now + self._cooldown
        self._cooldown = min(self._longest, 2 * self._cooldown)
        self.state = "open"


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
        """Return whether it may get another generation, apart from the limit on how many it has."""
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
    """Return the names, with `#2`, `#3` ... appended to repeated ones."""
    counts: dict[str, int] = {}
    numbered: list[str] = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        numbered.append(name if counts[name] == 1 else f"{name}#{counts[name]}")
    return numbered


def described(replica: Replica, now: float) -> dict[str, object]:
    """Describe a replica for the operator's command and route."""
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


T = TypeVar("T")


class SilenceWatch:
    """Waits for the items of a generator, for each at most as long as the limit; then raises TimeoutError.

    Only the time spent waiting counts, not the time until the reader asks for the next item. Each item may be awaited
    by another task.
    """

    def __init__(self, limit: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit: float | None = limit
        self._began = 0.0
        self._waiting: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._expired = False

    def set_limit(self, limit: float | None) -> None:
        """Use another limit, counted from now; None for no limit."""
        self._limit = limit
        self._began = self._loop.time()
        self._arm()

    async def next(self, items: AsyncGenerator[T, None]) -> T:
        """Return the next item. Raises StopAsyncIteration at the end."""
        task = asyncio.current_task()
        assert task is not None
        cancelling = task.cancelling()
        self._began = self._loop.time()
        self._waiting = task
        # A timer that is already set is left alone: when it is due, it looks at `_began` and moves itself.
        if self._timer is None:
            self._arm()
        try:
            return await anext(items)
        except asyncio.CancelledError:
            # The timer cancels the task; a cancellation from elsewhere at the same time must not be swallowed.
            if self._expired and task.uncancel() <= cancelling:
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        self.close()
        if self._limit is not None:
            self._timer = self._loop.call_at(self._began + self._limit, self._due)

    def _due(self) -> None:
        """Handle the expired timer: end the wait if it has lasted for the whole limit, else set the timer for the rest
        of it."""
        self._timer = None
        if self._waiting is None or self._limit is None:
            return  # the next wait sets the timer again
        if self._loop.time() >= self._began + self._limit:
            self._expired = True
            self._waiting.cancel()
        else:
            self._arm()
