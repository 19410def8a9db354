"""Popular MCP servers from npm and PyPI, each doing one real task through an agent's run, without a network.

`make test-mcp` installs them into MCP_ENV: npm's in node_modules, PyPI's in its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent_server.agents import Agent, McpServer
from agent_server.agents.mcp import sessions
from agent_server.agents.mcp.resources import content_of_resource, messages_of_prompt
from agent_server.runs.store import Store
from events.vocabulary import InterruptOutcome, ToolCallResult
from tests.agents.harness import House, of
from tests.agents.models import Model, call

pytestmark = [pytest.mark.mcp, pytest.mark.timeout(240)]

MCP_ENV = Path(os.environ.get("MCP_ENV", ".mcp"))
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
OFFLINE = dict.fromkeys(
    ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9"
) | {"no_proxy": "127.0.0.1,localhost", "NO_PROXY": "127.0.0.1,localhost"}
PAGE = """<!doctype html><title>Owls</title><h1>Owls hunt at night</h1>
<button onclick="document.querySelector('h1').textContent = 'Owls sleep by day'">Turn</button>"""
SECONDS = 180


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "WAIT_SECONDS", 60.0)


@pytest.fixture
def page() -> Iterator[str]:
    """A web page on this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == "/owls"
            self.send_response(200 if known else 404)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE.encode() if known else b"")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/owls"
    server.shutdown()
    server.server_close()


def npm(name: str, *arguments: str, **more: Any) -> McpServer:
    return command(MCP_ENV / "node_modules" / ".bin" / name, *arguments, **more)


def pypi(name: str, *arguments: str, **more: Any) -> McpServer:
    return command(MCP_ENV / "bin" / name, *arguments, **more)


def earlier(name: str, *arguments: str) -> McpServer:
    """A server that needs version 1 of the SDK."""
    return command(MCP_ENV / "earlier" / "bin" / name, *arguments)


def command(program: Path, *arguments: str, env: dict[str, str] | None = None) -> McpServer:
    return McpServer(name="it", command=(str(program.resolve()), *arguments), env=OFFLINE | (env or {}))


async def work(server: McpServer, *calls: str) -> list[str]:
    """The results of these calls as text, made one after the other by an agent; none of them is an error."""
    model = Model([*calls, "Done."])
    async with asyncio.timeout(SECONDS), House(Agent(name="default", mcp_servers=[server]), model) as house:
        events = await house.ask("go")
    results = of(events, ToolCallResult)
    assert len(results) == len(calls) and not any(each.metadata and "isError" in each.metadata for each in results), [
        each.content for each in results
    ]
    assert (events[-1].metadata or {}).get("warnings", []) == []
    return [each.content if isinstance(each.content, str) else json.dumps(each.content) for each in results]


async def test_filesystem(tmp_path):
    path = str(tmp_path / "note.txt")
    _, read = await work(
        npm("mcp-server-filesystem", str(tmp_path)),
        call("write_file", path=path, content="Buy milk."),
        call("read_text_file", path=path),
    )
    assert read == "Buy milk." and (tmp_path / "note.txt").read_text() == "Buy milk."


async def test_memory(tmp_path):
    entity = {"name": "Ada", "entityType": "person", "observations": ["likes owls"]}
    file = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    _, found = await work(
        npm("mcp-server-memory", env=file),
        call("create_entities", entities=[entity]),
        call("search_nodes", query="owl"),
    )
    assert "likes owls" in found and "Ada" in (tmp_path / "memory.jsonl").read_text()


async def test_sequential_thinking():
    thought = {"thought": "First.", "thoughtNumber": 1, "totalThoughts": 2, "nextThoughtNeeded": True}
    (told,) = await work(npm("mcp-server-sequential-thinking"), call("sequentialthinking", **thought))
    assert json.loads(told)["totalThoughts"] == 2


async def test_everything(tmp_path):
    """Its task asks a person in the middle; its prompts and resources are used as a client does."""
    server = npm("mcp-server-everything")
    research = call("simulate-research-query", topic="python", ambiguous=True)
    model = Model([call("get-sum", a=2, b=40) + research, "Done."])
    store = Store(f"sqlite:///{tmp_path}/store.db")
    async with asyncio.timeout(SECONDS), House(Agent(name="default", mcp_servers=[server]), model, store) as house:
        events = await house.ask("go")
        assert "42" in of(events, ToolCallResult)[0].content
        assert isinstance(events[-1].outcome, InterruptOutcome)
        (asked,) = events[-1].outcome.interrupts
        (choice, *_) = asked.response_schema["properties"]["interpretation"]["oneOf"]
        answer = {"interpretation": choice["const"]}
        events = await house.resume({"interruptId": asked.id, "status": "resolved", "payload": answer})
        (report,) = of(events, ToolCallResult)
        assert choice["const"] in report.content
        (connection,) = house.served["default"]._mcp["default"].connections
        listing = await connection.tools()
        read = await content_of_resource(connection, listing.resources[0].uri, 30)
        with_arguments = next(each for each in listing.prompts if each.arguments)
        arguments = {each.name: "Oslo" for each in with_arguments.arguments or ()}
        filled = await messages_of_prompt(connection, with_arguments.name, arguments, 30)
    assert read["content"] and "Oslo" in json.dumps(filled["messages"])


async def test_playwright(page):
    server = npm("playwright-mcp", "--headless", "--isolated", "--no-sandbox", "--executable-path", CHROMIUM)
    _, shown = await work(server, call("browser_navigate", url=page), call("browser_snapshot"))
    assert "Owls hunt at night" in shown


async def test_chrome_devtools(page):
    flags = ("--headless", "--isolated", "--chromeArg=--no-sandbox", "--no-usage-statistics")
    server = npm("chrome-devtools-mcp", *flags, "--executablePath", CHROMIUM)
    _, shown = await work(server, call("new_page", url=page), call("take_snapshot", pageId=2))
    assert "Owls hunt at night" in shown


def git(folder: Path, *arguments: str) -> str:
    program = ["git", "-C", str(folder), "-c", "user.name=Ada", "-c", "user.email=ada@example.com", *arguments]
    return subprocess.run(program, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.name", "Ada")
    git(tmp_path, "config", "user.email", "ada@example.com")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "Begin")
    (tmp_path / "note.txt").write_text("Buy milk.")
    return tmp_path


async def test_git(repository):
    path = str(repository)
    *_, log = await work(
        pypi("mcp-server-git", "--repository", path),
        call("git_add", repo_path=path, files=["note.txt"]),
        call("git_commit", repo_path=path, message="Note what is due"),
        call("git_log", repo_path=path),
    )
    assert "Note what is due" in log
    assert await asyncio.to_thread(git, repository, "show", "HEAD:note.txt") == "Buy milk."


async def test_sqlite(tmp_path):
    path = tmp_path / "shop.db"
    *_, rows = await work(
        earlier("mcp-server-sqlite", "--db-path", str(path)),
        call("create_table", query="CREATE TABLE due (what TEXT)"),
        call("write_query", query="INSERT INTO due VALUES ('milk')"),
        call("read_query", query="SELECT what FROM due"),
    )
    assert "milk" in rows
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT what FROM due").fetchall() == [("milk",)]
    database.close()


async def test_fetch(page):
    # Without Node on its path, from which it would first install a package.
    server = pypi("mcp-server-fetch", "--allow-private-ips", env={"PATH": "/nowhere"})
    (read,) = await work(server, call("fetch", url=page))
    assert "Owls hunt at night" in read


async def test_time():
    arguments = {"source_timezone": "Europe/Oslo", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    (told,) = await work(pypi("mcp-server-time", "--local-timezone", "UTC"), call("convert_time", **arguments))
    assert re.search(r"T(19|20):00", told)


async def test_excel(tmp_path):
    path = str(tmp_path / "due.xlsx")
    *_, rows = await work(
        pypi("excel-mcp-server", "stdio"),
        call("search_tools", query="create a workbook, write and read a range"),  # of more than forty tools
        call("create_workbook", path=path, sheets=["due"]),
        call("write_range", path=path, sheet="due", at="A1", rows=[["what"], ["milk"]]),
        call("read_range", path=path, sheet="due"),
    )
    assert "milk" in rows and zipfile.is_zipfile(path)
