"""The contract over a real vLLM on the CPU: `make test-vllm`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from agent_server.engine_protocol.protocol import Constraint
from tests.contract.contract import SHAPES, Contract, Target
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


@pytest.fixture(scope="module")
def xgrammar_server() -> Iterator[VLLM]:
    with vllm(["--structured-outputs-config.backend", "xgrammar"]) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def xgrammar_target(xgrammar_server: VLLM) -> AsyncIterator[Target]:
    async with started(upstream(xgrammar_server.url)) as engine:
        assert engine.info.details["grammars"] == "xgrammar"
        yield Target(engine, lambda: asyncio.to_thread(xgrammar_server.running))


@pytest.mark.asyncio(loop_scope="module")
class TestGrammarsOfXGrammarAlone:
    """A vLLM that was told to use no other library: the same shapes, in its words."""

    async def test_a_required_call_is_valid(self, xgrammar_target: Target) -> None:
        await Contract().test_a_required_call_is_valid(xgrammar_target)

    @pytest.mark.parametrize("constraint", SHAPES, ids=lambda each: f"{each.kind}-{str(each.value)[:12]}")
    async def test_other_shapes_hold(self, xgrammar_target: Target, constraint: Constraint) -> None:
        await Contract().test_other_shapes_hold(xgrammar_target, constraint)
