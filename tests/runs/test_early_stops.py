"""Stops that come before their runs."""

from __future__ import annotations

from agent_server.runs.controls import EARLY_SECONDS, MOST, EarlyStops
from tests.runs.agents import OPTIONS, ask, forever, manager_of


def test_one_tenant_s_stops_push_out_no_other_s():
    stops = EarlyStops(lambda: 0.0)
    stops.add("a", "mine")
    for number in range(MOST + 1):
        stops.add("b", f"r{number}")
    assert stops.take("a", "mine") and not stops.take("a", "mine")
    assert not stops.take("b", "r0") and stops.take("b", "r1")


def test_stops_and_tenants_that_are_over_are_forgotten():
    now = [0.0]
    stops = EarlyStops(lambda: now[0])
    stops.add("a", "r")
    now[0] = EARLY_SECONDS
    assert not stops.take("a", "r")
    stops.add("b", "r")
    assert list(stops._stops) == ["b"]


async def test_a_run_that_was_stopped_early_ends_whatever_other_tenants_stop():
    manager = manager_of(forever)
    manager.stop_early("r1", "a")
    for number in range(MOST + 1):
        manager.stop_early(f"other{number}", "b")
    run = await manager.start(ask(), OPTIONS, tenant="a")
    assert run.stopped_by == "cancelled"
    await run.wait()
    await manager.close(drain=0.0)
