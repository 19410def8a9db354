"""Real coding agents do whole tasks over a model that follows a script: read, edit, run, finish; go on; stop; try again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import httpx
import pytest

from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from tests.clients.agents import AGENTS, FOLDER, Call, CodingAgent, Session
from tests.server import Running, scripted, serving

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]
CONTEXT = 32_768


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> CodingAgent:
    if not (FOLDER / "node_modules").is_dir():
        pytest.fail("The coding agents are not installed: run `make test-clients`.")
    return AGENTS[request.param]


class Model:
    """Answers a request that has tools with the next of its scripts, and one without (for a title) with "Colours"."""

    def __init__(self, scripts: Sequence[Script]) -> None:
        self.scripts = [*scripts]
        self.requests: list[GenerationRequest] = []
        self.read: Callable[[Sequence[int]], str] = lambda ids: ""
        """Text of token ids; the server's own, once it is there."""
        self.engine: ScriptedEngine = scripted(self.answer, context_length=CONTEXT)

    def answer(self, request: GenerationRequest) -> Script:
        if "<tools>" not in self.read(request.prompt_token_ids):
            return Script(text="Colours")
        self.requests.append(request)
        return self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]

    def prompt(self, index: int = -1) -> str:
        return self.read(self.requests[index].prompt_token_ids)


def call(made: Call) -> Script:
    return Script(text=f"<tool_call>\n{json.dumps({'name': made[0], 'arguments': made[1]})}\n</tool_call>")


@contextlib.asynccontextmanager
async def connected(agent: CodingAgent, folder: Path, model: Model) -> AsyncIterator[tuple[Session, Running]]:
    async with serving(model.engine, max_context=CONTEXT) as running:
        model.read = running.server.model.prompts.detokenize
        session = Session(agent, folder, running.url, running.server.model.name)
        (session.project / "colours.txt").write_text("colour = red\n", "utf-8")
        yield session, running


@pytest.mark.cell("edit task", "resume")
async def test_a_task_is_done_and_the_session_goes_on(agent: CodingAgent, tmp_path: Path) -> None:
    model = Model([])
    async with connected(agent, tmp_path, model) as (session, _):
        file = session.project / "colours.txt"
        calls = agent.edits(file, "red", "blue")
        model.scripts = [*map(call, calls), Script(text="The colour is blue now.")]
        said = await session.run("Make the colour blue.")
        assert file.read_text("utf-8") == "colour = blue\n"
        assert "The colour is blue now." in said
        assert "colour = blue" in model.prompt() and len(model.requests) == len(calls) + 1
        model.scripts = [Script(text="It was red before.")]
        assert "It was red before." in await session.run("What was it before?", goes_on=True)
    assert model.prompt().index("Make the colour blue.") < model.prompt().index("What was it before?")


@pytest.mark.cell("stop")
async def test_an_agent_that_is_stopped_leaves_no_run(agent: CodingAgent, tmp_path: Path) -> None:
    model = Model([Script(text="word " * 20_000, delay=0.01)])
    async with connected(agent, tmp_path, model) as (session, running):
        process = await session.start("Count.")
        async with asyncio.timeout(60):
            while not model.requests:
                await asyncio.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.communicate(), 20)
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.communicate()
        async with asyncio.timeout(20):
            async with httpx.AsyncClient(base_url=running.url) as client:
                while (await client.get("/load")).json()["server_load"]:
                    await asyncio.sleep(0.05)


@pytest.mark.cell("429")
async def test_an_overloaded_server_is_asked_again(agent: CodingAgent, tmp_path: Path) -> None:
    busy = Script(text="x", fault=Fault(action="error", kind="rate_limited", message="Busy.", retryable=True))
    model = Model([busy, Script(text="Here I am.")])
    async with connected(agent, tmp_path, model) as (session, _):
        assert "Here I am." in await session.run("Hello?")


@pytest.mark.cell("dropped stream")
async def test_a_stream_that_breaks_off_does_not_hang_the_agent(agent: CodingAgent, tmp_path: Path) -> None:
    broken = Script(text="Half an answer", fault=Fault(action="crash", after=2))
    model = Model([broken, Script(text="A whole answer.")])
    async with connected(agent, tmp_path, model) as (session, _):
        said = await session.run("Hello?")
    assert "A whole answer." in said or "error" in said.lower()


@pytest.mark.cell("context full")
async def test_a_full_context_does_not_hang_the_agent(agent: CodingAgent, tmp_path: Path) -> None:
    """The agent compacts the conversation and asks again, or ends with the server's error."""
    refusal = Fault(action="error", kind="context_length_exceeded", message="The prompt exceeds the context.")
    model = Model([Script(text="x", fault=refusal), Script(text="A whole answer.")])
    async with connected(agent, tmp_path, model) as (session, _):
        said = await session.run("Hello?")
    assert "A whole answer." in said or "context" in said.lower()
