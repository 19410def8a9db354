"""Real coding agents do whole tasks over a model that follows a script: read, edit, run, finish; go on; stop; try again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from agent_server.engines.scripted import Fault, Script
from tests.clients.agents import AGENTS, FOLDER, CodingAgent
from tests.clients.model import Model, call, connected

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]


@pytest.fixture(params=AGENTS)
def agent(request: pytest.FixtureRequest) -> CodingAgent:
    if not (FOLDER / "node_modules").is_dir():
        pytest.fail("The coding agents are not installed: run `make test-clients`.")
    return AGENTS[request.param]


@pytest.mark.cell("edit task", "resume")
async def test_a_task_is_done_and_the_session_goes_on(agent: CodingAgent, tmp_path: Path) -> None:
    model = Model([])
    async with connected(agent, tmp_path, model) as (session, _, _):
        file = session.project / "colours.txt"
        calls = agent.edits(file, "red", "blue")
        model.scripts = [*map(call, calls), Script(text="The colour is blue now.")]
        said = await session.run("Make the colour blue.")
        assert file.read_text("utf-8") == "colour = blue\n", said
        assert "The colour is blue now." in said
        assert "colour = blue" in model.prompt() and len(model.requests) == len(calls) + 1
        if "resume" in agent.lacks:
            return
        model.scripts = [Script(text="It was red before.")]
        assert "It was red before." in await session.run("What was it before?", goes_on=True)
    assert model.prompt().index("Make the colour blue.") < model.prompt().index("What was it before?")


@pytest.mark.cell("stop")
async def test_an_agent_that_is_stopped_leaves_no_run(agent: CodingAgent, tmp_path: Path) -> None:
    model = Model([Script(text="word " * 20_000, delay=0.01)])
    async with connected(agent, tmp_path, model) as (session, running, _):
        process = await session.start("Count to a million.")
        async with asyncio.timeout(60):
            while not model.requests:
                await asyncio.sleep(0.05)
        await session.interrupt(process)
        async with asyncio.timeout(20):
            async with httpx.AsyncClient(base_url=running.url) as client:
                while (await client.get("/load")).json()["server_load"]:
                    await asyncio.sleep(0.05)


@pytest.mark.cell("image")
async def test_a_picture_reaches_the_model(agent: CodingAgent, tmp_path: Path) -> None:
    if "image" in agent.lacks:
        pytest.skip(agent.lacks["image"])
    model = Model([], sees=True)
    async with connected(agent, tmp_path, model) as (session, _, _):
        file = session.project / "square.png"
        Image.new("RGB", (64, 64), "red").save(file)
        model.scripts = [call(agent.picture(file)), Script(text="It is red.")]
        assert "It is red." in await session.run("Which colour is in square.png?")
    (picture,) = model.requests[-1].pictures
    assert (picture.width, picture.height) == (64, 64)


@pytest.mark.cell("tool search")
@pytest.mark.parametrize("agent", [name for name, agent in AGENTS.items() if agent.search], indirect=True)
async def test_a_deferred_tool_is_found_and_called(agent: CodingAgent, tmp_path: Path) -> None:
    model = Model([])
    async with connected(agent, tmp_path, model, paint=True) as (session, _, _):
        calls = [session.when_paint_is_there, *agent.search]
        model.scripts = [*map(call, calls), Script(text="Purple it is.")]
        assert "Purple it is." in await session.run("Mix red and blue.")
    assert "Mix two colours of paint." not in model.prompt(0).partition("</tools>")[0]
    assert "Mix two colours of paint." in model.prompt(2)
    assert "red and blue give purple." in model.prompt()


@pytest.mark.cell("429")
async def test_an_overloaded_server_is_asked_again(agent: CodingAgent, tmp_path: Path) -> None:
    kind: Any = "rate_limited"  # as the server's own limits have it
    busy = Script(text="x", fault=Fault(action="error", kind=kind, message="Busy.", retryable=True))
    model = Model([busy, Script(text="Here I am.")])
    async with connected(agent, tmp_path, model) as (session, _, tap):
        assert "Here I am." in await session.run("Hello, are you there?")
    assert 429 in [exchange.status for exchange in tap.exchanges]


@pytest.mark.cell("dropped stream")
async def test_a_stream_that_breaks_off_does_not_hang_the_agent(agent: CodingAgent, tmp_path: Path) -> None:
    broken = Script(text="Half an answer", fault=Fault(action="crash", after=2))
    model = Model([broken, Script(text="A whole answer.")])
    async with connected(agent, tmp_path, model) as (session, _, _):
        said = await session.run("Hello, are you there?")
    assert model.requests
    assert any(end in said.lower() for end in ("a whole answer.", "error", "failed to complete"))


KNOWN = "The file has lines about colours."
"""What the summary of the conversation says, in the tags that Qwen Code asks for."""
TOO_LONG = "The prompt is too long"
ENDS = {
    "codex": "ran out of room in the model's context window", "continue": TOO_LONG, "copilot": TOO_LONG,
    "qwen": TOO_LONG,
}  # fmt: skip
"""What agents say that do not know the context and end where it is full. Copilot and Qwen Code ask for a summary of all
first, which is too long as well."""


@pytest.mark.cell("context full")
@pytest.mark.parametrize("knows", [True, False], ids=["known", "unknown"])
async def test_a_conversation_outgrows_the_context(agent: CodingAgent, tmp_path: Path, knows: bool) -> None:
    """The model reads a long file again and again. An agent that knows the context compacts the conversation in time;
    one that does not is refused, knows from that that the context is full, and compacts the conversation then."""
    commands = [f"cat long.txt # {time} times" for time in range(2, 40)]  # agents stop a model that repeats itself
    model = Model([*map(call, map(agent.shell, commands))], context=40_000)

    longest = 0

    def decide(prompt: str) -> Script | None:
        nonlocal longest
        longest = max(longest, len(prompt))
        if KNOWN in prompt or ("<tools>" in prompt and len(prompt) < 0.6 * longest):
            return Script(text="All done.")
        is_asked = "summar" in prompt.rpartition("<|im_start|>user")[2].lower()
        return Script(text=f"<state_snapshot>{KNOWN}</state_snapshot>") if is_asked else None

    async with connected(agent, tmp_path, model, knows=knows, whole=False) as (session, running, tap):
        model.decide = decide
        lines: list[str] = []
        while len(running.server.model.prompts.tokenize("\n".join(lines))) < 7_000:
            lines += [f"{len(lines)}: the sky is blue and the grass is green" for _ in range(20)]
        (session.project / "long.txt").write_text("\n".join(lines), "utf-8")
        said = await session.run("Read long.txt until you know it.")
        print(agent.name, knows, len(tap.refusals), [len(each.prompt_token_ids) for each in model.requests])
        assert knows or tap.refusals
        end = "All done." if knows else ENDS.get(agent.name, "All done.")
        assert end in said, said[-2000:]
