"""The contract over every engine that needs nothing but this process: the fakes are real HTTP on a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from agent_server.engine_protocol.protocol import Engine
from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.upstream import parse_address
from agent_server.engines.worker.client import WorkerEngine
from agent_server.http.auth import Keys
from agent_server.http.worker_app import Worker, worker_app
from tests.contract.contract import Contract, Target
from tests.contract.engines import QUICK, embedded, listening, scripted, started, upstream
from tests.contract.fakes import llamacpp, openai, sglang, vllm, vllm_tokens
from tests.contract.fakes.common import Backend

FAKES: dict[str, Any] = {
    "vllm": vllm.app,
    "vllm-tokens": vllm_tokens.app,
    "sglang": sglang.app,
    "sglang-incremental": partial(sglang.app, cumulative=False),
    "llamacpp": llamacpp.app,
    "openai": openai.app,
}

LACKS = {
    "llamacpp": frozenset({"min_tokens", "presence_penalty", "frequency_penalty"}),
    "openai": frozenset({"min_tokens", "ignore_eos", "stop_token_ids", "repetition_penalty", "logit_bias"}),
}


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
        if name in ("worker", "replicas"):
            async with over_workers(own, name == "replicas") as engine:
                yield Target(engine, lambda: _metric(own))
            return
        backend = Backend(own)
        dialect = name.removesuffix("-incremental")
        forced = f"{dialect}+" if name == "vllm-tokens" else ""
        async with listening(FAKES[name](backend)) as url, started(upstream(forced + url)) as engine:
            assert engine.dialect == dialect
            exact, says_end = engine.info.details["ids"], name != "openai"
            yield Target(
                engine, lambda: _metric(own), exact=exact, says_end=says_end, lacks=LACKS.get(name, frozenset())
            )


@contextlib.asynccontextmanager
async def over_workers(own: Engine, several: bool) -> AsyncIterator[Engine]:
    """The engine behind a worker's HTTP, and, as a replica of itself, without it."""
    async with listening(worker_app(Worker(own), Keys(()))) as url:
        remote = WorkerEngine(parse_address(f"worker+{url}"), QUICK)
        async with started(ReplicaSet([remote, own]) if several else remote) as engine:
            yield engine


async def _metric(engine: Any) -> float:
    return float(engine.metrics().get("num_requests_running", 0.0))


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["embedded", "scripted", "worker", "replicas", *FAKES]
)
async def target(request: pytest.FixtureRequest) -> AsyncIterator[Target]:
    async with target_of(request.param) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
class TestContract(Contract):
    pass
