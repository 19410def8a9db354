"""Controls of a run: pause, resume, modify, and stops that arrive before their run does.

A control applies to the run's later generations as well. On several connections a stop may overtake its run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import Engine
from events.options import GenerationOptions, OptionError, SamplingParams


class Controls:
    """One run's controls. Generations attach while they run; what is asked in between applies to the next one."""

    def __init__(self) -> None:
        self._generating: dict[str, Engine] = {}
        self._room: dict[str, int] = {}
        self._resumed: asyncio.Event | None = None  # while the run is paused
        self._changes: dict[str, object] = {}

    @property
    def paused(self) -> bool:
        return self._resumed is not None

    async def pause(self) -> bool:
        """No token is delivered until `resume`. False if the engine cannot pause."""
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
        """Change sampling parameters by their names; RequestError("invalid_request") for an unknown name or value,
        and "context_length_exceeded" for a generation that would outgrow the context of its caller's key."""
        checked = check_changes(changes)
        if "max_tokens" in checked and self._room:
            asked = checked["max_tokens"]
            room = min(self._room.values())
            if not isinstance(asked, int) or asked > room:
                message = f"This key's context leaves {room} tokens to this answer at most."
                raise RequestError("context_length_exceeded", message, "max_tokens")
        self._changes.update(checked)
        answers = [await engine.modify(request_id, checked) for request_id, engine in list(self._generating.items())]
        return all(answers)

    async def gate(self) -> None:
        """Returns at once unless the run is paused."""
        if self._resumed is not None:
            await self._resumed.wait()

    def attach(self, request_id: str, engine: Engine, room: int = 0) -> None:
        """room: tokens that the caller's key leaves to the answer; 0: any."""
        self._generating[request_id] = engine
        if room:
            self._room[request_id] = room

    def detach(self, request_id: str) -> None:
        self._generating.pop(request_id, None)
        self._room.pop(request_id, None)

    def sampling(self, options: GenerationOptions) -> SamplingParams:
        """The options' sampling with every change asked for so far."""
        return msgspec.structs.replace(options.sampling, **self._changes) if self._changes else options.sampling


def check_changes(changes: dict[str, object]) -> dict[str, object]:
    """The changes with the types of SamplingParams."""
    unknown = sorted(set(changes) - set(SamplingParams.__struct_fields__))
    if unknown:
        raise RequestError("invalid_request", "This is not a sampling parameter that can be changed.", str(unknown[0]))
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
    """Keeps MOST of each tenant's latest stops for EARLY_SECONDS, so that no tenant's push out another's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._stops: dict[str, dict[str, float]] = {}

    def add(self, tenant: str, run_id: str) -> None:
        self._forget_expired()
        stops = self._stops.pop(tenant, {})
        stops.pop(run_id, None)
        stops[run_id] = self._clock() + EARLY_SECONDS
        # Stops may name runs that never come; the oldest are forgotten.
        if len(stops) > MOST:
            del stops[next(iter(stops))]
        self._stops[tenant] = stops  # last, for its newest stop is the newest of all

    def take(self, tenant: str, run_id: str) -> bool:
        """Whether this run was stopped already. It is told once."""
        return self._stops.get(tenant, {}).pop(run_id, 0.0) > self._clock()

    def _forget_expired(self) -> None:
        """Let go of tenants whose newest stop is over; they stand in the order of these."""
        while self._stops:
            tenant, stops = next(iter(self._stops.items()))
            if stops and next(reversed(stops.values())) > self._clock():
                return
            del self._stops[tenant]
