"""The tutorials, followed from top to bottom: every Python block is run, and prints what the page says that it prints;
every page is type-checked and used. Shell commands are read by tests/test_code_blocks.py."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agent_server.agents import load_agents
from agent_server.agents.mcp import sessions
from agent_server.cli.main import app
from agent_server.cli.new import Framework, project_files
from agent_server.engines.scripted import Script
from tests.code_blocks import ROOT, blocks
from tests.conformance.node import NodeClients, node_clients
from tests.server import scripted, serving
from tests.slow import slow

__all__ = ["node_clients"]
TUTORIALS = ROOT / "docs" / "tutorials"
FILE = re.compile(r"# (\w+\.py)\n")


def call(name: str, **arguments: str) -> Script:
    """A turn that calls a tool."""
    return Script(text=f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>")


MAIL = call("send_email", to="anna@example.com", subject="The meeting", body="Hi")


def follow(tutorial: str, url: str) -> str:
    """Runs the blocks in one namespace, compares what each prints with the text block behind it; returns all of it."""
    names: dict[str, Any] = {}
    printed = everything = ""
    for block in blocks(f"docs/tutorials/{tutorial}"):
        if block.language == "text":
            assert printed == block.code
        elif block.language == "python" and not FILE.match(block.code):
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                exec(compile(block.code.replace("http://localhost:8000", url), str(block), "exec"), names)
            printed = told.getvalue()
            everything += printed
    return everything


def saved(tutorial: str, folder: Path) -> list[Path]:
    """The files that the tutorial has people save, in `folder`."""
    found = []
    for block in blocks(f"docs/tutorials/{tutorial}"):
        if block.language == "python" and (name := FILE.match(block.code)):
            (folder / name[1]).write_text(block.code)
            found.append(folder / name[1])
    return found


async def test_the_first_run():
    async with serving(scripted("I chat with you about the weather.")) as server:
        told = await asyncio.to_thread(follow, "first-run.md", server.url)
    assert '"type":"RUN_STARTED"' in told and '"type":"RUN_FINISHED"' in told
    assert told.count("I chat with you about the weather.") == 2  # once for each of the two SDKs


async def test_an_agent_that_asks_first(tmp_path: Path):
    agents = load_agents([f"{place}:agent" for place in saved("approval.md", tmp_path)])
    engine = scripted([MAIL, Script(text="It is sent.")])
    async with serving(engine, agents=agents) as server:
        await asyncio.to_thread(follow, "approval.md", server.url)


async def test_langchain():
    email = json.dumps({"to": "anna@example.com", "subject": "Lunch"})
    turns = [Script(text="I chat."), Script(text="I chat on."), call("get_weather", city="Bergen")]
    async with serving(scripted([*turns, Script(text="It is cold."), Script(text=email)])) as server:
        told = await asyncio.to_thread(follow, "langchain.md", server.url)
    assert told.startswith("I chat.\nI chat on.7 degrees and cloudy in Bergen\nIt is cold.\n")
    assert told.endswith("to='anna@example.com' subject='Lunch'\n")


async def test_tools_of_an_mcp_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved("mcp.md", tmp_path)
    (servers,) = [block.code for block in blocks("docs/tutorials/mcp.md") if block.language == "json"]
    (tmp_path / "mcp.json").write_text(servers.replace(".venv/bin/python", sys.executable))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sessions, "WAIT_SECONDS", 60.0)  # a busy machine takes its time to start a server
    turns = [call("list_notes"), Script(text="None."), call("add_note", text="The milk is sour."), Script(text="Done.")]
    async with serving(scripted(turns), mcp=("mcp.json",)) as server:
        await asyncio.to_thread(follow, "mcp.md", server.url)


async def test_production(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its keys are made by the commands that it prints."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    commands = next(block.code for block in blocks("docs/tutorials/production.md") if "keys new" in block.code)
    for variable, line in zip(("KEY", "METRICS_KEY"), commands.splitlines(), strict=True):
        made = runner.invoke(app, line.split()[1:])
        assert made.exit_code == 0, made.output
        monkeypatch.setenv(variable, made.stdout.strip())
    async with serving(scripted("Hi."), keys_file=tmp_path / "keys.toml") as server:
        told = await asyncio.to_thread(follow, "production.md", server.url)
    assert "agent_server:num_requests_running" in told


FRONT = ROOT / "frontend_demo" / "node_modules"
CLIENTS = ROOT / "tests" / "conformance" / "node_modules"
PAGES = {
    "ai-sdk.md": (CLIENTS, {}, {"click": "Send"}),
    "assistant-ui.md": (
        CLIENTS,
        {"@ag-ui/client": "@assistant-ui/react-ag-ui/node_modules/@ag-ui/client"},
        {"click": "Send"},
    ),
    "tanstack-ai.md": (CLIENTS, {}, {"click": "Send"}),
    "copilotkit.md": (FRONT, {}, {"press": "Enter"}),
    "copilotkit-direct.md": (FRONT, {}, {"press": "Enter"}),
}
"""Where a page's packages are; those of them that are at another place there than where its reader's npm puts them; and
how its messages are sent."""


def compiled(page: str, url: str, folder: Path) -> None:
    """Check the page's types as Vite's template does, and put its script in `folder`."""
    packages, places, _ = PAGES[page]
    (source,) = [block.code for block in blocks(f"docs/tutorials/{page}") if block.language == "tsx"]
    (folder / "App.tsx").write_text(source.replace("http://localhost:8000", url))
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").symlink_to(packages.resolve())
    types = {
        f"{name}{rest}": [f"{FRONT.resolve()}/@types/{name}{rest}"]
        for name in ("react", "react-dom")
        for rest in ("", "/*")
    }
    types |= {name: [f"{packages.resolve()}/{place}"] for name, place in places.items()}
    options = {
        "strict": True, "jsx": "react-jsx", "module": "esnext", "moduleResolution": "bundler", "target": "es2022",
        "lib": ["es2023", "dom", "dom.iterable"], "skipLibCheck": True, "types": [], "paths": types,
        "noUncheckedSideEffectImports": False,
    }  # fmt: skip
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["App.tsx"]}))
    done = subprocess.run([FRONT / ".bin" / "tsc", "-p", "."], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("page", ["copilotkit.md", *slow(page for page in PAGES if page != "copilotkit.md")])
async def test_a_page_asks_before_an_email_is_sent(page: str, node_clients: NodeClients, tmp_path: Path):
    if not (FRONT / ".bin" / "tsc").exists():
        pytest.skip("the front end's packages are not installed: make demo")
    (tmp_path / "agent.py").write_text(project_files("my-agent", Framework.PLAIN)["agent.py"])
    agents = load_agents([f"{tmp_path}/agent.py:agent"])
    async with serving(scripted([MAIL, Script(text="It is sent.")]), agents=agents) as server:
        await asyncio.to_thread(compiled, page, server.url, tmp_path)
        use = [
            {"write": "Send an email to anna@example.com"},
            PAGES[page][2],
            {"click": "Approve"},
            {"see": "It is sent."},
        ]
        command = ["node", ROOT / "tests" / "tutorials" / "page.mjs", tmp_path, FRONT / "jsdom", json.dumps(use)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Approve" not in done.stdout


@pytest.mark.parametrize("tutorial", sorted(path.name for path in TUTORIALS.glob("*.md")))
def test_every_tutorial_is_in_the_navigation(tutorial: str):
    assert f"tutorials/{tutorial}" in (ROOT / "mkdocs.yml").read_text("utf-8")


def test_the_documentation_builds_and_asks_nobody_elsewhere(tmp_path: Path):
    """`strict: true` makes a broken link or an unknown name an error."""
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    fetched = re.compile(r"<(?:script|link|img)[^>]+(?:src|href)=\"https?://")
    assert [page.name for page in tmp_path.rglob("*.html") if fetched.search(page.read_text("utf-8"))] == []
    assert "site_url" not in yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
