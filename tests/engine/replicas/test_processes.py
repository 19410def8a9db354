"""Two real workers behind a real gateway, one of them killed in mid-stream: nobody sees it in the events."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.engine.replicas.processes import gateway, metrics, worker
from tests.engine.replicas.runs import joined, resumed, run_all

GREEDY = {"temperature": 0, "max_tokens": 300, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 11, "max_tokens": 300, "ignore_eos": True, "presence_penalty": 0.5}
RUNS = [GREEDY] * 6 + [SEEDED] * 6

pytestmark = pytest.mark.timeout(300)


def killing(url, processes, after):
    """Once so many events have come: kill the worker that is at the most generations."""

    async def disturb(events):
        while events() < after:
            await asyncio.sleep(0.005)
        in_flight = await asyncio.to_thread(metrics, url, "replica_requests_in_flight")
        busiest = max(in_flight, key=lambda name: in_flight[name])
        assert in_flight[busiest] > 1
        await asyncio.to_thread(processes[busiest].kill)

    return disturb


async def test_a_worker_killed_in_mid_stream_is_not_seen_in_the_events():
    with worker() as (first, one), worker() as (second, two), gateway(one, two, AGENT_SERVER_DEMO="false") as (_, url):
        processes = {one.rpartition("/")[2]: first, two.rpartition("/")[2]: second}
        undisturbed = await run_all(url, RUNS)
        assert all(events[-1]["type"] == "RUN_FINISHED" for events in undisturbed)
        assert sum(map(resumed, undisturbed)) == 0
        disturbed = await run_all(url, RUNS, killing(url, processes, after=300))
        for before, after in zip(undisturbed, disturbed, strict=True):
            assert joined(after) == joined(before)
        assert sum(map(resumed, disturbed)) >= 2
        assert sum(metrics(url, "replica_resumes_total").values()) == sum(map(resumed, disturbed))
        async with httpx.AsyncClient() as client:
            state = (await client.get(f"{url}/ready")).json()
        assert (state["ready"], state["state"]) == (True, "degraded")
