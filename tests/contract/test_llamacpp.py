"""The contract over a real llama.cpp server: `make test-llamacpp`. Its tokenizer has no words for the bundled model's,
so only ids are compared, and the check of the tokenizer is off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.contract.contract import Contract, Target
from tests.contract.engines import QUICK, started, upstream
from tests.contract.real_llamacpp import llamacpp, running
from tests.contract.test_contract import LACKS

pytestmark = [pytest.mark.llamacpp]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with llamacpp() as url:
        yield url


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(server: str) -> AsyncIterator[Target]:
    settings = QUICK.model_copy(update={"check_tokenizer": False, "idle": 30.0})
    async with started(upstream(server, settings)) as engine:
        assert engine.dialect == "llamacpp"
        yield Target(engine, lambda: asyncio.to_thread(running, server), lacks=LACKS["llamacpp"], tolerance=0.02)


@pytest.mark.asyncio(loop_scope="module")
class TestContract(Contract):
    pass
