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
    settings = json.loads(connect("qwen", *named).stdout)
    (model,) = settings["modelProviders"]["openai"]
    assert (model["id"], model["baseUrl"], settings["model"]["name"]) == ("m", f"{URL}/v1", "m")
    assert settings["env"] == {model["envKey"]: "secret"} and settings["security"]["auth"]["selectedType"] == "openai"
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


@pytest.mark.parametrize("client", ["opencode", "kilo"])
def test_opencode_and_kilo(client: str):
    found = json.loads(connect(client, "--url", URL, "--model", "org/m").stdout)
    assert found["model"] == "agent-server/org/m"
    assert found["provider"]["agent-server"]["options"] == {"baseURL": f"{URL}/v1", "apiKey": "none"}


def test_continue():
    (model,) = yaml.safe_load(connect("continue", "--url", URL, "--model", "m", "--api-key", "secret").stdout)["models"]
    assert (model["provider"], model["model"], model["apiBase"], model["apiKey"]) == (
        "openai",
        "m",
        f"{URL}/v1",
        "secret",
    )
    assert model["capabilities"] == ["tool_use"]


def test_kimi_and_vibe():
    named = ("--url", f"{URL}/v1", "--model", 'org/a "b"', "--api-key", "secret")
    found = tomllib.loads(connect("kimi", *named).stdout)
    model = found["models"][found["default_model"]]
    assert found["providers"][model["provider"]] == {"type": "openai", "base_url": f"{URL}/v1", "api_key": "secret"}
    assert (model["model"], model["capabilities"]) == ('org/a "b"', ["tool_use"])
    printed = connect("vibe", *named).stdout
    found = tomllib.loads(printed)
    (provider,), (model,) = found["providers"], found["models"]
    assert (provider["api_base"], provider["api_key_env_var"]) == (f"{URL}/v1", "AGENT_SERVER_API_KEY")
    assert found["active_model"] == model["name"] == 'org/a "b"' and model["provider"] == provider["name"]
    assert "secret" not in printed, "Vibe reads a key from the environment"


def test_pi_and_cline():
    named = ("--url", f"{URL}/v1", "--model", "m", "--api-key", "secret")
    provider = json.loads(connect("pi", *named).stdout)["providers"]["agent-server"]
    assert (provider["baseUrl"], provider["api"], provider["apiKey"]) == (f"{URL}/v1", "openai-completions", "secret")
    assert provider["models"] == [{"id": "m", "input": ["text"]}]
    words = shlex.split(connect("cline", *named).stdout)
    assert words[:2] == ["cline", "auth"] and dict(zip(words[2::2], words[3::2], strict=True)) == {
        "--provider": "openai", "--apikey": "secret", "--modelid": "m", "--baseurl": f"{URL}/v1",
    }  # fmt: skip


async def test_the_model_is_the_servers_first_and_the_agent_knows_its_context():
    async with serving(scripted("Hi.", context_length=32_768), max_context=32_768) as running:
        name = running.server.model.name

        async def printed(client: str, *arguments: str) -> str:
            return (await asyncio.to_thread(connect, client, "--url", running.url, *arguments)).stdout

        lines = (await printed("claude")).splitlines()
        variables = dict(shlex.split(line)[1].split("=", 1) for line in lines)
        assert variables["ANTHROPIC_MODEL"] == name
        assert tomllib.loads(await printed("codex", "--model", name))["model_context_window"] == 32_768
        models = json.loads(await printed("opencode"))["provider"]["agent-server"]["models"]
        assert models == {name: {"name": name, "limit": {"context": 32_768, "output": 8_192}}}
        (model,) = json.loads(await printed("pi"))["providers"]["agent-server"]["models"]
        assert (model["id"], model["contextWindow"], model["maxTokens"]) == (name, 32_768, 8_192)
        (model,) = json.loads(await printed("qwen"))["modelProviders"]["openai"]
        assert model["generationConfig"] == {"contextWindowSize": 32_768, "modalities": {"image": False}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("cursor", "--model", "m"),
            "Unknown client 'cursor'. Use aider, claude, cline, codex, continue, copilot, kilo, kimi, opencode, pi, qwen, vibe.",
        ),
        (("codex", "--url", URL), f"No server answers at {URL}"),
    ],
)
def test_what_cannot_be_printed_is_one_sentence(arguments: tuple[str, ...], said: str):
    done = connect(*arguments)
    assert done.returncode == 1 and said in done.stderr and done.stdout == ""
