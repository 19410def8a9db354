"""What the README and the documentation tell people to write."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
from pathlib import Path

import httpx
import pytest

import agent_server
from agent_server.agents import load_agents
from agent_server.engines.scripted import Script
from tests.code_blocks import ROOT, blocks
from tests.server import scripted, serving

DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TRIED_ELSEWHERE = ("adding-a-wire.md", "adding-a-format.md")
"""What they build is imported from where they put it; tests of their own follow them to the end."""
IMPORT = re.compile(r"^from (?:agent_server|adapters|events)[\w.]* import [\w, ]+$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)#]+)(?:#[^)]*)?\)")


def readme(beginning: str) -> str:
    (found,) = [block.code for block in blocks("README.md") if block.code.startswith(beginning)]
    return found


def test_what_users_import_is_there():
    for name in agent_server.__all__:
        assert getattr(agent_server, name) is not None
    assert set(agent_server.__all__) <= set(dir(agent_server))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agent_server.nothing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_import_in_it_resolves_and_every_file_that_it_links_to_is_there(document: Path):
    text = document.read_text("utf-8")
    for line in IMPORT.findall(text) if document.name not in TRIED_ELSEWHERE else ():
        exec(line, {})
    for target in LINK.findall(text):
        assert (document.parent / target).exists(), target


@pytest.mark.parametrize("document", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_a_page_of_the_site_links_to_the_sites_own_files_alone(document: Path):
    """`make docs` has nothing else, and fails."""
    links = [document.parent / link for link in LINK.findall(document.read_text("utf-8"))]
    assert [link for link in links if not link.resolve().is_relative_to(ROOT / "docs")] == []


async def test_the_readmes_openai_client_gets_an_answer():
    program = readme("from openai import OpenAI")
    async with serving(scripted("I chat.")) as server:
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            await asyncio.to_thread(exec, program.replace("http://localhost:8000", server.url), {})
    assert told.getvalue() == "I chat.\n"


async def test_the_readmes_tool_is_called(tmp_path: Path):
    (tmp_path / "my_agent.py").write_text(readme("# my_agent.py"))
    agents = load_agents([f"{tmp_path}/my_agent.py:agent"])
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Bergen"}}\n</tool_call>'
    async with serving(scripted([Script(text=call), Script(text="Seven degrees.")]), agents=agents) as server:
        body = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "And in Bergen?"}]}
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
            answer = (await client.post("/agui/weather", json=body)).text
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith("data: ")]
    (result,) = [event["content"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert json.loads(result) == {"city": "Bergen", "temperature": 7, "conditions": "cloudy"}
    assert "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT") == "Seven degrees."
    assert events[-1]["type"] == "RUN_FINISHED"
