"""The contract over every engine that needs nothing but this process: the fakes are real HTTP on a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.contract.contract import Contract, Target
from tests.contract.engines import embedded, listening, scripted, started, upstream
from tests.contract.fakes import vllm
from tests.contract.fakes.common import Backend

FAKES: dict[str, Any] = {"vllm": vllm.app}


@contextlib.asynccontextmanager
async def target_of(name: str) -> AsyncIterator[Target]:
    if name == "scripted":
        async with scripted() as engine:
            yield Target(engine, lambda: _metric(engine), model=False, says_end=False)
        return
    async with embedded() as own:
        if name == "embedded":
            yield Target(own, lambda: _metric(own))
            return
        backend = Backend(own)
        async with listening(FAKES[name](backend)) as url, started(upstream(url)) as engine:
            assert engine.dialect == name
            yield Target(engine, lambda: _metric(own), exact=engine.info.details["ids"])


async def _metric(engine: Any) -> float:
    return float(engine.metrics().get("num_requests_running", 0.0))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["embedded", "scripted", *FAKES])
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    async with target_of(request.param) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
class TestContract(Contract):
    pass
