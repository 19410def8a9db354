"""Work that strangers and single tenants ask for again and again leaves time between its pieces for everyone else."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from agent_server.fair_slots import FairSlots
from agent_server.http.middleware.connections import TURN_SECONDS, Connections
from agent_server.settings import ConnectionLimits
from tests.engines.replicas.virtual import run

LIMITS = ConnectionLimits()


def test_turns_are_apart_whether_they_are_asked_for_at_once_or_in_a_row():
    async def begun(*, at_once: bool) -> list[float]:
        loop, connections, times = asyncio.get_running_loop(), Connections(LIMITS), []
        for _ in range(5):
            done = asyncio.Event()

            def turn(done: asyncio.Event = done) -> None:
                times.append(loop.time())
                done.set()

            connections.take_turn(turn)
            if not at_once:
                await done.wait()
        await done.wait()
        return times

    for at_once in (True, False):
        times = run(begun(at_once=at_once))
        assert times[0] < TURN_SECONDS, "the first waits for nothing"
        assert all(TURN_SECONDS <= after - before < 2 * TURN_SECONDS for before, after in pairwise(times))


def test_a_slot_rests_after_it_was_held_and_a_short_hold_needs_no_rest():
    async def begun(rest: float) -> list[float]:
        loop, slots, times = asyncio.get_running_loop(), FairSlots(1), []

        async def hold(tenant: str) -> None:
            async with slots.hold(tenant) as held:
                times.append(loop.time())
                held.rest = rest

        await asyncio.gather(hold("a"), hold("a"), hold("b"))
        return times

    assert run(begun(0.0))[-1] < 1
    first, second, third = run(begun(10.0))
    assert 10 <= second - first < 11 and 10 <= third - second < 11
