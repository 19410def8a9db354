"""Controls of a run: pause, resume, modify, and stops that arrive before their run does.

A control also applies to the run's later generations. A stop on one connection may overtake its run on another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import Engine
from events.options import OptionError, SamplingParams


class Controls:
    """One run's controls. Generations attach while they run; a control between two generations applies to the next."""

    def __init__(self) -> None:
        self._generating: dict[str, Engine] = {}
        self._room: dict[str, int] = {}
        self._resumed: asyncio.Event | None = None  # while the run is paused
        self._changes: dict[str, object] = {}

    @property
    def paused(self) -> bool:
        return self._resumed is not None

    async def pause(self) -> bool:
        """Hold back all tokens until `resume`. Return False if an engine cannot pause."""
        self._resumed = self._resumed or asyncio.Event()
        answers = [await engine.pause(request_id) for request_id, engine in list(self._generating.items())]
        return all(answers)

    async def resume(self) -> bool:
        resumed, self._resumed = self._resumed, None
        if resumed is not None:
            resumed.set()
        answers = [await engine.resume(request_id) for request_id, engine in list(self._generating.items())]
        return all(answers)

    async def modify(self, changes: dict[str, object]) -> bool:
        """Change sampling parameters by name. `max_tokens` is reduced to what the context leaves each answer.

        Raises RequestError("invalid_request") for an unknown name or value.
        """
        checked = check_changes(changes)
        self._changes.update(checked)
        answers = []
        for request_id, engine in list(self._generating.items()):
            fitted, room = dict(checked), self._room.get(request_id)
            if "max_tokens" in fitted and room:
                asked = fitted["max_tokens"]
                fitted["max_tokens"] = min(asked, room) if isinstance(asked, int) else room
            answers.append(await engine.modify(request_id, fitted))
        return all(answers)

    async def gate(self) -> None:
        """Wait while the run is paused."""
        if self._resumed is not None:
            await self._resumed.wait()

    def attach(self, request_id: str, engine: Engine, room: int = 0) -> None:
        """Apply controls to a generation from now on. room: the most tokens its answer may have; 0 means no limit."""
        self._generating[request_id] = engine
        if room:
            self._room[request_id] = room

    def detach(self, request_id: str) -> None:
        self._generating.pop(request_id, None)
        self._room.pop(request_id, None)

    def sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Return the sampling parameters with all changes so far."""
        return msgspec.structs.replace(sampling, **self._changes) if self._changes else sampling


def check_changes(changes: dict[str, object]) -> dict[str, object]:
    """Convert changes to the types of SamplingParams. Raises RequestError("invalid_request")."""
    unknown = sorted(set(changes) - set(SamplingParams.__struct_fields__))
    if unknown:
        raise RequestError("invalid_request", f"Unknown sampling parameter {str(unknown[0])!r}.", str(unknown[0]))
    try:
        params = msgspec.convert(changes, SamplingParams)
        params.validate()
    except msgspec.ValidationError as error:
        raise RequestError("invalid_request", f"A changed parameter has the wrong type: {error}") from error
    except OptionError as error:
        raise RequestError("invalid_request", str(error), error.param) from error
    return {name: getattr(params, name) for name in changes}


EARLY_SECONDS = 30.0
MOST = 1024


class EarlyStops:
    """Stops for runs that have not started yet: the latest MOST of each tenant, for EARLY_SECONDS.

    The limit is per tenant so that no tenant can displace another's stops.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stops: dict[str, dict[str, float]] = {}

    def add(self, tenant: str, run_id: str) -> None:
        # Tenants are ordered by their newest stop, so expired ones are the first.
        while self._stops:
            oldest, their_stops = next(iter(self._stops.items()))
            if their_stops and next(reversed(their_stops.values())) > self._clock():
                break
            del self._stops[oldest]
        stops = self._stops.pop(tenant, {})
        stops.pop(run_id, None)
        stops[run_id] = self._clock() + EARLY_SECONDS
        # Stops may name runs that never start, so the oldest are dropped.
        if len(stops) > MOST:
            del stops[next(iter(stops))]
        self._stops[tenant] = stops  # at the end of the dict, since its newest stop is the newest of all

    def take(self, tenant: str, run_id: str) -> bool:
        """Return whether this run was already stopped, and forget that stop."""
        return self._stops.get(tenant, {}).pop(run_id, 0.0) > self._clock()
