"""The file of MCP servers that other hosts use."""

from __future__ import annotations

import json
import logging
import sys
import time

import httpx
import pytest

from agent_server.agents import Agent, LoadError, McpServer
from agent_server.agents.loading import load_mcp_file
from agent_server.http.assemble import with_mcp_files
from agent_server.http.server import StartupError
from events.vocabulary import RunFinished
from tests.agents.app_server import app_server, in_this_process
from tests.agents.harness import House
from tests.agents.models import Model
from tests.http.routes.test_copilotkit import body, events_of
from tests.server import scripted, serving


@pytest.fixture
def read(tmp_path):
    def load(servers: object, **environment: str) -> list[McpServer]:
        path = tmp_path / "mcp.json"
        path.write_text(servers if isinstance(servers, str) else json.dumps({"mcpServers": servers}))
        return load_mcp_file(path, environment)

    return load


def test_servers_are_read_as_other_hosts_write_them(read):
    found = read(
        {
            "files": {
                "command": "npx",
                "args": ["-y", "server-files", "${env:HOME}/notes"],
                "env": {"TOKEN": "${TOKEN}", "MODE": "${MODE:-quiet}"},
                "cwd": "/tmp",
                "someOtherHostsKey": 1,
            },
            "web": {"type": "http", "url": "https://x.test/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}},
            "off": {"command": "x", "disabled": True},
        },
        HOME="/home/ada",
        TOKEN="secret",
    )
    assert found == [
        McpServer(
            name="files",
            command=("npx", "-y", "server-files", "/home/ada/notes"),
            env={"TOKEN": "secret", "MODE": "quiet"},
            cwd="/tmp",
        ),
        McpServer(name="web", url="https://x.test/mcp", headers={"Authorization": "Bearer secret"}),
    ]


@pytest.mark.parametrize(
    ("said", "asks"),
    [
        ({}, (False, False)),
        ({"approval": "always"}, (True, True)),
        ({"approval": "writes"}, (True, False)),
        ({"autoApprove": ["look"]}, (True, False)),
        ({"alwaysAllow": []}, (True, True)),
        ({"approval": "never", "autoApprove": ["look"]}, (False, False)),
        ({"approval": "always", "tools": {"write": {"approval": "never"}}}, (False, True)),
        ({"tools": {"look": {"approval": "always"}}}, (False, True)),
    ],
)
def test_approval_is_ruled_for_a_server_and_for_a_tool(read, said, asks):
    (server,) = read({"s": {"command": "x", **said}})
    assert (server.asks("write", read_only=False), server.asks("look", read_only=True)) == asks


def test_tools_can_be_turned_off(read):
    (server,) = read({"s": {"command": "x", "tools": {"erase": {"enabled": False}}, "prefix": "s_", "timeLimit": 3}})
    assert server.offers("look") and not server.offers("erase")
    assert (server.prefix, server.time_limit) == ("s_", 3)


@pytest.mark.parametrize(
    ("servers", "sentence"),
    [
        ("{", "is not a file of MCP servers"),
        ('{"servers": {}}', "missing required field `mcpServers`"),
        ({"s": {}}, "s: give either a command or a url"),
        ({"s": {"command": "x", "url": "http://x"}}, "give either a command or a url"),
        ({"s": {"url": "ftp://x/${TOKEN}"}}, "must begin with http"),
        ({"s": {"url": "https://ada:pass@x/mcp"}}, "put them in headers"),
        ({"s": {"url": "https://x/sse", "type": "sse"}}, "'sse' is not supported"),
        ({"s": {"command": "x", "env": {"A": "${NOT_SET}"}}}, "variable NOT_SET is not set"),
        ({"s": {"command": ["x"]}}, "Expected `str`"),
        ({"s": {"command": "x", "approval": "perhaps"}}, "Invalid enum value 'perhaps'"),
        ({"s": {"command": "x", "tools": {"a": {"aproval": "always"}}}}, "unknown field `aproval`"),
        ({"s": "x"}, "Expected `object`"),
    ],
)
def test_what_cannot_be_used_is_said_in_a_sentence(read, servers, sentence):
    with pytest.raises(LoadError, match=r"mcp\.json") as error:
        read(servers, TOKEN="secret")
    assert sentence in str(error.value)
    assert "pass" not in str(error.value) or sentence.startswith("give")


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(LoadError, match="cannot be read: No such file"):
        load_mcp_file(tmp_path / "none.json", {})


def test_every_agent_gets_the_servers_and_a_model_alone_becomes_an_agent(tmp_path):
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"s": {"command": "x"}}}))
    (alone,) = with_mcp_files([], [str(path)])
    assert alone.name == "default" and [each.name for each in alone.mcp_servers] == ["s"]
    named = with_mcp_files([Agent(name="a"), Agent(name="b")], [str(path)])
    assert [[each.name for each in agent.mcp_servers] for agent in named] == [["s"], ["s"]]
    assert with_mcp_files([], []) == []


async def test_tools_without_python_are_listed_and_a_server_that_is_away_is_a_warning(tmp_path, monkeypatch, caplog):
    in_this_process(monkeypatch, sky=app_server())
    path = tmp_path / "mcp.json"
    gone = {"command": sys.executable, "args": ["-c", "import sys; sys.exit(3)"], "env": {"TOKEN": "canary"}}
    path.write_text(json.dumps({"mcpServers": {"sky": {"command": "sky", "approval": "writes"}, "gone": gone}}))
    with caplog.at_level(logging.WARNING, logger="agent_server.mcp"):
        server_run = serving(scripted("Hello."), mcp=(str(path),), demo=False)
        async with server_run as running, httpx.AsyncClient(base_url=running.url) as client:
            events = events_of(await client.post("/copilotkit/agent/default/run", json=body()))
            listed = (await client.get("/agui/mcp")).json()["servers"]
    assert events[-1]["type"] == "RUN_FINISHED"
    assert events[-1]["metadata"]["warnings"] == [
        "The MCP server gone is not available (it could not be reached); its tools are missing."
    ]
    assert any("MCP server gone did not start" in record.getMessage() for record in caplog.records)
    (sky, away) = listed
    assert away == {
        "name": "gone", "transport": "stdio", "state": "failed", "problem": "could not be reached", "tools": [],
        "resources": [], "resourceTemplates": [], "prompts": [], "completions": False, "leftOut": [],
    }  # fmt: skip
    assert (sky["name"], sky["state"]) == ("sky", "ready")
    tools = {each["name"]: each for each in sky["tools"]}
    assert tools["weather"] == {
        "name": "weather", "description": "The weather in a city.", "approval": True, "forModel": True, "forApp": True,
        "outputSchema": None, "note": None,
    }  # fmt: skip
    assert tools["count"]["forModel"] is False and tools["secret"]["forApp"] is False
    assert "canary" not in json.dumps(listed) and sys.executable not in json.dumps(listed)


async def test_runs_do_not_wait_again_for_a_server_that_could_not_be_reached(tmp_path):
    tries = tmp_path / "tries"
    program = f"open({str(tries)!r}, 'a').write('once '); raise SystemExit(3)"
    servers = [McpServer(name="gone", command=(sys.executable, "-c", program))]
    async with House(Agent(name="default", mcp_servers=servers), Model(["a", "b"])) as house:
        ends = [(await house.ask(text))[-1] for text in ("one", "two")]
        assert all(isinstance(end, RunFinished) and end.metadata["warnings"] for end in ends)
        before = tries.read_text()
        house.served["default"]._mcp["default"].connections[0]._retry_at = time.monotonic()
        await house.ask("three")
    assert before == "once once ", "in the newest way and in the older one"
    assert tries.read_text() == before * 2


async def test_a_file_that_cannot_be_used_keeps_the_server_from_starting(tmp_path):
    with pytest.raises(StartupError, match="cannot be read"):
        async with serving(scripted("x"), mcp=(str(tmp_path / "none.json"),)):
            pass
