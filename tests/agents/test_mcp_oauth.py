"""Remote MCP servers that want an access token."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from agent_server.agents import Agent, McpServer
from agent_server.agents.loading import LoadError, load_mcp_file
from agent_server.agents.mcp.mcp_server import ClientCredentials
from events.vocabulary import ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call

SERVER = str(Path(__file__).with_name("guarded_server.py"))


@pytest.fixture
def guarded(tmp_path):
    """Its origin, and the log of requests for tokens."""
    log = tmp_path / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port), str(log)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
            break
        except httpx.TransportError:
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}", log
    process.kill()
    process.wait()


async def asked(origin: str, oauth: ClientCredentials | None) -> tuple[list[object], list[str]]:
    server = McpServer(name="far", url=f"{origin}/mcp", oauth=oauth, headers={"x-tenant": "ours"})
    model = Model([call("secret"), "Done."])
    async with House(Agent(name="default", mcp_servers=[server]), model) as house:
        events = await house.ask("go")
    warnings = (events[-1].metadata or {}).get("warnings", [])
    return [event.content for event in of(events, ToolCallResult)], warnings


async def test_a_token_is_fetched_with_the_client_s_credentials_and_headers_go_to_the_mcp_server_alone(guarded):
    origin, log = guarded
    oauth = ClientCredentials(client_id="gateway", client_secret="s3cret", issuer=origin)
    assert await asked(origin, oauth) == (["42"], [])
    assert set(log.read_text().splitlines()) == {"['client_credentials'] None"}


async def test_a_secret_goes_to_no_other_authorization_server_than_its_own(guarded):
    origin, log = guarded
    oauth = ClientCredentials(client_id="gateway", client_secret="s3cret", issuer="https://login.example/")
    _, warnings = await asked(origin, oauth)
    assert "far is not available" in warnings[0] and not log.exists()


async def test_without_credentials_the_server_s_tools_are_missing(guarded):
    origin, _ = guarded
    _, warnings = await asked(origin, None)
    assert "far is not available" in warnings[0]


def test_credentials_are_read_from_the_file_and_belong_to_a_url(tmp_path):
    path = tmp_path / "mcp.json"
    oauth = {"clientId": "gateway", "clientSecret": "${SECRET}", "issuer": "https://login.example"}
    path.write_text(json.dumps({"mcpServers": {"far": {"url": "https://far.example/mcp", "oauth": oauth}}}))
    (server,) = load_mcp_file(path, {"SECRET": "s3cret"})
    assert server.oauth == ClientCredentials(
        client_id="gateway", client_secret="s3cret", issuer="https://login.example"
    )
    path.write_text(json.dumps({"mcpServers": {"near": {"command": "near", "oauth": oauth}}}))
    with pytest.raises(LoadError, match="oauth is for servers with a url"):
        load_mcp_file(path, {"SECRET": "s3cret"})
