"""The contract over a real vLLM on the CPU: `make test-vllm`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.contract.contract import Contract, Target
from tests.contract.engines import started, upstream
from tests.contract.real_vllm import VLLM, vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[VLLM]:
    with vllm(["--enable-scale-out"]) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["vllm", "vllm-tokens"])
async def target(request: pytest.FixtureRequest, server: VLLM) -> AsyncIterator[Target]:
    forced = "" if request.param == "vllm" else f"{request.param}+"
    async with started(upstream(forced + server.url)) as engine:
        assert engine.dialect == request.param
        yield Target(engine, lambda: asyncio.to_thread(server.running))


@pytest.mark.asyncio(loop_scope="module")
class TestContract(Contract):
    pass
