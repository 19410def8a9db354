"""`agent-server new`: each kind of project is served as it was written, and asks before it sends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_server.agents.guests import load_named
from agent_server.cli.main import app
from agent_server.cli.new import Framework
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.agents.guests.talking import body, events_of, told, user
from tests.server import scripted, serving

TOKENIZER = load_model_files(BUNDLED).tokenizer
LOOK = '<tool_call>\n{"name": "get_weather", "arguments": {"location": "Bergen"}}\n</tool_call>'
SEND = (
    '<tool_call>\n{"name": "send_email", "arguments": {"to": "a@b.no", "subject": "Hi", "body": "Hello"}}\n</tool_call>'
)


def turn(request: GenerationRequest) -> Script:
    """Calls the tool that the last message asks for, then says what it answered."""
    prompt = TOKENIZER.decode(list(request.prompt_token_ids), skip_special_tokens=False)
    _, answered, result = prompt.rpartition("<tool_response>")
    if answered:
        return Script(text="It said: " + result.partition("</tool_response>")[0].strip())
    return Script(text=SEND if "email" in prompt.rpartition("user")[2] else LOOK)


def make(framework: str, folder: Path) -> Any:
    return CliRunner().invoke(app, ["new", framework, str(folder)])


@pytest.mark.parametrize("framework", [each.value for each in Framework])
async def test_its_agent_calls_a_tool_and_asks_before_it_sends(framework: str, tmp_path: Path):
    folder = tmp_path / "helper"
    written = make(framework, folder)
    assert written.exit_code == 0, written.output
    agents = load_named([f"{folder}/agent.py:agent"])
    async with serving(scripted(turn), agents=agents) as running:
        weather = await events_of(running.url, body(user("Weather in Bergen?")), "/agui/helper")
        asked = await events_of(running.url, body(user("Send the email"), thread="t2"), "/agui/helper")
        (interrupt,) = asked[-1]["outcome"]["interrupts"]
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}
        request = body(user("Send the email"), thread="t2", run="r2", resume=[answer])
        sent = await events_of(running.url, request, "/agui/helper")
    assert '"temperature":7' in dict(told(weather))["text"].replace(" ", "")
    assert told(asked)[-1] == ("finished", "interrupt")
    assert dict(told(sent))["text"] == "It said: Email sent to a@b.no."


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("framework", [each.value for each in Framework])
async def test_the_bundled_model_agrees_with_what_was_decided(framework: str, approved: bool, tmp_path: Path):
    make(framework, tmp_path / "helper")
    agents = load_named([f"{tmp_path}/helper/agent.py:agent"])
    question = user("Send an email to anna@example.com about lunch")
    ready = framework == "plain"  # the model of another framework's agent is loaded with its first request
    async with serving(agents=agents, local=True, ready=ready) as running:
        asked = await events_of(running.url, body(question), "/agui/helper")
        (interrupt,) = asked[-1]["outcome"]["interrupts"]
        answer = {"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": approved}}
        ended = await events_of(running.url, body(question, run="r2", resume=[answer]), "/agui/helper")
    assert ("did not send" in dict(told(ended))["text"]) is not approved


def test_a_project_has_its_name_everywhere(tmp_path: Path):
    make("langgraph", tmp_path / "helper")
    files = {
        str(each.relative_to(tmp_path / "helper")): each.read_text() for each in tmp_path.rglob("*") if each.is_file()
    }
    assert sorted(files) == [
        ".gitignore", "README.md", "agent.py", "web/index.html", "web/package.json", "web/src/main.tsx",
        "web/vite.config.js",
    ]  # fmt: skip
    assert not [place for place, text in files.items() if "PROJECT" in text or "EXTRAS" in text]
    assert "pip install 'agent-server[local,langgraph]'" in files["README.md"]


def test_nothing_is_written_over(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "agent.py").write_text("mine")
    refused = make("plain", tmp_path / "mine")
    assert refused.exit_code == 2
    assert "already exists. Name a new or an empty folder." in " ".join(refused.output.replace("│", " ").split())
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["agent.py"]


def test_a_name_that_npm_would_refuse_is_refused(tmp_path: Path):
    refused = make("plain", tmp_path / "My Project")
    assert refused.exit_code == 2
    assert "cannot name a project" in " ".join(refused.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())
