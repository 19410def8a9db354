"""Two real workers behind a real gateway, one of them killed in mid-stream: the events do not show it."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.engines.replicas.processes import gateway, metrics, workers
from tests.engines.replicas.runs import joined, resumed, run_all

# A run makes at least 35 events, however long: what a model says after its end is mostly control tokens, unseen. Runs
# are disturbed once each has said something: one that has not is asked anew elsewhere, which is not a resumption.
GREEDY = {"temperature": 0, "max_tokens": 300, "ignore_eos": True}
SEEDED = {"temperature": 1.0, "seed": 11, "max_tokens": 300, "ignore_eos": True, "presence_penalty": 0.5}
RUNS = [GREEDY] * 6 + [SEEDED] * 6

pytestmark = pytest.mark.timeout(300)


def killing(url, processes, after):
    """Once so many events of every run have come: kill the worker that is at the most generations."""

    async def disturb(events):
        while min(events()) < after:
            await asyncio.sleep(0.005)
        in_flight = await asyncio.to_thread(metrics, url, "replica_requests_in_flight")
        busiest = max(in_flight, key=lambda name: in_flight[name])
        assert in_flight[busiest] > 1
        await asyncio.to_thread(processes[busiest].kill)

    return disturb


async def test_a_worker_killed_in_mid_stream_is_not_seen_in_the_events():
    with workers(2) as two, gateway(*two, AGENT_SERVER_DEMO="false") as (_, url):
        processes = {address.rpartition("/")[2]: process for address, process in two.items()}
        undisturbed = await run_all(url, RUNS)
        assert all(events[-1]["type"] == "RUN_FINISHED" for events in undisturbed)
        assert sum(map(resumed, undisturbed)) == 0
        disturbed = await run_all(url, RUNS, killing(url, processes, after=10))
        for before, after in zip(undisturbed, disturbed, strict=True):
            assert joined(after) == joined(before)
        assert sum(map(resumed, disturbed)) >= 2
        assert sum(metrics(url, "replica_resumes_total").values()) == sum(map(resumed, disturbed))
        async with httpx.AsyncClient() as client:
            state = (await client.get(f"{url}/ready")).json()
        assert (state["ready"], state["state"]) == (True, "degraded")


@pytest.mark.slow
async def test_a_worker_that_is_told_to_stop_hands_its_runs_on():
    """SIGTERM: what is not done within the drain time goes on elsewhere, and the worker ends properly."""
    with workers(2, drain="0.2") as two, gateway(*two, AGENT_SERVER_DEMO="false") as (_, url):
        processes = {address.rpartition("/")[2]: process for address, process in two.items()}
        stopped = []

        async def disturb(events):
            while min(events()) < 10:
                await asyncio.sleep(0.005)
            in_flight = await asyncio.to_thread(metrics, url, "replica_requests_in_flight")
            busiest = processes[max(in_flight, key=lambda name: in_flight[name])]
            busiest.terminate()
            stopped.append(busiest)

        runs = [{**GREEDY, "max_tokens": 1500}] * 6  # not over before the worker hears of it
        events = await run_all(url, runs, disturb)
        assert [each[-1]["type"] for each in events] == ["RUN_FINISHED"] * 6
        assert sum(map(resumed, events)) >= 1
        assert await asyncio.to_thread(stopped[0].process.wait, 30) == 0
