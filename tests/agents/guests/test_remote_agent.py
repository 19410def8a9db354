"""Agents at a URL: what is sent to them, what of their answers reaches the client, and how they may fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from agent_server.agents import LoadError
from agent_server.agents.guests import RemoteAgent, load_named
from tests.agents.guests.talking import body, events_of, told, user
from tests.server import scripted, serving, settings

Answer = Callable[[web.Request], Any]
STARTED = {"type": "RUN_STARTED", "threadId": "x", "runId": "x"}
FINISHED = {"type": "RUN_FINISHED", "threadId": "x", "runId": "x", "outcome": None, "result": None}
SAID = [
    STARTED,
    {"type": "THINKING_START"},
    {"type": "THINKING_TEXT_MESSAGE_START", "timestamp": None},
    {"type": "THINKING_TEXT_MESSAGE_CONTENT", "delta": "Hm."},
    {"type": "THINKING_TEXT_MESSAGE_END"},
    {"type": "THINKING_END"},
    {"type": "TEXT_MESSAGE_START", "messageId": "m1", "role": "assistant", "rawEvent": None},
    {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m1", "delta": "Hi."},
    {"type": "TEXT_MESSAGE_END", "messageId": "m1"},
    FINISHED,
]


@contextlib.asynccontextmanager
async def elsewhere(answer: Answer) -> AsyncIterator[str]:
    """A server whose POST /run gives what `answer` makes."""
    app = web.Application()
    app.router.add_post("/run", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/run"
    finally:
        await runner.cleanup()


def stream(events: list[dict[str, Any]], end: str = "\n") -> web.Response:
    text = f": hello{end}{end}" + "".join(f"event: message{end}data: {json.dumps(each)}{end}{end}" for each in events)
    return web.Response(text=text, content_type="text/event-stream")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
async def test_an_older_agent_elsewhere_is_read_and_told_under_our_ids(end: str) -> None:
    sent: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        sent.append((await request.json(), request.headers))
        return stream(SAID, end)

    async with elsewhere(answer) as url:
        agent = RemoteAgent(url, name="far", headers={"Authorization": "Bearer secret"})
        async with serving(scripted("no"), agents=[agent]) as running:
            frames = await events_of(running.url, body(user("hi"), state={"a": None}), "/agui/far", cookie="c=1")
    assert told(frames) == [("reasoning", "Hm."), ("text", "Hi."), ("finished", "success")]
    assert (frames[0]["threadId"], frames[-1]["runId"]) == ("t1", "r1")
    given, headers = sent[0]
    assert given["protocolVersion"] == "1.0" and given["state"] == {"a": None} and "resume" not in given
    assert headers["Authorization"] == "Bearer secret" and "Cookie" not in headers


async def test_a_peer_that_refuses_unknown_fields_is_asked_without_them() -> None:
    seen: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(await request.json())
        return web.Response(status=422) if "protocolVersion" in seen[-1] else stream(SAID)

    async with elsewhere(answer) as url, serving(scripted("no"), agents=[RemoteAgent(url)]) as running:
        first = await events_of(running.url, body(user("hi")))
        await events_of(running.url, body(user("hi"), run="r2"))
    assert told(first)[-1] == ("finished", "success") and ["protocolVersion" in each for each in seen] == [
        True,
        False,
        False,
    ]


async def broken(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(f"data: {json.dumps(STARTED)}\n\n".encode())
    assert request.transport is not None
    request.transport.close()
    return response


async def silent(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await asyncio.Event().wait()
    return response


async def unended(request: web.Request) -> web.Response:
    return stream(SAID[:-1])


async def refusing(request: web.Request) -> web.Response:
    return web.Response(status=401, text="the key is swordfish")


async def page(request: web.Request) -> web.Response:
    return web.Response(text="<html>", content_type="text/html")


async def failing(request: web.Request) -> web.Response:
    return stream([STARTED, {"type": "RUN_ERROR", "message": "KeyError: swordfish"}])


FAULTS: dict[str, tuple[Answer, str]] = {
    "breaks off": (broken, "connection"),
    "is silent": (silent, "timeout"),
    "ends without a terminal event": (unended, "connection"),
    "refuses": (refusing, "connection"),
    "answers with a page": (page, "connection"),
    "tells an exception": (failing, "internal"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_agent_that_fails_is_a_run_error_without_its_words(fault: str) -> None:
    answer, code = FAULTS[fault]
    async with elsewhere(answer) as url:
        agent = RemoteAgent(url, idle=0.3)
        async with serving(scripted("no"), agents=[agent]) as running:
            frames = await events_of(running.url, body(user("hi")))
    assert frames[-1]["type"] == "RUN_ERROR" and frames[-1]["code"] == code
    assert "swordfish" not in json.dumps(frames)


async def test_one_of_our_own_servers_can_be_the_agent_elsewhere() -> None:
    async with contextlib.AsyncExitStack() as stack:
        far = await stack.enter_async_context(serving(scripted("<think>\nHm.\n</think>\n\nOslo.")))
        running = await stack.enter_async_context(serving(scripted("no"), agent=(f"far={far.url}/agui",)))
        frames = await events_of(running.url, body(user("Where?")), "/agui/far")
    assert told(frames) == [("reasoning", "Hm."), ("text", "Oslo."), ("finished", "success")]
    assert frames[-1]["usage"][0]["outputTokens"] > 0


def test_names_of_agents_elsewhere() -> None:
    found = load_named(["https://agents.example/a/weather/", "http://one.example", "x=http://two.example/agui"])
    assert [each.name for each in found] == ["weather", "one.example", "x"]


async def test_headers_of_an_agent_elsewhere_are_a_setting() -> None:
    sent: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        sent.append(request.headers.get("Authorization"))
        return stream(SAID)

    headers = '{"far": {"Authorization": "Bearer a,b"}}'
    async with (
        elsewhere(answer) as url,
        serving(scripted("no"), agent=(f"far={url}",), agent_headers=headers) as running,
    ):
        await events_of(running.url, body(user("Hello")), "/agui/far")
        assert "Bearer" not in repr(running.server.settings)
    assert sent == ["Bearer a,b"]


@pytest.mark.parametrize(
    "headers, said",
    [
        ('{"near": {"X": "1"}}', "near, which is not an agent at a URL. Those are: far"),
        ('{"far": {"X": "1\\r\\nY: 2"}}', "control codes"),
        ('{"far": {"X Y": "1"}}', "is not a valid header name"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(headers: str, said: str) -> None:
    given = settings(agent_headers=headers).served.agent_headers
    with pytest.raises(LoadError, match=said):
        load_named(["far=http://one.example"], headers=given)


COPIES = {"type": "STATE_DELTA", "delta": [{"op": "copy", "from": "", "path": f"/{key}"} for key in range(64)]}
DEEP = json.loads("[" * 900 + "]" * 900)
ASKS = {"type": "interrupt", "interrupts": [{"id": "i", "reason": "input_required", "message": "Which?"}]}


async def test_neither_copies_of_copies_nor_a_deep_state_reach_clients_or_the_store() -> None:
    async def answer(request: web.Request) -> web.Response:
        snapshot = {"type": "STATE_SNAPSHOT", "snapshot": {"a": "x"}}
        deep = {"type": "STATE_SNAPSHOT", "snapshot": {"deep": DEEP}}
        return stream([STARTED, snapshot, COPIES, deep, {**FINISHED, "outcome": ASKS}])

    async with elsewhere(answer) as url, serving(scripted("no"), agents=[RemoteAgent(url, name="far")]) as running:
        frames = await events_of(running.url, body(user("hi")), "/agui/far")
        state = await running.server.store.state("", "t1")
    assert state == {"a": "x"} and not any(frame["type"] == "STATE_DELTA" for frame in frames)
    warnings = frames[-1]["metadata"]["warnings"]
    assert any("too large" in each for each in warnings) and any("deeper than" in each for each in warnings)
