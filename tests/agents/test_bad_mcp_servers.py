"""MCP servers that misbehave each in their own way, a healthy one with the SDK's own server beside each: its tools work,
and no run ends."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from pathlib import Path

import msgspec
import pytest
from mcp.server.mcpserver import Context, MCPServer

from agent_server.agents import Agent, McpServer
from agent_server.agents.mcp import listing, sessions
from agent_server.user import NOBODY
from events.vocabulary import SuccessOutcome, ToolCallResult
from tests.agents.app_server import in_this_process
from tests.agents.bad_mcp_server import RAW, RESULTS, TOOLS, HttpServer
from tests.agents.harness import House, of
from tests.agents.models import Model, call
from tests.agents.test_mcp import Http, text_of

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
    "error and result": Case(),
    "an error that is a text": Case(odd="odd was refused: out of paper"),
    "an error of its own code": Case(odd="odd was refused: out of paper"),
    "no JSON": Case(odd="odd was refused: .*(cannot be read|Failed to parse)"),
    "nested too deeply": Case(odd="odd was refused: .*(cannot be read|Failed to parse)"),
    "not a number": Case(odd="(?i)n.*(nan|null)"),
}  # fmt: skip
STDIO = {
    **CASES,
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
    "dies in the call": Case(odd="The MCP server bad did not answer: the server went away", fine=False),
    "closes its output in the call": Case(odd="bad did not answer: the server went away", fine=False),
    "hangs in the call": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
    "floods with progress": Case(),
    "floods with notifications": Case(),
    "says without end that its tools changed": Case(),
    "asks the client without end": Case(),
}  # fmt: skip
HTTP = {
    **{name: CASES[name] for name in (*RESULTS, *RAW) if name not in ("the id as a text",)},
    **{f"{name} (events)": CASES[name] for name in RAW if name not in ("no JSON", "nested too deeply")},
    "an error page for everything": Case(odd="", fine=False, warns="bad is not available"),
    "a redirect to nowhere": Case(odd="", fine=False, warns="bad is not available"),
    "a text instead of JSON": Case(odd="odd was refused: Unexpected content type"),
    "an error page for a call": Case(odd="odd was refused: Server returned an error response"),
    "an answer without end": Case(odd="odd was refused: .*more than"),
    "events without an answer": Case(odd="bad did not answer"),
    "an answer that is cut off": Case(odd="odd was refused: .*cut off"),
    "hangs in the call": Case(odd="odd took longer than 0.5 s", time_limit=0.5),
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


@pytest.mark.parametrize("kind", STDIO)
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
