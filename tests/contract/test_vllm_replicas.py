"""Four real vLLM replicas behind a gateway, one killed in mid-stream and one drained: `make test-vllm`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.contract.real_vllm import VLLM, vllm
from tests.engines.replicas.processes import gateway, metrics
from tests.engines.replicas.runs import body, joined, resumed, run_all

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

RUNS = 50
GREEDY = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}
SHORT = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def replicas() -> Iterator[dict[str, VLLM]]:
    """The servers by the names that the gateway gives them."""
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(vllm(ready=False)) for _ in range(4)]
        for each in started:
            each.wait_until_ready()
        yield {each.url.rpartition("/")[2]: each for each in started}


def busiest(url: str, *, but: str = "") -> str:
    in_flight = metrics(url, "replica_requests_in_flight")
    return max(in_flight.keys() - {but}, key=lambda name: in_flight[name])


async def test_fifty_greedy_runs_survive_the_loss_of_one_replica_and_the_drain_of_another(
    replicas: dict[str, VLLM],
) -> None:
    gone: list[str] = []
    with gateway(
        *(each.url for each in replicas.values()), AGENT_SERVER_DEMO="false", AGENT_SERVER_OPERATOR_KEYS="op"
    ) as (
        _,
        url,
    ):

        async def disturb(events: Callable[[], list[int]]) -> None:
            while sum(events()) < 1500:
                await asyncio.sleep(0.005)
            gone.append(await asyncio.to_thread(busiest, url))
            replicas[gone[0]].end()  # both of its processes, as when its machine goes away
            while sum(events()) < 2500:
                await asyncio.sleep(0.005)
            gone.append(await asyncio.to_thread(busiest, url, but=gone[0]))
            async with httpx.AsyncClient(headers={"x-api-key": "op"}) as client:
                drained = {"name": gone[1], "draining": True}
                assert (await client.post(f"{url}/operator/replicas", json=drained)).status_code == 200

        async with httpx.AsyncClient(timeout=60) as client:
            for number in range(8):  # a thread stays where its prompt is cached, turn after turn
                places = []
                for turn in range(3):
                    before = await asyncio.to_thread(metrics, url, "replica_generations_total")
                    long = {"id": f"m{turn}", "role": "user", "content": f"Story {number} is about the sea. " * 12}
                    asked = {**body(number + 100, SHORT), "runId": f"sticky-{number}-{turn}", "messages": [long]}
                    assert (await client.post(f"{url}/agui", json=asked)).status_code == 200
                    after = await asyncio.to_thread(metrics, url, "replica_generations_total")
                    places.append([name for name in after if after[name] > before[name]])
                assert places == [places[0]] * 3 and len(places[0]) == 1

        undisturbed = await run_all(url, [GREEDY] * RUNS)
        assert [events[-1]["type"] for events in undisturbed] == ["RUN_FINISHED"] * RUNS
        used = await asyncio.to_thread(metrics, url, "replica_generations_total")
        assert all(used[name] > 0 for name in replicas)
        disturbed = await run_all(url, [GREEDY] * RUNS, disturb)
        assert [events[-1]["type"] for events in disturbed] == ["RUN_FINISHED"] * RUNS
        moved = sum(map(resumed, disturbed))
        print(f"{RUNS} runs, {moved} continued on another replica; now {metrics(url, 'replica_healthy')}")
        assert moved >= 1
        different = [n for n in range(RUNS) if joined(disturbed[n]) != joined(undisturbed[n])]
        assert not different

        before = await asyncio.to_thread(metrics, url, "replica_generations_total")
        later = await run_all(url, [SHORT] * RUNS)
        assert [events[-1]["type"] for events in later] == ["RUN_FINISHED"] * RUNS
        after = await asyncio.to_thread(metrics, url, "replica_generations_total")
        assert {name for name in after if after[name] > before[name]} == replicas.keys() - set(gone)
