"""`agent-server connect` prints what a coding agent's own configuration reads."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import tomllib

import pytest
import yaml

from tests.server import scripted, serving

URL = "http://127.0.0.1:9"


def connect(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agent_server.cli.main", "connect", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_codex():
    printed = connect("codex", "--url", f"{URL}/v1/", "--model", 'a "b"', "--api-key", "secret").stdout
    found = tomllib.loads(printed)
    provider = found["model_providers"][found["model_provider"]]
    assert found["model"] == 'a "b"' and provider["base_url"] == f"{URL}/v1"
    assert provider["wire_api"] == "responses" and provider["env_key"] == "AGENT_SERVER_API_KEY"
    assert "secret" not in printed, "Codex reads a key from the environment"


def test_qwen_and_aider():
    named = ("--url", f"{URL}/v1", "--model", "m", "--api-key", "secret")
    lines = connect("qwen", *named).stdout.splitlines()
    variables = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert variables == {"OPENAI_BASE_URL": f"{URL}/v1", "OPENAI_API_KEY": "secret", "OPENAI_MODEL": "m"}
    assert yaml.safe_load(connect("aider", *named).stdout) == {
        "model": "openai/m", "openai-api-base": f"{URL}/v1", "openai-api-key": "secret",
    }  # fmt: skip


def test_claude():
    lines = connect("claude", "--url", URL, "--model", "m", "--api-key", "secret").stdout.splitlines()
    variables = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert variables == {
        "ANTHROPIC_BASE_URL": URL, "ANTHROPIC_API_KEY": "secret", "ANTHROPIC_MODEL": "m",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": "m",
    }  # fmt: skip


def test_opencode():
    found = json.loads(connect("opencode", "--url", URL, "--model", "org/m").stdout)
    assert found["model"] == "agent-server/org/m"
    assert found["provider"]["agent-server"]["options"] == {"baseURL": f"{URL}/v1", "apiKey": "none"}


async def test_the_model_is_the_servers_first():
    async with serving(scripted("Hi.")) as running:
        done = await asyncio.to_thread(connect, "claude", "--url", running.url)
        assert f"export ANTHROPIC_MODEL={running.server.model.name}\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cursor", "--model", "m"), "Unknown client 'cursor'. Use aider, claude, codex, opencode, qwen."),
        (("codex", "--url", URL), f"No server answers at {URL}"),
    ],
)
def test_what_cannot_be_printed_is_one_sentence(arguments: tuple[str, ...], said: str):
    done = connect(*arguments)
    assert done.returncode == 1 and said in done.stderr and done.stdout == ""
