"""MCP servers, real ones: over stdio and over streamable HTTP, alive, away, and killed in mid-call."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import httpx2
import pytest

from agent_server.agents import Agent, McpServer
from agent_server.agents.mcp.mcp_callee import McpCallee
from agent_server.certificates import ssl_context
from agent_server.engines.scripted import Script
from agent_server.runs.store import Store
from events.vocabulary import (
    ActivitySnapshot,
    InterruptOutcome,
    SuccessOutcome,
    TextMessageContent,
    ToolCallEnd,
    ToolCallResult,
)
from tests.agents.harness import House, of
from tests.agents.models import HandClock, Model, call

SERVER = str(Path(__file__).with_name("mcp_server.py"))


class Stdio:
    """A server that the agent starts itself."""

    def __init__(self, folder: Path) -> None:
        self.pid_file = folder / "pid"

    def settings(self, **more) -> McpServer:
        return McpServer(name="box", command=(sys.executable, SERVER, str(self.pid_file)), **more)

    def kill(self) -> None:
        os.kill(int(self.pid_file.read_text()), signal.SIGKILL)

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass


class Http(Stdio):
    """A server that runs by itself."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def settings(self, **more) -> McpServer:
        return McpServer(name="box", url=f"http://127.0.0.1:{self.port}/mcp", **more)

    def start(self) -> None:
        arguments = [sys.executable, SERVER, str(self.pid_file), str(self.port)]
        self.process = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                httpx.get(f"http://127.0.0.1:{self.port}/", timeout=1)
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the MCP server did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()


@pytest.fixture(params=[Stdio, Http])
def box(request, tmp_path):
    made = request.param(tmp_path)
    made.start()
    yield made
    made.stop()


def text_of(events) -> str:
    return "".join(event.delta for event in of(events, TextMessageContent))


async def test_the_tools_of_a_server_are_offered_and_called(box):
    model = Model([call("add", a=2, b=3) + call("fail") + call("picture") + call("add", a="x", b=1), "Five."])
    async with House(Agent(name="default", mcp_servers=[box.settings()]), model) as house:
        events = await house.ask("go")
    assert {"add", "hang", "fail", "picture"} <= set(model.told[0]["tools"])
    results = [event.content for event in of(events, ToolCallResult)]
    assert "5" in results
    assert any(isinstance(each, str) and "no good" in each for each in results)
    assert any(isinstance(each, str) and each.startswith("Error: Invalid arguments: a") for each in results)
    (parts,) = [each for each in results if isinstance(each, list)]
    assert parts == [
        {"type": "text", "text": "a dot"},
        {"type": "image", "source": {"type": "data", "value": "AAAA", "mimeType": "image/png"}},
    ]
    assert text_of(events) == "Five."


async def test_what_a_server_declares_read_only_is_called_while_the_model_still_writes(tmp_path, monkeypatch):
    answered: asyncio.Queue[str] = asyncio.Queue()
    answer = McpCallee.answer

    async def noted(self, arguments, context):
        result = await answer(self, arguments, context)
        answered.put_nowait(result.content)
        return result

    monkeypatch.setattr(McpCallee, "answer", noted)
    clock = HandClock()
    written = call("add", a=1, b=2) + call("look", place="here") + "And more to say."
    scripts = [Script(text=text, first_delay=1, delay=1, chunk=8) for text in (written, "Done.")]
    agent = Agent(name="default", mcp_servers=[Stdio(tmp_path).settings()])
    async with asyncio.timeout(60), House(agent, Model(scripts, clock=clock)) as house:
        run = await house.start("go")
        while len(of(run.log.snapshot(), ToolCallEnd)) < 2:
            await clock.tick()
        # the clock stands still: the model cannot end its message before the server has answered
        assert await answered.get() == "seen: here"
        assert not of(run.log.snapshot(), ToolCallResult) and answered.empty()
        while not run.finished:
            await clock.tick()
        events = await house.follow(run)
    assert [event.content for event in of(events, ToolCallResult)] == ["3", "seen: here"]
    assert answered.get_nowait() == "3" and answered.empty(), "each was called once"


async def test_a_server_killed_in_mid_call_is_that_call_s_error_and_the_run_goes_on(box):
    model = Model([call("add", a=1, b=1) + call("hang"), "It went away.", call("add", a=2, b=2), "Back."])
    async with House(Agent(name="default", mcp_servers=[box.settings()]), model) as house:
        run = await house.start("go")
        async with asyncio.timeout(30):
            seen = {}
            async for _, event in run.events():
                seen[type(event)] = event
                if ActivitySnapshot in seen and ToolCallResult in seen:
                    break
            content = seen[ActivitySnapshot].content
            assert content == {
                "toolCallId": content["toolCallId"],
                "toolName": "hang",
                "progress": 1.0,
                "total": 10.0,
                "message": "begun",
            }
            box.kill()
            events = await house.follow(run)
        (lost,) = [event for event in of(events, ToolCallResult) if event.metadata]
        assert "The MCP server box did not answer" in lost.content
        assert text_of(events) == "It went away." and isinstance(events[-1].outcome, SuccessOutcome)
        box.start()
        events = await house.ask("and now?")
        assert of(events, ToolCallResult)[0].content == "4" and text_of(events) == "Back."


@pytest.mark.parametrize("tool, said", [("stumble", "on my feet"), ("stumble_badly", "Error: The MCP server box")])
async def test_a_call_that_declares_itself_idempotent_is_made_again_when_its_server_dies(tmp_path, tool, said):
    model = Model([call(tool), "Done."])
    async with House(Agent(name="default", mcp_servers=[Stdio(tmp_path).settings()]), model) as house:
        (result,) = of(await house.ask("go"), ToolCallResult)
    assert result.content.startswith(said)


async def test_a_server_that_is_away_is_a_warning_and_its_tools_are_missing(tmp_path):
    gone = McpServer(name="gone", command=(sys.executable, "-c", "import sys; sys.exit(3)"))
    nowhere = McpServer(name="nowhere", url="http://127.0.0.1:9/mcp")
    async with House(Agent(name="default", mcp_servers=[gone, nowhere]), Model(["Alone."])) as house:
        events = await house.ask("go")
    assert text_of(events) == "Alone."
    assert [each.split()[3] for each in events[-1].metadata["warnings"]] == ["gone", "nowhere"]


async def test_certificates_are_read_once_for_all_sessions(monkeypatch):
    reads = []
    read = ssl.SSLContext.load_verify_locations

    def load(context: ssl.SSLContext, *paths) -> None:
        reads.append(paths)
        read(context, *paths)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
    # The cache of the tests would hide what the server does.
    monkeypatch.setattr(httpx2._transports.default, "create_ssl_context", httpx2.create_ssl_context)
    ssl_context.cache_clear()
    away = [McpServer(name=name, url="http://127.0.0.1:9/mcp") for name in ("one", "two")]
    async with House(Agent(name="default", mcp_servers=away), Model(["Alone."])) as house:
        await house.ask("go")
    assert len(reads) == 1


async def test_tools_may_be_chosen_renamed_and_approved(tmp_path):
    box = Stdio(tmp_path).settings(only=frozenset({"add"}), prefix="box_", requires_approval=True)
    model = Model([call("box_add", a=1, b=2), "Three."])
    async with House(Agent(name="default", mcp_servers=[box]), model, Store("sqlite://")) as house:
        events = await house.ask("go")
        assert model.told[0]["tools"] == ["box_add"]
        assert isinstance(events[-1].outcome, InterruptOutcome)
        (asked,) = events[-1].outcome.interrupts
        events = await house.resume(
            {
                "interruptId": asked.id,
                "status": "resolved",
                "payload": {"approved": True, "editedArgs": {"a": 5, "b": 5}},
            }
        )
        assert of(events, ToolCallResult)[0].content == "10"


async def test_a_server_gets_only_the_environment_it_is_given(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_HOST", "canary")
    box = Stdio(tmp_path).settings(env={"GIVEN": "yes"})
    async with House(Agent(name="default", mcp_servers=[box]), Model([call("environment"), "ok"])) as house:
        events = await house.ask("go")
    (result,) = of(events, ToolCallResult)
    assert "GIVEN" in result.content and "SECRET_OF_THE_HOST" not in result.content


async def test_a_call_that_takes_too_long_is_given_up(tmp_path):
    box = Stdio(tmp_path).settings(time_limit=0.5)
    async with House(Agent(name="default", mcp_servers=[box]), Model([call("hang"), "ok"])) as house:
        events = await house.ask("go")
    assert "longer than 0.5 s" in of(events, ToolCallResult)[0].content


def test_a_server_is_reached_in_one_way():
    for wrong in ({}, {"command": ("x",), "url": "http://x"}):
        with pytest.raises(ValueError, match="either"):
            McpServer(name="x", **wrong)
