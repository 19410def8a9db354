"""MCP servers that misbehave each in their own way, a healthy one with the SDK's own server beside each: its tools work,
and no run ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.server.mcpserver import Context, MCPServer

from agent_server.agents import Agent, ClientCredentials, McpServer
from agent_server.agents.mcp import guarded_client, listing, sessions
from agent_server.runs.store import Store
from agent_server.user import NOBODY
from events.vocabulary import InterruptOutcome, SuccessOutcome, ToolCallResult
from tests.agents.app_server import in_this_process
from tests.agents.bad_mcp_server import RAW, RESULTS, TOOLS, HttpServer
from tests.agents.harness import House, of
from tests.agents.models import Model, call
from tests.agents.test_mcp import Http, text_of
from tests.slow import slow

BAD = str(Path(__file__).with_name("bad_mcp_server.py"))


class Case(msgspec.Struct, frozen=True):
    """What is left of a bad server. odd: what its odd tool's result matches; "" where it has none. warns: what the
    run's warnings match; "" for none. fine: its other tool works. time_limit: of its calls. hangs: it is waited for."""

    odd: str = "well"
    warns: str = ""
    fine: bool = True
    time_limit: float = 20
    hangs: bool = False


CASES = {
    "schema with a foreign reference": Case(
        odd="'query' is a required property", warns="The arguments of odd do not fit its schema"
    ),
    "schema that requires itself": Case(
        odd="'a' is a required property", warns="The arguments of odd do not fit its schema"
    ),
    "schema nested too deeply": Case(),
    "schema that is too large": Case(warns="odd: its inputSchema is offered in part: it has more than"),
    "schema without a type": Case(),
    "schema of another type": Case(warns="odd: its inputSchema has the type 'string'"),
    "schema that is a text": Case(warns="odd: its inputSchema is no object"),
    "properties as a list": Case(warns="odd: its inputSchema's properties are no object"),
    "pattern that takes forever": Case(),
    "no schema": Case(),
    "no name": Case(odd="", warns="the tool number 2 is left out: it has no name"),
    "unprintable name": Case(odd="", warns="left out: its name is longer than 128 characters, or"),
    "fields of wrong types": Case(warns="odd: fields that do not fit the protocol are ignored"),
    "two tools of one name": Case(warns="the tool odd is left out: there is another tool of that name"),
    "a name of another server": Case(odd="", warns="Two tools are called add"),
    "a description of megabytes": Case(warns="odd: its description is cut"),
    "unlike its output schema": Case(warns=r"The result of odd \(MCP server bad\): it does not fit the tool's outputSchema"),
    "without structured content": Case(warns="no structured content, although"),
    "structured content as a list": Case(odd=r"\[1, ?2\]", warns="its structuredContent is no object"),
    "unknown content": Case(odd="(?s)well.*video3d", warns="type 'video3d' is shown as JSON"),
    "content without its fields": Case(odd="plain", warns="is shown as JSON"),
    "content as a text": Case(warns="its content is no list"),
    "no content": Case(odd="^$"),
    "null": Case(odd="^$"),
    "a list": Case(),
    "an old result": Case(odd='{"well": true}', warns="its content is no list"),
    "wrong flags": Case(),
    "half a surrogate pair": Case(odd=r"^a\ufffdz \\ud83d \U0001f600$"),
    "no UTF-8": Case(odd="^a\ufffd\ufffdz$"),
    "no jsonrpc field": Case(),
    "the id as a text": Case(),
    "a batch": Case(),
    "a batch of two": Case(),
    "the id of no request": Case(),
    "no id": Case(odd="odd was refused: out of paper"),
    "error and result": Case(),
    "an error that is a text": Case(odd="odd was refused: out of paper"),
    "an error of its own code": Case(odd="odd was refused: out of paper"),
    "no JSON": Case(odd="odd was refused: .*(cannot be read|Failed to parse)"),
    "nested too deeply": Case(odd="odd was refused: .*(cannot be read|Failed to parse)"),
    "not a number": Case(odd="(?i)n.*(nan|null)"),
}  # fmt: skip
STDIO = {
    **CASES,
    "the id of no request": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "no id": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "a tool that is gone": Case(odd="odd was refused: Unknown tool: odd"),
    "megabytes of result": Case(odd="odd was refused: .*has more than"),
    "a list that hangs": Case(odd="", fine=False, warns=r"bad is not available \(it has not answered yet\)", hangs=True),
    "pages that hang": Case(warns="its list of tools took longer", hangs=True),
    "never shakes hands": Case(odd="", fine=False, warns="bad is not available", hangs=True),
    "pages without end": Case(warns="its list of tools is too long", odd=""),
    "empty pages without end": Case(warns="its list of tools has more than 100 pages"),
    "one page again and again": Case(warns="its list of tools repeats itself"),
    "megabytes of tools": Case(odd="", fine=False, warns="could not list its tools: .*has more than"),
    "tools as an object": Case(odd="", fine=False, warns="the list of tools is no list"),
    "a list that is refused": Case(odd="", fine=False, warns="could not list its tools: database away"),
    "a handshake without its fields": Case(),
    "dies at once": Case(odd="", fine=False, warns=r"bad is not available \(it could not be reached\)"),
    "prints a banner": Case(),
    "floods stderr": Case(),
    "a line without an end": Case(),
    "ends at a first message it does not know": Case(),
    "binary on its output": Case(),
    "words before an answer": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "every answer twice": Case(),
    "ends in the middle of an answer": Case(odd="bad did not answer: the server went away", fine=False),
    "progress without end": Case(odd="odd took longer than 1 s", time_limit=1),
    "dies in the call": Case(odd="The MCP server bad did not answer: the server went away", fine=False),
    "closes its output in the call": Case(odd="bad did not answer: the server went away", fine=False),
    "hangs in the call": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "floods with progress": Case(),
    "floods with notifications": Case(),
    "says without end that its tools changed": Case(),
    "asks the client without end": Case(),
}  # fmt: skip
HTTP = {
    **{name: CASES[name] for name in (*RESULTS, *RAW)},
    **{f"{name} (events)": CASES[name] for name in RAW if name not in ("no JSON", "nested too deeply")},
    "an error page for everything": Case(odd="", fine=False, warns="bad is not available"),
    "a redirect to nowhere": Case(odd="", fine=False, warns="bad is not available"),
    "a text instead of JSON": Case(odd="odd was refused: Unexpected content type"),
    "an error page for a call": Case(odd="odd was refused: Server returned an error response"),
    "an answer without end": Case(odd="odd was refused: .*more than"),
    "events without an answer": Case(odd="bad did not answer"),
    "an answer that is cut off": Case(odd="odd was refused: .*cut off"),
    "hangs in the call": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "a tool that is gone": Case(odd="odd was refused: Unknown tool: odd"),
    "a redirect of every request": Case(),
    "a redirect to itself": Case(odd="odd was refused: Redirect to .* not followed"),
    "a token for everything": Case(odd="", fine=False, warns="bad is not available"),
    "a call that wants a token": Case(odd="odd was refused: Server returned an error response"),
    "accepted and never answered": Case(odd="odd was refused: server answered a request with 202"),
    "no content": Case(odd="odd was refused: Failed to parse"),
    "a compressed bomb": Case(odd="odd was refused: .*has more than"),
    "a session id beyond ASCII": Case(odd="", fine=False, warns="bad is not available"),
    "heartbeats without end": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "progress without end (events)": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "streams that end at once": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A real server, made with the SDK."""
    server = Http(tmp_path_factory.mktemp("healthy"))
    server.start()
    yield McpServer(name="healthy", url=server.settings().url)
    server.stop()


async def check(case: Case, bad: McpServer, healthy: McpServer, patched: pytest.MonkeyPatch) -> None:
    # Of two tools of one name the first is offered.
    servers = [healthy, bad] if "Two tools" in case.warns else [bad, healthy]
    calls = call("add", a=2, b=3) + call("odd") * bool(case.odd) + call("fine") * case.fine
    agent = Agent(name="default", mcp_servers=servers)
    async with asyncio.timeout(60), House(agent, Model([calls, "Done."])) as house:
        await (
            house.served["default"].mcp.connection_for(healthy, NOBODY).tools(30)
        )  # it is ready however busy this machine is
        if case.hangs:
            patched.setattr(listing, "LIST_SECONDS", 1.0)
            patched.setattr(sessions, "WAIT_SECONDS", 20.0 if case.fine else 0.5)
        events = await house.ask("go")
    content = [each.content for each in of(events, ToolCallResult)]
    results = [each if isinstance(each, str) else "\n".join(part["text"] for part in each) for each in content]
    assert results[0] == "5", "the healthy server's tool works"
    assert text_of(events) == "Done." and isinstance(events[-1].outcome, SuccessOutcome), "the run does not end"
    if case.odd:
        assert re.search(case.odd, results[1]), results[1][:500]
    if case.fine:
        assert results[-1] == "fine"
    warnings = "\n".join((events[-1].metadata or {}).get("warnings", ()))
    assert re.search(case.warns, warnings) if case.warns else not warnings, warnings[:1000]


SAME = [kind for kind in CASES if STDIO[kind] is CASES[kind]]
"""What a server does alike over both transports is tried over HTTP."""


@pytest.mark.parametrize("kind", [*(kind for kind in STDIO if kind not in SAME), *slow(SAME)])
async def test_a_bad_server_over_stdio_spoils_nothing_but_itself(kind, healthy, monkeypatch):
    case = STDIO[kind]
    bad = McpServer(name="bad", command=(sys.executable, BAD, kind), time_limit=case.time_limit)
    await check(case, bad, healthy, monkeypatch)


@pytest.mark.parametrize("kind", HTTP)
async def test_a_bad_server_over_http_spoils_nothing_but_itself(kind, healthy, monkeypatch):
    case, server = HTTP[kind], HttpServer(kind)
    try:
        bad = McpServer(name="bad", url=server.url, time_limit=case.time_limit)
        await check(case, bad, healthy, monkeypatch)
    finally:
        server.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def calling(kind: str, *calls: str, **more: Any) -> AsyncIterator[tuple[HttpServer, House]]:
    """A bad server over HTTP, and an agent that makes these calls."""
    server = HttpServer(kind)
    bad = McpServer(name="bad", url=server.url, **more)
    try:
        async with House(Agent(name="default", mcp_servers=[bad]), Model([*calls, "Done."])) as house:
            yield server, house
    finally:
        server.close()


@pytest.mark.parametrize("kind", ["heartbeats without end", "progress without end (events)"])
async def test_what_a_call_that_was_given_up_still_streams_is_not_read_on(kind):
    async with calling(kind, call("odd") + call("odd"), time_limit=0.5) as (server, house):
        await house.ask("go")
        assert server.calls == ["odd", "odd"]
        await until(lambda: not server.streams)


async def test_streams_that_end_at_once_are_not_opened_again_and_again():
    async with calling("streams that end at once", call("odd"), time_limit=1) as (server, house):
        await house.ask("go")
        made = [each for each in server.requests if each.startswith("GET")]
        # One stream for the call, and one for what the server has to say.
        assert 2 < len(made) < 40


async def test_a_notification_that_hangs_holds_nothing_else_for_long(monkeypatch):
    monkeypatch.setattr(guarded_client, "BRIEF_SECONDS", 0.1)
    async with calling("notifications that hang", call("odd"), call("fine"), time_limit=2) as (_, house):
        results = of(await house.ask("go"), ToolCallResult)
    assert [each.content for each in results] == ["Error: odd took longer than 2 s.", "fine"]


async def test_a_redirect_takes_nothing_to_another_host():
    other, secret = HttpServer("fine"), {"authorization": "Bearer secret"}
    async with calling("a redirect to another host", call("odd"), headers=secret) as (server, house):
        server.elsewhere = other.url
        (result,) = of(await house.ask("go"), ToolCallResult)
    other.close()
    assert re.search("odd was refused: Redirect to .* not followed", result.content)
    assert other.requests == []


async def test_metadata_without_end_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr(sessions, "OPEN_SECONDS", 5.0)
    oauth = ClientCredentials(client_id="a", client_secret="b", issuer="https://login.example")
    async with calling("metadata without end", oauth=oauth) as (server, house):
        await house.ask("go")
        await until(lambda: not server.streams)
    assert ".well-known" in server.requests[-1]
    assert 0 < server.written < 40 * 2**20


async def test_a_server_that_asks_a_person_without_end_fills_no_memory(caplog, tmp_path):
    bad = McpServer(name="bad", command=(sys.executable, BAD, "asks a person without end"))
    model, store = Model([call("odd"), "Done."]), Store(f"sqlite:///{tmp_path}/store.db")
    with caplog.at_level(logging.INFO, logger="agent_server.mcp"):
        async with House(Agent(name="default", mcp_servers=[bad]), model, store) as house:
            events = await house.ask("go")
            assert isinstance(events[-1].outcome, InterruptOutcome)
            assert events[-1].outcome.interrupts[0].message == "Which day, 0?"
            await until(lambda: "900 questions were cancelled" in caplog.text)


async def expired(kind: str, healthy: McpServer) -> tuple[HttpServer, list[str]]:
    """The results of two runs between which the server forgets its sessions."""
    server = HttpServer(kind)
    agent = Agent(name="default", mcp_servers=[McpServer(name="bad", url=server.url), healthy])
    both = call("fine") + call("add", a=2, b=3)
    try:
        async with asyncio.timeout(60), House(agent, Model([both, "One.", both, "Two."])) as house:
            first = of(await house.ask("go"), ToolCallResult)
            server.sessions.clear()
            second = of(await house.ask("again"), ToolCallResult)
    finally:
        server.close()
    return server, [each.content for each in (*first, *second)]


@pytest.mark.parametrize("kind", ["an expired session", "an expired session, answered with 400"])
async def test_an_expired_session_is_begun_anew_and_the_call_is_made_on_it(kind, healthy):
    server, results = await expired(kind, healthy)
    assert results == ["fine", "5", "fine", "5"]
    assert server.begun == 2 and server.calls == ["fine", "fine"], "one new session, and each call was made once"


async def test_a_failed_call_ends_no_other_that_is_under_way(tmp_path):
    bad = McpServer(name="bad", command=(sys.executable, BAD, "an error of its own code"))
    agent = Agent(name="default", mcp_servers=[bad])
    async with (
        asyncio.timeout(60),
        House(agent, Model([call("odd") + call("fine"), "One.", call("fine"), "Two."])) as house,
    ):
        first = of(await house.ask("go"), ToolCallResult)
        session = house.served["default"]._mcp["default"].connections[0]._session
        second = of(await house.ask("again"), ToolCallResult)
        assert house.served["default"]._mcp["default"].connections[0]._session is session, "it was not restarted"
    assert [each.content for each in (*first, *second)] == ["Error: odd was refused: out of paper", "fine", "fine"]


@pytest.mark.parametrize("way", ["newest protocol", "older protocol"])
async def test_changed_tools_are_offered_to_the_next_run(way, monkeypatch):
    server = MCPServer("changing")

    @server.tool()
    async def odd(ctx: Context) -> str:
        """Add a tool."""
        server.add_tool(lambda: "fine", name="grown")
        await ctx.notify_tools_changed()
        return "well"

    if way == "newest protocol":
        in_this_process(monkeypatch, changing=server)
    changing = McpServer(name="changing", command=(sys.executable, BAD, "tools that change"))
    model = Model([call("odd"), "One.", call("grown"), "Two."])
    async with asyncio.timeout(60), House(Agent(name="default", mcp_servers=[changing]), model) as house:
        (first,) = of(await house.ask("go"), ToolCallResult)
        (second,) = of(await house.ask("again"), ToolCallResult)
    assert (first.content, second.content) == ("well", "fine")


async def test_a_server_s_stderr_is_logged_within_a_budget(caplog):
    connection = sessions.McpConnection(McpServer(name="bad", command=(sys.executable, BAD, "floods stderr")))

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if "MCP server bad" in each.getMessage()]

    with caplog.at_level(logging.INFO, logger="agent_server.mcp"):
        async with asyncio.timeout(60):
            await connection.tools(30)
            while not any("left out" in each for each in said()):
                await asyncio.sleep(0.05)
            await connection.close()
    assert any("debug debug" in each for each in said())
    assert sum(map(len, said())) < 64 * 2**10


def test_every_fault_is_tried():
    assert {*TOOLS, *RESULTS, *RAW} <= STDIO.keys()
