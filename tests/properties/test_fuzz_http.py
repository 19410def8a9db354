"""Malformed requests against a running server: never a 5xx, never a hang, answers small and in the wire's own shape.

    python -m tests.properties.test_fuzz_http --cases 10000 [--seed 1] [--only /v1/messages]

Bodies for every route that takes one, and messages for both WebSockets. Run as a test on a sample.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import random
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import aiohttp
import httpx
import pytest
import websockets
from starlette.routing import Route

from adapters.errors import Wire
from agent_server.http.app import build_app
from tests.properties.test_fuzz_wires import (
    AGUI,
    ANSWER_LIMIT,
    BODIES,
    CHAT,
    HISTORY,
    MESSAGES,
    RESPONSES,
    changed,
    malformed,
    spoilt,
    written,
)
from tests.server import Running, scripted, serving

PATHS: dict[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/completions": "completions",
    "/v1/messages": "anthropic",
    "/v1/messages/count_tokens": "anthropic count",
    "/v1/generate": "generate",
    "/tokenize": "tokenize",
    "/agui": "agui",
    "/ai-sdk/default": "ui messages",
    "/api/chat": "ollama",
}
CALL = {"method": "agent/run", "params": {"agentId": "default", "threadId": "t"}, "body": AGUI}
EVENTS: list[dict[str, Any]] = [
    {"type": "RUN_STARTED", "threadId": "t", "runId": "r"},
    {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "d", "metadata": {"tokens": [[1, "d", -0.5, []]]}},
    {"type": "TOOL_CALL_START", "toolCallId": "c", "toolCallName": "f", "parentMessageId": "m"},
    {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": "{}"},
    {"type": "STATE_DELTA", "delta": [{"op": "add", "path": "/a", "value": 1}]},
    {
        "type": "RUN_FINISHED",
        "threadId": "t",
        "runId": "r",
        "usage": [{"model": "m", "inputTokens": 1}],
        "metadata": {"finishReason": "stop"},
    },
    {"type": "RUN_ERROR", "message": "m", "code": "internal", "metadata": {"retryable": True, "param": "p"}},
]
THREAD = "/agui/threads/t"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
OTHERS: dict[str, tuple[Wire, dict[str, Any]]] = {
    "/detokenize": ("openai", {"model": "m", "tokens": [1, 2, 3]}),
    "/completion": ("openai", {"prompt": ["a", 5], "n_predict": 5, "json_schema": SCHEMA, "stop": ["x"], "n_probs": 2}),
    "/apply-template": ("openai", {"messages": HISTORY, "chat_template_kwargs": {"a": 1}}),
    "/v1/chat/completions/render": ("openai", CHAT),
    "/v1/chat/completions/input_tokens": ("openai", CHAT),
    "/v1/embeddings": ("openai", {"model": "m", "input": ["a", "b"], "dimensions": 5, "encoding_format": "base64"}),
    "/v1/decisions": (
        "openai",
        {
            "input": "a",
            "questions": [{"type": "choice", "instructions": "b", "choices": [{"value": "c"}, {"value": "d"}]}],
        },
    ),
    "/v1/rerank": ("openai", {"model": "m", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1}),
    "/v2/rerank": ("openai", {"model": "m", "query": "a", "documents": ["b"], "return_documents": False}),
    "/v1/score": ("openai", {"model": "m", "queries": ["a"], "documents": ["b", "c"], "truncate_prompt_tokens": 5}),
    "/v1/responses/input_tokens": ("openai", RESPONSES),
    "/v1/responses/compact": ("openai", RESPONSES),
    "/v1/responses/{response}/cancel": ("openai", {}),
    "/v1/conversations": ("openai", {"items": RESPONSES["input"], "metadata": {"k": "v"}}),
    "/v1/conversations/{conversation}": ("openai", {"metadata": {"k": "v"}}),
    "/v1/conversations/{conversation}/items": ("openai", {"items": RESPONSES["input"]}),
    "/v1/audio/transcriptions": ("openai", {"model": "m", "file": "f", "language": "en", "temperature": 0.5}),
    "/agui/default": ("agui", AGUI),
    "/copilotkit": ("copilotkit", CALL),
    "/copilotkit/": ("copilotkit", CALL),
    "/copilotkit/agent/default/run": ("copilotkit", AGUI),
    "/copilotkit/agent/default/connect": ("copilotkit", AGUI),
    "/copilotkit/agent/default/suggest": ("copilotkit", {**AGUI, "count": 2, "instructions": "i"}),
    "/copilotkit/agent/default/stop/t": ("copilotkit", {}),
    "/copilotkit/threads/clear": ("copilotkit", {}),
    "/copilotkit/threads/t/archive": ("copilotkit", {}),
    "/copilotkit/threads/t": ("copilotkit", {"name": "n", "archived": True}),
    "/copilotkit/annotate": ("copilotkit", {"threadId": "t", "messageId": "m", "kind": "thumbs_up", "payload": {}}),
    "/copilotkit/transcribe": ("copilotkit", {"audio": "QUJD", "mimeType": "audio/wav", "filename": "f"}),
    THREAD: ("agui", {"name": "n", "metadata": {"k": "v"}, "archived": True}),
    f"{THREAD}/removed/x/restore": ("agui", {}),
    f"{THREAD}/branch": ("agui", {"messageId": "m"}),
    f"{THREAD}/feedback": ("agui", {"rating": 1, "text": "t", "messageId": "m", "position": 3}),
    "/ai-sdk/default/t/stop": ("agui", {}),
    "/agui/mcp/prompt": ("agui", {"server": "s", "name": "n", "arguments": {"a": "b"}}),
    "/agui/mcp/resource": ("agui", {"server": "s", "uri": "file:///{a}", "arguments": {"a": "b"}}),
    "/agui/mcp/complete": (
        "agui",
        {"server": "s", "prompt": "n", "argument": "a", "value": "v", "arguments": {"b": "c"}},
    ),
    "/agui/runs/r/cancel": ("agui", {}),
    "/agui/runs/r/pause": ("agui", {}),
    "/agui/runs/r/resume": ("agui", {}),
    "/agui/runs/r/modify": ("agui", {"temperature": 0.5}),
    "/operator/adapters": ("agui", {"name": "n", "folder": "f"}),
    "/operator/models": ("agui", {"name": "n", "loaded": False}),
    "/operator/replicas": ("agui", {"name": "n", "draining": True}),
    "/demo/wires": ("agui", EVENTS[0]),
    "/demo/models": ("agui", {"action": "pause", "source": "m"}),
    "/api/generate": ("ollama", {"model": "m", "prompt": "p", "options": {"num_predict": 9}, "think": True}),
    "/api/embed": ("ollama", {"model": "m", "input": ["a", "b"], "dimensions": 5}),
    "/api/embeddings": ("ollama", {"model": "m", "prompt": "p"}),
    "/api/show": ("ollama", {"model": "m"}),
    "/mcp": ("agui", {}),
    "/a2a/default": ("agui", {}),
}
CHANGES = frozenset({"/copilotkit/threads/t", THREAD})
"""Routes that are asked with PATCH; all others with POST."""
SOCKETS = {"/generate": "websocket", "/agui/ws": "agui websocket"}
CODES = frozenset({1000, 1003, 1007, 1008, 1009, 1013})
"""Codes that a WebSocket may be closed with for what a client sent. 1011 would be a 5xx."""
SAMPLE = 40
SECONDS = 60.0
"""What takes longer is taken for a hang, on a machine that has other things to do as well."""


def wire_at(path: str) -> Wire:
    return OTHERS[path][0] if path in OTHERS else BODIES[PATHS[path]][0]


def body_for(path: str, rng: random.Random) -> bytes:
    if path == "/demo/wires":  # a log: one event a line
        events = [rng.choice(EVENTS) for _ in range(rng.randint(1, 6))]
        return b"\n".join(spoilt(written(changed(e, rng) if rng.random() < 0.5 else e), rng) for e in events)
    if path in OTHERS:
        return spoilt(written(changed(OTHERS[path][1], rng)), rng)
    body = malformed(PATHS[path], rng)
    return body.replace(b'"model": "m"', b'"model": "default"', 1)


def is_error_of(wire: Wire, body: Any) -> bool:
    if "jsonrpc" in body:
        return {"code", "message"} <= set(body["error"])
    match wire:
        case "ollama":
            return isinstance(body["error"], str)
        case "openai":
            return set(body["error"]) == {"message", "type", "param", "code"}
        case "anthropic":
            return body["type"] == "error" and set(body["error"]) - {"details"} == {"type", "message"}
        case "copilotkit":
            return {"error", "message"} <= set(body) and all(
                isinstance(body[name], str) for name in ("error", "message")
            )
    return {"code", "message", "retryable"} <= set(body["error"])


async def refused(client: aiohttp.ClientSession, path: str, ids: dict[str, str], body: bytes) -> bool:
    """Send one body, with these ids in the path; whether it was refused. AssertionError for an answer that is none."""
    method, place = "PATCH" if path in CHANGES else "POST", path.format(**ids)
    async with client.request(method, place, data=io.BytesIO(body), skip_auto_headers=("content-type",)) as answer:
        content = await answer.read()
    if answer.status < 300:
        return False
    said = json.loads(content)
    absent = answer.status == 503 and said["error"] == "service_not_configured"  # CopilotKit's own status
    assert 400 <= answer.status < 500 or absent, (answer.status, content[:500])
    assert len(content) < ANSWER_LIMIT, len(content)
    assert is_error_of(wire_at(path), said), said
    return True


def is_error_message(path: str, message: dict[str, Any]) -> bool:
    """Whether a message says that something was refused; AssertionError for one in the wrong shape."""
    if path == "/generate":
        if message["type"] != "error":
            return False
        assert {"error", "message", "recoverable"} <= set(message), message
        return True
    if message["type"] == "RUN_ERROR":
        assert {"code", "message", "metadata"} <= set(message), message
        return True
    return message["type"] == "CUSTOM" and message["name"] == "agent_server.error"


async def converse(url: str, path: str, rng: random.Random) -> int:
    """A row of malformed messages on one connection, and whether it still answers; how many were refused."""
    errors = 0
    async with websockets.connect(url.replace("http", "ws", 1) + path, max_size=None, close_timeout=SECONDS) as socket:

        async def read() -> None:
            nonlocal errors
            with contextlib.suppress(websockets.ConnectionClosed):
                async for data in socket:
                    assert len(data) < ANSWER_LIMIT, len(data)
                    errors += is_error_message(path, json.loads(data))

        reading = asyncio.create_task(read())
        try:
            for _ in range(rng.randint(1, 5)):
                value = rng.choice(MESSAGES[SOCKETS[path]])
                data = spoilt(written(value if rng.random() < 0.3 else changed(value, rng)), rng)
                await socket.send(data if rng.random() < 0.03 else data.decode("utf-8", "replace"))
            await asyncio.wait_for(await socket.ping(), SECONDS)
            await socket.close()
        except websockets.ConnectionClosed:
            pass
        await asyncio.wait_for(reading, SECONDS)
    assert socket.close_code in CODES, (socket.close_code, socket.close_reason)
    return errors


async def asked_before(client: aiohttp.ClientSession) -> dict[str, str]:
    """Ids of what the routes with a name in their path ask for: a thread `t`, an answer, a conversation."""
    said = {"messages": [{"id": "m", "role": "user", "content": "Hi"}], "tools": [], "context": [], "state": {}}
    await made(client, "/agui", {"threadId": "t", "runId": "r", **said})
    response = await made(client, "/v1/responses", {"model": "default", "input": "Hi", "store": True})
    conversation = await made(client, "/v1/conversations", {})
    return {name: json.loads(body)["id"] for name, body in (("response", response), ("conversation", conversation))}


async def made(client: aiohttp.ClientSession, path: str, body: dict[str, Any]) -> bytes:
    async with client.post(path, json=body) as answer:
        answer.raise_for_status()
        return await answer.read()


async def run(running: Running, path: str, cases: int, seed: Any) -> tuple[int, float]:
    """(how many were refused, the longest that one case took in seconds)."""
    count, slowest = 0, 0.0
    patience = aiohttp.ClientTimeout(total=SECONDS)
    async with aiohttp.ClientSession(running.url, timeout=patience, read_bufsize=2**20) as client:
        ids = await asked_before(client)
        for case in range(cases):
            rng = random.Random(f"{path} {seed} {case}")
            begun = time.perf_counter()
            try:
                if path in SOCKETS:
                    count += await converse(running.url, path, rng)
                else:
                    count += await refused(client, path, ids, body_for(path, rng))
            except Exception as error:
                raise AssertionError(f"{path}, seed {seed}, case {case}: {error!r}") from error
            slowest = max(slowest, time.perf_counter() - begun)
    return count, slowest


async def idle(running: Running) -> bool:
    """Whether nothing is left running, within a second: a run's end takes a moment to arrive everywhere."""
    for _ in range(100):
        if not running.engine.running and not running.server.runs.active:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("path", sorted([*PATHS, *OTHERS, *SOCKETS]))
async def test_malformed_bodies_and_messages(path: str) -> None:
    async with serving(scripted("Fine.")) as running:
        count, _ = await run(running, path, SAMPLE, seed=7)
        assert await idle(running)
    assert count > SAMPLE / 5 or (path in OTHERS and not OTHERS[path][1])


async def test_every_route_that_takes_a_body_is_tried() -> None:
    async with serving(scripted("Fine.")) as running:
        routes = [each for each in build_app(running.server).routes if isinstance(each, Route)]
    taking = {each.path: each for each in routes if {"POST", "PUT", "PATCH"} & (each.methods or set())}
    tried = [path.format(response="r", conversation="c") for path in (*PATHS, *OTHERS)]
    missing = [path for path, route in taking.items() if not any(route.path_regex.match(each) for each in tried)]
    assert missing == []


async def test_wrong_methods_and_paths_have_the_wires_shape() -> None:
    async with serving(scripted("Fine.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for path, name in PATHS.items():
            answer = await client.get(path)
            assert answer.status_code == 405
            assert is_error_of(BODIES[name][0], answer.json())
        for path in ("/v1/responses/none", "/v1/responses/none/input_items", "/v1/models/none"):
            assert is_error_of("openai", (await client.get(path)).json())
        for path in ("/v1/responses/none/cancel", "/v1/responses/none"):
            answer = await client.request("POST" if path.endswith("cancel") else "DELETE", path)
            assert answer.status_code == 404


def tried(path: str, cases: int, seed: str) -> tuple[str, int, float]:
    """A route with a server of its own: the path, how many were refused, and the longest that one took in seconds."""

    async def whole() -> tuple[int, float]:
        async with serving(scripted("Fine.")) as running:
            found = await run(running, path, cases, seed)
            assert await idle(running), path
            return found

    return path, *asyncio.run(whole())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--only", help="one path")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    paths = [arguments.only] if arguments.only else [*SOCKETS, *PATHS, *OTHERS]
    each, refusals, longest = partial(tried, cases=arguments.cases, seed=arguments.seed), 0, 0.0
    faults: list[str] = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for started in [pool.submit(each, path) for path in paths]:
            try:
                path, count, slowest = started.result()
            except AssertionError as error:  # the other routes are tried all the same
                faults.append(str(error))
                print(error, flush=True)
                continue
            said = f"{path}: {arguments.cases} cases, {count} refused, no 5xx, the slowest took {slowest * 1000:.0f} ms"
            print(said, flush=True)
            refusals, longest = refusals + count, max(longest, slowest)
    print(
        f"{len(paths)} routes, {arguments.cases} malformed bodies each: {refusals} refused, {len(faults)} routes with a "
        f"fault, the slowest answer took {longest * 1000:.0f} ms"
    )
    return int(bool(faults))


if __name__ == "__main__":
    raise SystemExit(main())
