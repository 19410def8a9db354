"""MCP apps: the activity that a call becomes, and what a page may ask of its server."""

from __future__ import annotations

import asyncio

import pytest
from mcp_types import Tool as McpTool

from adapters.forwarded_props import ProxiedRequest
from agent_server.agents import Agent, McpServer
from agent_server.agents.mcp.app_requests import AT_ONCE
from agent_server.agents.mcp.apps import App, app_of
from agent_server.runs.store import Store
from agent_server.user import User
from events.vocabulary import ActivitySnapshot, InterruptOutcome, MessagesSnapshot, ToolCallResult, ToolCallStart
from tests.agents.app_server import PAGE, URI, app_server, in_this_process
from tests.agents.harness import House, names, of
from tests.agents.models import Model, call

WEATHER = {"city": "Oslo", "temperature": 7}


@pytest.fixture
def apps(monkeypatch):
    """Settings of a server that lives in this process."""
    server = app_server()
    in_this_process(monkeypatch, sky=server)
    return lambda **more: McpServer(name="sky", command=("sky",), **more)


def asked(method: str, server: str = "sky", **params) -> ProxiedRequest:
    return ProxiedRequest(server=server, method=method, params=params)


def meta(**given) -> McpTool:
    return McpTool(name="t", input_schema={"type": "object"}, _meta=given)


def test_a_tool_says_where_its_page_is_and_who_may_call_it():
    assert app_of(McpTool(name="t", input_schema={})) == App()
    assert app_of(meta(ui={"resourceUri": URI})) == App(uri=URI)
    assert app_of(meta(**{"ui/resourceUri": URI})) == App(uri=URI)
    assert app_of(meta(ui={"resourceUri": URI, "visibility": ["app"]})) == App(uri=URI, for_model=False)
    assert app_of(meta(ui={"visibility": ["model"]})) == App(for_app=False)
    for page in ("https://example.com/app.html", 7, None):
        assert app_of(meta(ui={"resourceUri": page})).uri == ""


async def test_a_call_becomes_an_activity_behind_its_result_and_is_kept(apps):
    model = Model([call("weather", city="Oslo") + call("storm"), "Cold.", "Yes."])
    async with House(Agent(name="default", mcp_servers=[apps()]), model, Store("sqlite://")) as house:
        events = await house.ask("go")
        stored = await house.store.messages("", "t")
        later = await house.ask("sure?")
        kept = await house.store.messages("", "t")
    (activity,) = of(events, ActivitySnapshot)
    assert activity.activity_type == "mcp-apps" and activity.replace is True
    assert activity.content == {
        "result": {
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "weather", "version": ""}},
            "content": [{"type": "text", "text": "Oslo: 7 degrees"}],
            "structuredContent": WEATHER,
            "isError": False,
            "resultType": "complete",
        },
        "resourceUri": URI,
        "serverHash": "sky",
        "serverId": "sky",
        "toolInput": {"city": "Oslo"},
        "toolCallId": next(each.tool_call_id for each in of(events, ToolCallStart) if each.tool_call_name == "weather"),
    }
    shown = names(events)
    assert shown.index("ToolCallResult") < shown.index("ActivitySnapshot")
    assert any("storm took" in each.content for each in of(events, ToolCallResult))
    assert [each["role"] for each in stored] == ["user", "assistant", "tool", "tool", "activity", "assistant"]
    assert stored[4] == {
        "id": activity.message_id, "role": "activity", "activityType": "mcp-apps", "content": activity.content,
    }  # fmt: skip
    assert not any(message["role"] == "activity" for told in model.told for message in told["messages"])
    assert [each["role"] for each in kept][4:] == ["activity", "assistant", "user", "assistant"] and later


async def test_the_model_is_not_offered_what_is_for_pages_alone(apps):
    model = Model(["ok"])
    async with House(Agent(name="default", mcp_servers=[apps()]), model) as house:
        await house.ask("go")
    assert "count" not in model.told[0]["tools"] and {"weather", "secret"} <= set(model.told[0]["tools"])


async def test_a_result_too_large_for_an_app_is_still_the_model_s(apps):
    async with House(Agent(name="default", mcp_servers=[apps()]), Model([call("atlas"), "ok"])) as house:
        events = await house.ask("go")
    assert not of(events, ActivitySnapshot)
    assert of(events, ToolCallResult)[0].content.startswith("xxx")


async def test_a_snapshot_in_mid_run_leaves_activities_to_the_client(apps):
    """`@ag-ui/client` drops every activity that a snapshot with any activity leaves out."""
    servers = [apps(requires_approval=frozenset({"erase"}))]
    model = Model([call("weather", city="Oslo"), call("erase"), "Erased."])
    async with House(Agent(name="default", mcp_servers=servers), model, Store("sqlite://")) as house:
        events = await house.ask("go")
        stored = await house.store.messages("", "t")
    assert isinstance(events[-1].outcome, InterruptOutcome) and of(events, ActivitySnapshot)
    (snapshot,) = of(events, MessagesSnapshot)
    assert "activity" not in {each["role"] for each in snapshot.messages}
    assert "activity" in {each["role"] for each in stored}


async def test_a_page_is_read_and_calls_what_is_for_pages(apps):
    model = Model([])
    async with House(Agent(name="default", mcp_servers=[apps()]), model) as house:
        served = house.served["default"]
        read = await served.answer_app(asked("resources/read", uri=URI), User())
        counted = [
            await served.answer_app(asked("tools/call", name="count", arguments={"by": 2}), User()) for _ in "ab"
        ]
        bytes_read = await served.answer_app(asked("resources/read", uri="ui://weather/picture.html"), User())
        silent = [await served.answer_app(asked(each), User()) for each in ("ping", "notifications/message")]
    (page,) = read["contents"]
    assert page["text"] == PAGE and page["uri"] == URI and page["_meta"] == {"ui": {"prefersBorder": True}}
    assert [each["content"][0]["text"] for each in counted] == ["2", "4"]
    assert bytes_read["contents"][0]["text"] == "<p>ü</p>" and "blob" not in bytes_read["contents"][0]
    assert silent == [{}, {}] and not model.engine.requests and not house.manager.active


REFUSED = {
    "another method": (asked("tools/list"), "must be one of"),
    "another server": (asked("resources/read", "elsewhere", uri=URI), "no MCP server with that id"),
    "a file": (asked("resources/read", uri="file:///etc/passwd"), "Only ui://"),
    "no URI": (asked("resources/read"), "Only ui://"),
    "a page that no tool names": (asked("resources/read", uri="ui://weather/hidden.html"), "declares no app"),
    "a tool for the model": (asked("tools/call", name="secret"), "no such tool to apps"),
    "no tool": (asked("tools/call"), "no such tool to apps"),
    "wrong arguments": (asked("tools/call", name="count", arguments={"by": "x"}), "Invalid arguments: by"),
    "what a person must allow": (asked("tools/call", name="erase"), "needs a person's approval"),
    "a failing server": (asked("tools/call", name="hang"), "did not answer within 0.2 s"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_page_is_refused(apps, case):
    request, sentence = REFUSED[case]
    settings = apps(requires_approval=frozenset({"erase"}), time_limit=0.2)
    async with House(Agent(name="default", mcp_servers=[settings]), Model([])) as house:
        answer = await house.served["default"].answer_app(request, User())
    if request.method == "tools/call":
        assert answer["isError"] is True and sentence in answer["content"][0]["text"]
    else:
        assert sentence in answer["error"]


async def test_a_tool_that_fails_answers_its_page_as_it_answers_the_model(apps):
    async with House(Agent(name="default", mcp_servers=[apps()]), Model([])) as house:
        answer = await house.served["default"].answer_app(asked("tools/call", name="storm"), User())
    assert answer["isError"] is True and "storm took" in answer["content"][0]["text"]


async def test_an_agent_without_servers_refuses_and_runs_no_model():
    model = Model([])
    async with House(Agent(name="default"), model) as house:
        assert "no MCP servers" in (await house.served["default"].answer_app(asked("ping"), User()))["error"]


async def test_one_tenant_s_pages_leave_room_for_another_s(apps):
    async with House(Agent(name="default", mcp_servers=[apps()]), Model([])) as house:
        served = house.served["default"]
        ask = asked("tools/call", name="hang")
        hanging = [asyncio.create_task(served.answer_app(ask, User(tenant="a"))) for _ in range(AT_ONCE)]
        await asyncio.sleep(0)  # each begins
        refused = await served.answer_app(asked("resources/read", uri=URI), User(tenant="a"))
        allowed = await served.answer_app(asked("resources/read", uri=URI), User(tenant="b"))
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        again = await served.answer_app(asked("resources/read", uri=URI), User(tenant="a"))
    assert "try again later" in refused["error"] and "contents" in allowed and "contents" in again


def test_agents_share_the_connection_to_a_server_and_names_are_unique(apps):
    both = [Agent(name="default", mcp_servers=[apps()]), Agent(name="other", mcp_servers=[apps()])]
    house = House(both, Model([]))
    assert house.served["default"]._mcp["default"].connections == house.served["other"]._mcp["other"].connections
    with pytest.raises(ValueError, match="more than one MCP server is called sky"):
        House(Agent(name="default", mcp_servers=[apps(), apps(prefix="x")]), Model([]))


@pytest.mark.parametrize(
    ("rule", "more", "asks"),
    [
        (False, {}, (False, False)),
        (True, {}, (True, True)),
        ("writes", {}, (True, False)),
        (frozenset({"erase"}), {}, (True, False)),
        (True, {"erase": False}, (False, True)),
        (False, {"look": True}, (False, True)),
    ],
)
def test_approval_is_ruled_by_server_and_by_tool(rule, more, asks):
    server = McpServer(name="x", url="http://x", requires_approval=rule, approvals=more)
    assert (server.asks("erase", read_only=False), server.asks("look", read_only=True)) == asks
