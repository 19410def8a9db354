"""Engines for the contract that need nothing but this process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn

from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.embedded import EmbeddedEngine, EngineConfig
from agent_server.engines.scripted import Script, ScriptedEngine
from agent_server.engines.upstream import UpstreamEngine, load_model, parse_address
from agent_server.http.server import BUNDLED
from agent_server.settings import UpstreamSettings
from tests.contract import reference
from tests.server import _Quiet

QUICK = UpstreamSettings(connect=2.0, idle=5.0, first=20.0, start=20.0, health=0.2)


@contextlib.asynccontextmanager
async def embedded() -> AsyncIterator[EmbeddedEngine]:
    """The bundled model in a thread, in the reference's own precision."""
    engine = EmbeddedEngine(EngineConfig(model=str(BUNDLED), name="demo", dtype="float32", threads=1), process=False)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedEngine]:
    """What the model said, replayed with a little time between the tokens."""

    def script(request: GenerationRequest) -> Script:
        sampling = request.sampling
        count = min(sampling.max_tokens or 64, 64)
        ids = reference.greedy(request.prompt_token_ids, count, ignore_eos=sampling.ignore_eos)
        ended = ids[-1] in reference.files().stop_token_ids and not sampling.ignore_eos
        return Script(tokens=tuple(ids[:-1] if ended else ids), reason="stop" if ended else None, delay=0.001)

    vocabulary = TokenizerVocabulary(reference.files().tokenizer)
    engine = ScriptedEngine(script, vocabulary=vocabulary, model="demo", context_length=reference.CONTEXT)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def listening(app: Any) -> AsyncIterator[str]:
    """The app's address, on a socket of its own."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    listener.setblocking(False)
    web = _Quiet(uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1))
    task = asyncio.create_task(web.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        web.should_exit = True
        await task
        listener.close()


def upstream(url: str, settings: UpstreamSettings = QUICK) -> UpstreamEngine:
    """The engine of an upstream that serves the bundled model, with the tokenizer on this side."""
    return UpstreamEngine(parse_address(url), lambda: load_model(str(BUNDLED), "demo"), settings)


@contextlib.asynccontextmanager
async def started(engine: Any) -> AsyncIterator[Any]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
