"""The tutorials, followed from top to bottom: every Python block is run, and prints what the page says that it prints."""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_server.agents import load_agents
from agent_server.engines.scripted import Script
from tests.server import scripted, serving

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# (\w+\.py)\n")
MAIL = '<tool_call>\n{"name": "send_email", "arguments": {"to": "anna@example.com", "subject": "The meeting", "body": "Hi"}}\n</tool_call>'


def follow(tutorial: str, url: str) -> str:
    """Runs the blocks in one namespace, compares what each prints with the text block behind it; returns all of it."""
    names: dict[str, Any] = {}
    printed = everything = ""
    for kind, content in BLOCK.findall((TUTORIALS / tutorial).read_text("utf-8")):
        if kind == "text":
            assert printed == content
        elif not FILE.match(content):
            told = io.StringIO()
            with contextlib.redirect_stdout(told):
                exec(content.replace("http://localhost:8000", url), names)
            printed = told.getvalue()
            everything += printed
    return everything


def saved(tutorial: str, folder: Path) -> list[str]:
    """The files that the tutorial has people save, in `folder`, as `--agent` takes them."""
    found = []
    for kind, content in BLOCK.findall((TUTORIALS / tutorial).read_text("utf-8")):
        if kind == "python" and (name := FILE.match(content)):
            (folder / name[1]).write_text(content)
            found.append(f"{folder / name[1]}:agent")
    return found


async def test_the_first_run():
    async with serving(scripted("I chat with you about the weather.")) as server:
        told = await asyncio.to_thread(follow, "first-run.md", server.url)
    assert '"type":"RUN_STARTED"' in told and '"type":"RUN_FINISHED"' in told
    assert told.count("I chat with you about the weather.") == 2  # once for each of the two SDKs


async def test_an_agent_that_asks_first(tmp_path: Path):
    agents = load_agents(saved("approval.md", tmp_path))
    engine = scripted([Script(text=MAIL), Script(text="It is sent.")])
    async with serving(engine, agents=agents) as server:
        await asyncio.to_thread(follow, "approval.md", server.url)


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
