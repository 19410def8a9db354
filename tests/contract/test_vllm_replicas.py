"""Two real vLLM replicas behind a gateway, one killed in mid-stream: `make test-vllm`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.real_vllm import VLLM, vllm
from tests.engines.replicas.processes import gateway, metrics
from tests.engines.replicas.runs import joined, resumed, run_all
from tests.engines.replicas.test_processes import killing

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

RUNS = 50
GREEDY = {"temperature": 0, "max_tokens": 120, "ignore_eos": True}


@pytest.fixture(scope="module")
def replicas() -> Iterator[tuple[VLLM, VLLM]]:
    with vllm(ready=False) as one, vllm(ready=False) as two:
        one.wait_until_ready()
        two.wait_until_ready()
        yield one, two


class Killed:
    """Both processes of a vLLM at once, as when its machine goes away."""

    def __init__(self, server: VLLM) -> None:
        self.kill = server.end


async def test_fifty_greedy_runs_survive_the_loss_of_a_replica(replicas):
    one, two = replicas
    processes = {server.url.rpartition("/")[2]: Killed(server) for server in replicas}
    with gateway(one.url, two.url, AGENT_SERVER_DEMO="false") as (_, url):
        undisturbed = await run_all(url, [GREEDY] * RUNS)
        assert [events[-1]["type"] for events in undisturbed] == ["RUN_FINISHED"] * RUNS
        disturbed = await run_all(url, [GREEDY] * RUNS, killing(url, processes, after=1500))
        assert [events[-1]["type"] for events in disturbed] == ["RUN_FINISHED"] * RUNS
        moved = sum(map(resumed, disturbed))
        print(f"{RUNS} runs, {moved} continued on the other replica; now {metrics(url, 'replica_healthy')}")
        assert moved >= 1
        different = [n for n in range(RUNS) if joined(disturbed[n]) != joined(undisturbed[n])]
        assert not different
