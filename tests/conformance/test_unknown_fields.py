"""Fields that this server does not know: ignored with a warning and a count on every wire, unless it is strict."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from websockets.asyncio.client import connect

from tests.server import Running, scripted, serving

HELLO: Any = [{"role": "user", "content": "Hello"}]
WARNING = "session_id is not a field of this request and was ignored."
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/messages/count_tokens": {"messages": HELLO},
    "/v1/generate": {"prompt": "Hello"},
    "/completion": {"prompt": "Hello"},
    "/tokenize": {"content": "Hello"},
}
RUN: dict[str, Any] = {
    "threadId": "t", "runId": "r", "protocolVersion": "1.0", "state": {}, "context": [], "tools": [],
    "forwardedProps": {}, "messages": [{"id": "1", "role": "user", "content": "Hello"}],
}  # fmt: skip


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(scripted("Hi.")) as found:
        yield found


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as found:
        yield found


@pytest.mark.parametrize("path", BODIES)
async def test_an_unknown_field_is_ignored_with_a_warning(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, json={**BODIES[path], "session_id": "s1"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-warning"] == WARNING
    assert "x-warning" not in (await http.post(path, json=BODIES[path])).headers
    assert 'ignored_fields_total{field="session_id"} 1.0' in (await http.get("/metrics")).text


@pytest.mark.parametrize("path", [path for path in BODIES if path not in ("/tokenize", "/v1/messages/count_tokens")])
async def test_streams_warn_too(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, json={**BODIES[path], "session_id": "s1", "stream": True})
    assert answer.status_code == 200 and answer.headers["x-warning"] == WARNING
    # A body that is large enough to be parsed in a thread.
    answer = await http.post(path, json={**BODIES[path], "session_id": "s" * 100_000, "stream": True})
    assert answer.status_code == 200 and answer.headers["x-warning"] == WARNING


@pytest.mark.parametrize("path", ["/agui", "/copilotkit/agent/default/run"])
async def test_agui_and_copilotkit(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.post(path, json={**RUN, "session_id": "s", "forwardedProps": {"thinking_budget": 5}})
    assert answer.status_code == 200 and "RUN_FINISHED" in answer.text
    assert answer.headers["x-warning"] == WARNING
    assert WARNING in answer.text


async def test_websockets(running: Running, http: httpx.AsyncClient) -> None:
    async with connect(running.url.replace("http", "ws") + "/generate") as socket:
        await socket.send(json.dumps({"type": "config", "prompt": "Hello", "session_id": "s", "parameters": {"x": 1}}))
        while (message := json.loads(await socket.recv()))["type"] != "completion":
            assert message["type"] != "error", message
    assert message["warnings"] == [WARNING, "parameters.x is not a field of this request and was ignored."]
    async with connect(running.url.replace("http", "ws") + "/agui/ws") as socket:
        await socket.send(json.dumps({"type": "run", "input": RUN, "session_id": "s"}))
        heard = ""
        while "RUN_FINISHED" not in heard:
            heard = str(await socket.recv())
            assert '"error"' not in heard, heard
    assert WARNING in heard


async def test_what_official_clients_send_beside_the_rest(running: Running) -> None:
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        await client.chat.completions.create(
            model="default", messages=HELLO, service_tier="flex", verbosity="low", safety_identifier="u",
            prompt_cache_key="k", prediction={"type": "content", "content": "Hi."}, stream=True,
            stream_options={"include_obfuscation": True}, extra_body={"keep_alive": "5m", "thinking_budget": 5},
        )  # fmt: skip
        await client.responses.create(
            model="default", input="Hello", service_tier="priority", max_tool_calls=3, text={"verbosity": "high"},
            prompt_cache_key="k", extra_body={"session_id": "s"},
        )  # fmt: skip
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as claude:
        await claude.beta.messages.create(
            model="default", max_tokens=9, messages=HELLO, service_tier="auto", speed="fast", betas=["x-2026-01-01"],
            extra_body={"fallbacks": [{"model": "m"}]},
        )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"chat_template": "{{ messages }}"}),
        ("/v1/chat/completions", {"system": "Be brief."}),
        ("/v1/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
    ],
)
async def test_what_would_change_the_answer_is_refused(http: httpx.AsyncClient, path: str, more: Any) -> None:
    answer = await http.post(path, json={**BODIES[path], **more})
    assert answer.status_code == 400 and next(iter(more)) in answer.text


async def test_a_strict_server_refuses_unknown_fields() -> None:
    strict = serving(scripted("Hi."), strict_fields=True)
    async with strict as running, httpx.AsyncClient(base_url=running.url, timeout=30) as http:
        for path, body in BODIES.items():
            answer = await http.post(path, json={**body, "session_id": "s1"})
            assert answer.status_code == 400 and "session_id" in answer.text, path
            assert (await http.post(path, json=body)).status_code == 200


async def test_clients_cannot_fill_the_metrics_with_names(http: httpx.AsyncClient) -> None:
    for start in range(0, 200, 20):
        names = {f"made_up_{number}": 1 for number in range(start, start + 20)}
        odd = {'"}\n': 1, "x" * 5000: 1, "é": 1, "": 1}
        answer = await http.post("/v1/chat/completions", json={**BODIES["/v1/chat/completions"], **names, **odd})
        assert answer.status_code == 200
        assert sum(map(len, answer.headers.get_list("x-warning"))) < 4096
    lines = [line for line in (await http.get("/metrics")).text.splitlines() if "ignored_fields_total{" in line]
    assert len(lines) <= 65 and any('field="other"' in line for line in lines)
