"""AG-UI over HTTP, with the scripted engine in the bundled model's tokens."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from adapters import sse
from agent_server.engine_protocol.protocol import EngineError, EngineInfo
from agent_server.engines.scripted import Script, ScriptedEngine
from tests.server import scripted, serving


def body(text: str = "Hi", **changes: Any) -> dict[str, Any]:
    base = {
        "threadId": "t1", "runId": "r1", "protocolVersion": "1.0", "state": {}, "tools": [], "context": [],
        "messages": [{"id": "u1", "role": "user", "content": text}], "forwardedProps": {},
    }  # fmt: skip
    return {**base, **changes}


async def events_of(client: httpx.AsyncClient, request: dict[str, Any], path: str = "/agui") -> list[dict[str, Any]]:
    response = await client.post(path, json=request)
    assert response.status_code == 200, response.text
    return [json.loads(frame["data"]) for frame in sse.parse([response.content])]


WEATHER = {
    "name": "get_weather",
    "description": "Weather",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}
CALL = '<think>\nThey want the weather.\n</think>\n\n<tool_call>\n{"name": "get_weather", "arguments": {"location": "Oslo"}}\n</tool_call>'


async def test_a_call_of_the_clients_tool_ends_the_run_with_the_call_pending():
    async with serving(scripted(CALL)) as running, httpx.AsyncClient(base_url=running.url) as client:
        events = await events_of(client, body("Weather in Oslo?", tools=[WEATHER]))
    names = [event["type"] for event in events]
    assert names[0] == "RUN_STARTED" and names[-1] == "RUN_FINISHED"
    arguments = "".join(event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS")
    assert json.loads(arguments) == {"location": "Oslo"}
    call = next(event for event in events if event["type"] == "TOOL_CALL_START")
    assert events[-1]["outcome"] == {"type": "success", "pendingToolCallIds": [call["toolCallId"]]}
    assert events[-1]["metadata"]["finishReason"] == "tool_calls"
    assert events[-1]["usage"][0]["inputTokens"] > 0
    assert "TOOL_CALL_RESULT" not in names


async def test_an_older_client_gets_its_dialect():
    request = body("Weather in Oslo?", tools=[WEATHER])
    del request["protocolVersion"]
    async with serving(scripted(CALL)) as running, httpx.AsyncClient(base_url=running.url) as client:
        events = await events_of(client, request)
    assert "outcome" not in events[-1]


async def test_one_run_seen_through_both_wires_is_the_same_message():
    tool = {"type": "function", "function": WEATHER}
    messages = [{"role": "user", "content": "Weather in Oslo?"}]
    async with serving(scripted(CALL)) as running, httpx.AsyncClient(base_url=running.url) as client:
        events = await events_of(client, body("Weather in Oslo?", tools=[WEATHER]))
        answer = (
            await client.post("/v1/chat/completions", json={"model": "default", "messages": messages, "tools": [tool]})
        ).json()
    reasoning = "".join(event["delta"] for event in events if event["type"] == "REASONING_MESSAGE_CONTENT")
    arguments = "".join(event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS")
    message = answer["choices"][0]["message"]
    assert message["reasoning"] == reasoning == "They want the weather."
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": arguments}


async def test_a_client_that_vanishes_in_silence_frees_its_slot():
    slow = scripted((Script(text="never", first_delay=60),))
    async with serving(slow, grace=0.0) as running, httpx.AsyncClient(base_url=running.url) as client:
        asking = asyncio.create_task(client.post("/agui", json=body()))
        while not running.engine.running:
            await asyncio.sleep(0.01)
        asking.cancel()
        async with asyncio.timeout(5):
            while running.engine.running:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("path", ["/agui", "/v1/chat/completions"])
async def test_a_body_of_empty_messages_is_refused(path: str):
    bomb = b'{"threadId":"t","runId":"r","model":"default","messages":[' + b"{}," * 200_000 + b"{}]}"
    async with serving(scripted("Hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        response = await client.post(path, content=bomb)
    assert 400 <= response.status_code < 500
    assert len(response.content) < 16 * 1024


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "JSON"), (b"{", "JSON"), (b"\xff", ""), (b'{"messages": 1}', "messages"), (b"[" * 5000, "")],
)
async def test_bad_bodies_get_a_clear_400(content: bytes, says: str):
    async with serving(scripted("Hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        response = await client.post("/agui", content=content)
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


async def test_an_unknown_agent_and_an_unknown_path_are_404s():
    async with serving(scripted("Hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.post("/agui/nobody", json=body())).status_code == 404
        assert (await client.get("/nothing/here")).status_code == 404
        assert (await client.get("/agui")).status_code == 405


async def test_keys_admit_and_everything_else_is_refused_in_the_wires_own_shape():
    async with serving(scripted("Hello"), api_keys=("alice:s3cret",)) as running:
        async with httpx.AsyncClient(base_url=running.url) as client:
            refused = await client.post("/v1/chat/completions", json={})
            assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
            assert (await client.post("/agui", json=body())).status_code == 401
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/health")).status_code == 200
        async with httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer s3cret"}) as client:
            assert (await events_of(client, body()))[-1]["type"] == "RUN_FINISHED"


async def test_while_the_model_loads_readiness_says_so_and_runs_are_told():
    loading = scripted("Hello", load_seconds=30)
    async with serving(loading, ready=False) as running, httpx.AsyncClient(base_url=running.url) as client:
        ready = await client.get("/ready")
        assert ready.status_code == 503 and ready.json()["state"] in ("starting", "loading")
        events = await events_of(client, body())
        assert events[-1]["type"] == "RUN_ERROR" and events[-1]["code"] == "unavailable"


@pytest.mark.parametrize("path", ["/agui/capabilities", "/v1/models", "/copilotkit/info"])
async def test_nothing_breaks_while_the_model_loads(path: str):
    async with serving(Embedded(), ready=False) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get(path)).status_code in (200, 503)


class Embedded(ScriptedEngine):
    """Knows nothing of its model until it is loaded, as the embedded engine does."""

    def __init__(self) -> None:
        super().__init__(load_seconds=60)

    @property
    def info(self) -> EngineInfo:
        raise EngineError("unavailable", "The model is not loaded yet.", retryable=True)


async def test_metrics_are_prometheus_text():
    async with serving(scripted("Hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        await events_of(client, body())
        text = (await client.get("/metrics")).text
    assert 'agent_server:request_success_total{reason="stop"} 1.0' in text
    assert "agent_server:num_requests_running 0.0" in text


async def test_ids_of_any_script_stream_and_ids_that_no_header_can_hold_are_refused():
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        fine = await client.post("/agui", json=body(threadId="日本 100%", runId="é"))
        refused = [await client.post("/agui", json=body(**{name: "a\nb"})) for name in ("threadId", "runId")]
    assert (fine.headers["x-thread-id"], fine.headers["x-run-id"]) == ("%E6%97%A5%E6%9C%AC%20100%25", "%C3%A9")
    assert '"threadId":"日本 100%"' in fine.text
    assert [(answer.status_code, answer.json()["error"]["param"]) for answer in refused] == [
        (400, "threadId"),
        (400, "runId"),
    ]


@pytest.mark.parametrize("prefer", ["respond-async", 'handling=lenient, Respond-Async; wait="1"'])
async def test_a_run_that_is_asked_for_without_a_reader_goes_on_alone(prefer: str):
    engine = scripted("<think>\nHm.\n</think>\n\nOslo.")
    async with serving(engine, grace=0.0, root_path="/ai") as running, httpx.AsyncClient() as client:
        place = f"{running.url}/agui"
        response = await client.post(place, json=body(runId="r 1"), headers={"Prefer": prefer})
        assert (response.status_code, response.headers["preference-applied"]) == (202, "respond-async")
        assert response.headers["location"].endswith("/agui/runs/r%201")
        assert response.json()["runId"] == "r 1"
        await running.server.runs.get("r 1").wait()
        stored = await running.server.store.messages("", "t1")
        assert [each["role"] for each in stored] == ["user", "reasoning", "assistant"]
        again = await client.get(f"{place}/runs/r%201/events")
        events = [json.loads(frame["data"]) for frame in sse.parse([again.content])]
        assert (events[0]["type"], events[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")


async def test_a_run_with_a_reader_ends_with_it_whatever_else_is_preferred():
    async with serving(scripted("Oslo."), grace=0.0) as running, httpx.AsyncClient() as client:
        response = await client.post(f"{running.url}/agui", json=body(), headers={"Prefer": "return=minimal"})
        assert (response.status_code, response.headers["content-type"][:17]) == (200, "text/event-stream")
