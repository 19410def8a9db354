"""The server at the lowest versions that pyproject.toml declares: `make test-lowest` installs them in an environment of
their own. Everything is imported there, and the bundled model answers on every wire."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from packaging.requirements import Requirement
from websockets.sync.client import connect

from scripts import lock, release

pytestmark = [pytest.mark.lowest, pytest.mark.timeout(600)]
PYTHON = Path(os.environ.get("LOWEST_ENV", ".lowest")) / "bin" / "python"
EVERYTHING = """
import importlib, pkgutil
rooms = [module.name for package in ("agent_server", "adapters", "events")
         for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")
         if not module.name.startswith("agent_server.runs.store.migrations.")]
optional = ("triton", "gguf", "vllm")
for name in rooms:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] not in optional:
            raise
print(len(rooms))
"""
"""Imports every module but those of extras that raise other minimums."""
VERSIONS = """
import importlib.metadata, json
print(json.dumps({each.name.lower().replace("_", "-"): each.version for each in importlib.metadata.distributions()}))
"""
USER = {"role": "user", "content": "Hello"}
AGUI = {**release.HELLO, "messages": [{"id": "u", **USER}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
WIRES: dict[str, tuple[str, dict[str, Any], str]] = {
    "AG-UI": ("/agui", AGUI, '"RUN_FINISHED"'),
    "CopilotKit": ("/copilotkit/agent/default/run", {**AGUI, "tools": [], "context": []}, '"RUN_FINISHED"'),
    "chat": ("/v1/chat/completions", {"messages": [USER], "stream": True}, "data: [DONE]"),
    "completions": ("/v1/completions", {"prompt": "Hello", "max_tokens": 8}, '"finish_reason"'),
    "responses": ("/v1/responses", {"input": "Hello", "stream": True}, "response.completed"),
    "messages": ("/v1/messages", {"messages": [USER], "max_tokens": 64, "stream": True}, "message_stop"),
    "generate": ("/v1/generate", {"prompt": "Hello", "max_tokens": 8}, "text"),
    "llama.cpp": ("/completion", {"prompt": "Hello", "n_predict": 8}, '"content"'),
}


def test_the_lowest_versions_are_what_is_installed() -> None:
    installed: dict[str, str] = json.loads(release.run(PYTHON, "-c", VERSIONS))
    project = tomllib.loads((release.ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    lowest = dict(line.split("==") for line in lock.pins(PYTHON.parents[1] / "lowest.txt") if ";" not in line)
    for line in project["dependencies"]:
        name = Requirement(line).name.lower()
        if name in lowest:
            assert installed[name].partition("+")[0] == lowest[name], name


def test_every_module_can_be_imported() -> None:
    assert int(release.run(PYTHON, "-P", "-c", EVERYTHING)) > 150, "the rooms were walked"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with release.served(PYTHON) as address:
        yield address


@pytest.mark.parametrize("wire", WIRES)
def test_the_bundled_model_answers_on_every_wire(url: str, wire: str) -> None:
    path, body, end = WIRES[wire]
    answer = httpx.post(url + path, json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert end in answer.text and '"RUN_ERROR"' not in answer.text


def test_a_web_socket_answers(url: str) -> None:
    with connect(url.replace("http", "ws", 1) + "/agui/ws") as socket:
        socket.send(json.dumps({"type": "run", "input": AGUI}))
        frames = [str(socket.recv(timeout=60))]
        while "RUN_FINISHED" not in frames[-1]:
            frames.append(str(socket.recv(timeout=60)))
    assert any("TEXT_MESSAGE_CONTENT" in frame for frame in frames)


def test_a_schema_binds_the_answer_and_a_run_is_stored(url: str) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA, "strict": True}}
    body = {"messages": [USER], "response_format": form, "max_tokens": 64}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(choice["message"]["content"])["a"], int)
    first = httpx.post(f"{url}/v1/responses", json={"input": "Hello"}, timeout=60).json()
    assert httpx.get(f"{url}/v1/responses/{first['id']}", timeout=60).json()["output"] == first["output"]
