"""A real server on a free port, in the test's own event loop: what HTTP tests and the real clients talk to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import uvicorn

from agent_server.agents import Agent
from agent_server.cli.serve import web_config
from agent_server.engine_protocol.detokenizer import TokenizerVocabulary
from agent_server.engines.scripted import Script, ScriptedEngine, Scripts
from agent_server.http.app import build_app
from agent_server.http.assemble import build_server
from agent_server.http.server import BUNDLED, Server
from agent_server.model_files import load_model_files
from agent_server.settings import Settings
from tests.dictated import ENGINE, engine_class

READY_SECONDS = 60.0


def settings(**changes: Any) -> Settings:
    """Settings that touch nothing of the machine: no file, no environment, an in-memory store."""
    base: dict[str, Any] = {
        "store_url": "memory",
        "engine": (ENGINE,) if ENGINE else (),
        "engine_process": False,
        "grace": 0.5,
        "drain": 2.0,
        "container_names": False,
    }
    return Settings(_env_file=None, **{**base, **changes})


def scripted(scripts: Scripts | Iterable[Script] | str, **options: Any) -> ScriptedEngine:
    """A scripted engine in the bundled model's tokens; a string is one script's text, repeated for every request. It
    says that it keeps to grammars, as the embedded one does: its scripts are what a grammar would have let through."""
    if isinstance(scripts, str):
        scripts = (Script(text=scripts),)
    vocabulary = TokenizerVocabulary(load_model_files(BUNDLED).tokenizer)
    return engine_class()(scripts, vocabulary=vocabulary, model="scripted", **{"supports_constraints": True, **options})


class Running:
    """A server that answers at `url`."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url

    @property
    def engine(self) -> Any:
        return self.server.model.engine


@contextlib.asynccontextmanager
async def serving(
    engine: Any = None, *, agents: Sequence[Agent] = (), ready: bool = True, local: bool = False, **changes: Any
) -> AsyncIterator[Running]:
    """Start a server, wait until its model is ready, and shut it down afterwards. local: its models are computed here,
    also where the other tests run over an upstream."""
    if local:
        changes["engine"] = ()
    server = build_server(settings(**changes), agents=agents, engine=engine)
    listener = socket.socket(proto=socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(2048)
    listener.setblocking(False)
    config = web_config(build_app(server), server.settings, server.telemetry)
    web = _Quiet(config)
    task = asyncio.create_task(web.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(READY_SECONDS):
            while not web.started or (ready and not server.model.ready):
                if task.done() or (ready and server.failed):
                    raise RuntimeError(f"the server did not start: {server.model.status.message}")
                await asyncio.sleep(0.01)
        yield Running(server, f"http://127.0.0.1:{listener.getsockname()[1]}")
    finally:
        web.should_exit = True
        await task
        listener.close()


class _Quiet(uvicorn.Server):
    """Leaves the process's signal handlers alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


ROOT = Path(__file__).parents[1]
