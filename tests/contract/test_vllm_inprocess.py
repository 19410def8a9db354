"""The contract over vLLM in this very process, in an environment that has both: `make test-vllm-inprocess`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agent_server.engines.upstream import load_model
from agent_server.engines.vllm_inprocess import VLLMEngine
from agent_server.http.server import BUNDLED
from tests.contract.contract import Contract, Target
from tests.contract.engines import started

pytestmark = [pytest.mark.vllm_inprocess, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
ARGUMENTS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 4096}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Target]:
    made = VLLMEngine(lambda: load_model(str(BUNDLED), "demo"), ARGUMENTS)
    async with started(made) as engine:

        async def running() -> float:
            """What vLLM's own output processor still waits for."""
            return float(made._llm.output_processor.get_num_unfinished_requests())

        yield Target(engine, running)


@pytest.mark.asyncio(loop_scope="module")
class TestContract(Contract):
    pass
