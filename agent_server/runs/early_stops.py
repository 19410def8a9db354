"""Stops that came before their runs: on one connection a stop may overtake the run that came on another."""

from __future__ import annotations

import time
from collections.abc import Callable

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
