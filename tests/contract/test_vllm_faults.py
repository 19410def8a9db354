"""Every way in which a real vLLM was seen to fail, produced for real, and seen as what it is: `make test-vllm`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from agent_server.engine_protocol.protocol import Delta, EngineError
from agent_server.engines.upstream import UpstreamEngine
from agent_server.settings import UpstreamSettings
from tests.contract import reference
from tests.contract.contract import answer, asked
from tests.contract.engines import listening, started, upstream
from tests.contract.real_vllm import VLLM, vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
IDLE = 4.0
SETTINGS = UpstreamSettings(connect=2.0, idle=IDLE, first=20.0, start=20.0, health=0.5)


@pytest.fixture
def doomed() -> Iterator[VLLM]:
    """A server of the test's own, to be broken."""
    with vllm() as server:
        yield server


@pytest.fixture(scope="module")
def lasting() -> Iterator[VLLM]:
    """A server for faults that it survives."""
    with vllm(["--enable-scale-out"]) as server:
        yield server


async def broken_by(engine: UpstreamEngine, harm: object, tokens: int = 5) -> tuple[EngineError, int]:
    """The error of a stream that is harmed after some tokens, and the tokens before it."""
    stream = engine.generate(asked(reference.endless(), max_tokens=3000))
    seen = 0
    while seen < tokens:
        item = await anext(stream)
        assert isinstance(item, Delta)
        seen += len(item.tokens)
    await asyncio.to_thread(harm)  # type: ignore[arg-type]
    with pytest.raises(EngineError) as raised:
        async for item in stream:
            assert isinstance(item, Delta), "there is no success"
            seen += len(item.tokens)
    return raised.value, seen


async def until_unready(engine: UpstreamEngine) -> None:
    async with asyncio.timeout(30):
        while engine.status.state != "starting":
            await asyncio.sleep(0.1)


async def test_a_worker_that_is_killed(doomed: VLLM) -> None:
    """An error frame, `[DONE]` and a clean end under the status 200; then the server exits."""
    async with started(upstream(doomed.url, SETTINGS)) as engine:
        error, seen = await broken_by(engine, lambda: doomed.signal(signal.SIGKILL, doomed.worker))
        assert (error.kind, error.retryable) == ("connection", True)
        assert seen >= 5
        await until_unready(engine)
        with pytest.raises(EngineError) as raised:
            await answer(engine, asked(reference.prompt()))
        assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)


async def test_a_server_that_is_killed(doomed: VLLM) -> None:
    """A chunked body that breaks off."""
    async with started(upstream(doomed.url, SETTINGS)) as engine:
        error, seen = await broken_by(engine, lambda: doomed.signal(signal.SIGKILL))
        assert (error.kind, error.retryable) == ("connection", True)
        assert seen >= 5


async def test_a_server_that_is_terminated(doomed: VLLM) -> None:
    """It stops sending and does not end: only the idle time-out tells, unless the server ends by itself."""
    async with started(upstream(doomed.url, SETTINGS)) as engine:
        error, _ = await broken_by(engine, lambda: doomed.signal(signal.SIGTERM))
        assert error.kind in ("timeout", "connection") and error.retryable


async def test_a_server_that_stands_still(doomed: VLLM) -> None:
    """Stopped as by a debugger: connections stay open, and nothing comes."""
    # With an hour for the first token, only the question about its health can end the request that is made below.
    async with started(upstream(doomed.url, SETTINGS.model_copy(update={"first": 3600.0}))) as engine:
        error, _ = await broken_by(engine, lambda: doomed.signal(signal.SIGSTOP))
        assert (error.kind, error.retryable) == ("timeout", True)
        await until_unready(engine)
        with pytest.raises(EngineError) as raised:
            await answer(engine, asked(reference.prompt()))
        assert raised.value.retryable and raised.value.kind in ("timeout", "unavailable")
        doomed.signal(signal.SIGCONT)
        async with asyncio.timeout(60):
            while engine.status.state != "ready":
                await asyncio.sleep(0.1)
        assert (await answer(engine, asked(reference.prompt(), max_tokens=4))).end.reason == "length"


async def test_an_id_that_does_not_exist(lasting: VLLM) -> None:
    """An error frame under the status 200. Our own check is told a larger vocabulary, so that it is vLLM's that
    answers."""
    async with started(upstream(lasting.url, SETTINGS)) as engine:
        engine._info = msgspec.structs.replace(engine.info, vocab_size=1_000_000)
        with pytest.raises(EngineError, match="out of vocabulary") as raised:
            await answer(engine, asked((5, 99_999)))
        assert (raised.value.kind, raised.value.retryable) == ("invalid_request", False)


async def test_a_prompt_that_vllm_finds_too_long(lasting: VLLM) -> None:
    async with started(upstream(lasting.url, SETTINGS)) as engine:
        engine._info = msgspec.structs.replace(engine.info, context_length=1_000_000)
        with pytest.raises(EngineError) as raised:
            await answer(engine, asked((5,) * 5000, max_tokens=5))
        assert (raised.value.kind, raised.value.retryable) == ("context_length_exceeded", False)


async def test_an_abort_by_another_client(lasting: VLLM) -> None:
    """vLLM's own abort, from another client: the finish reason is "abort"."""
    async with started(upstream("vllm-tokens+" + lasting.url, SETTINGS)) as engine:

        def abort() -> None:
            for prefix in ("generate-tokens-", ""):
                ids = [f"{prefix}{name}" for name in engine._streams]
                httpx.post(f"{lasting.url}/inference/v1/abort_requests", json={"request_ids": ids}, timeout=5)

        error, _ = await broken_by(engine, abort)
        assert (error.kind, error.retryable) == ("connection", True)
        assert "abort" in error.message


async def test_an_end_without_a_finish_reason(lasting: VLLM) -> None:
    """A real vLLM's stream, ended cleanly too early by what stands between: `[DONE]` and all."""

    async def passed(request: Request) -> Response:
        async with httpx.AsyncClient(timeout=30) as client:
            body = await request.body() or None
            headers = {"content-type": "application/json"}
            target = lasting.url + request.url.path
            found = await client.request(request.method, target, content=body, headers=headers)
        return Response(found.content, found.status_code, media_type=found.headers.get("content-type"))

    async def completions(request: Request) -> Response:
        body = await request.json()
        if not body.get("stream") or body["max_tokens"] == 1:
            return await passed(request)
        return StreamingResponse(cut(body), media_type="text/event-stream")

    async def cut(body: dict[str, object]) -> AsyncIterator[bytes]:
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{lasting.url}/v1/completions", json=body) as found,
        ):
            lines = [line async for line in found.aiter_lines() if line.startswith("data: {")]
        for line in lines[:6]:
            yield line.encode() + b"\n\n"
        yield b"data: [DONE]\n\n"

    routes = [Route("/v1/completions", completions, methods=["POST"])]
    routes += [
        Route(path, passed, methods=["GET", "POST"]) for path in ("/health", "/version", "/v1/models", "/tokenize")
    ]
    async with listening(Starlette(routes=routes)) as url, started(upstream(url, SETTINGS)) as engine:
        with pytest.raises(EngineError, match="without a finish reason") as raised:
            await answer(engine, asked(reference.prompt(), max_tokens=20))
        assert (raised.value.kind, raised.value.retryable) == ("connection", True)


async def test_another_model_is_noticed_at_the_start(lasting: VLLM) -> None:
    """Our side has one more word than vLLM's: the probe's last id does not exist there."""
    from agent_server.engine_protocol.detokenizer import ByteVocabulary
    from agent_server.engines.upstream import load_model, parse_address
    from agent_server.http.server import BUNDLED

    other = msgspec.structs.replace(load_model(str(BUNDLED), "demo"), vocabulary=ByteVocabulary())
    engine = UpstreamEngine(parse_address(lasting.url), lambda: other, SETTINGS)
    with pytest.raises(EngineError, match="tokenizer is not that of") as raised:
        await engine.start()
    assert not raised.value.retryable and engine.status.state == "failed"
