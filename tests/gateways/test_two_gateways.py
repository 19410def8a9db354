"""Two gateways, each a process, over one PostgreSQL and one Redis: whatever one began, the other reads and steers."""

from __future__ import annotations

import asyncio
import itertools
import json

import httpx
import pytest
import websockets

from adapters import sse
from tests.gateways.client import begin, body, frames, legal, rest, text_of
from tests.http.routes.test_runs_and_threads import ODD_IDS, use_everywhere


@pytest.fixture
async def a(gateways):
    async with httpx.AsyncClient(base_url=gateways[0].url, timeout=20) as client:
        yield client


@pytest.fixture
async def b(gateways):
    async with httpx.AsyncClient(base_url=gateways[1].url, timeout=20) as client:
        yield client


def count(number: int) -> str:
    return " ".join(map(str, range(1, number + 1)))


async def until(client: httpx.AsyncClient, run: str, wanted) -> dict:
    """The run as the gateway describes it, once it is as wanted."""
    async with asyncio.timeout(10):
        while not wanted(found := (await client.get(f"/agui/runs/{run}")).json()):
            await asyncio.sleep(0.02)
    return found


async def test_a_run_is_read_on_at_the_other_gateway_byte_for_byte(a, b):
    ask = body("count 40 0.01")
    seen = await begin(a, ask, 12)
    assert seen[-1][0] == 12
    tail = await rest(b, ask["runId"], 12)
    whole = legal(seen + tail)
    assert whole[-1]["type"] == "RUN_FINISHED" and text_of(seen + tail) == count(40)
    assert await rest(a, ask["runId"]) == seen + tail == await rest(b, ask["runId"])
    for cut in (0, 1, len(whole) - 1, len(whole)):
        assert await rest(b, ask["runId"], cut) == (seen + tail)[cut:]
    beyond = await b.get(f"/agui/runs/{ask['runId']}/events?after={len(whole) + 1}")
    assert (beyond.status_code, beyond.json()["error"]["code"]) == (400, "invalid_request")


async def test_a_reader_elsewhere_keeps_the_run_alive_and_its_leaving_ends_it(a, b):
    ask = body("count 1000 0.02")
    await begin(a, ask, 3)
    async with b.stream("GET", f"/agui/runs/{ask['runId']}/events") as response:
        async for number, _ in frames(response):
            if number > 150:  # a number comes every 20 ms, so that these take longer than the grace
                break
    assert (await b.get(f"/agui/runs/{ask['runId']}")).json()["status"] == "running"
    done = await until(a, ask["runId"], lambda found: found["status"] == "finished")
    assert done["lastEvent"] < 1000
    assert (await rest(b, ask["runId"]))[-1][1]["outcome"] == {"type": "cancelled"}


async def test_a_stop_reaches_the_run_and_it_ends_properly_everywhere(a, b):
    ask = body("count 1000 0.02")
    seen = await begin(a, ask, 6)
    stopped = await b.post(f"/agui/runs/{ask['runId']}/cancel")
    assert stopped.status_code == 202
    assert legal(seen + await rest(a, ask["runId"], 6))[-1]["outcome"] == {"type": "cancelled"}
    assert await rest(a, ask["runId"]) == await rest(b, ask["runId"])
    assert (await b.post(f"/agui/runs/{ask['runId']}/cancel")).status_code == 409


async def test_pause_resume_and_modify_reach_the_run(a, b):
    ask = body("count 300 0.02")
    await begin(a, ask, 6)
    paused = await b.post(f"/agui/runs/{ask['runId']}/pause")
    assert (paused.status_code, paused.json()["paused"]) == (202, True)
    before, held = -1, 0
    while held != before:  # the last tokens before the pause are still on their way
        await asyncio.sleep(0.2)
        before, held = held, (await a.get(f"/agui/runs/{ask['runId']}")).json()["lastEvent"]
    assert held < 150  # of more than 300, in six seconds
    assert (await b.post(f"/agui/runs/{ask['runId']}/modify", json={"max_tokens": 60})).status_code == 202
    refused = await b.post(f"/agui/runs/{ask['runId']}/modify", json={"colour": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "colour")
    assert (await b.post(f"/agui/runs/{ask['runId']}/resume")).json()["paused"] is False
    events = await rest(b, ask["runId"])
    assert events[-1][1]["metadata"]["finishReason"] == "length" and count(300).startswith(text_of(events).rstrip())


async def test_an_interrupt_is_answered_at_the_other_gateway(a, b):
    ask = body("send it")
    asked = await begin(a, ask, 1000)
    (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
    thread = (await b.get(f"/agui/threads/{ask['threadId']}")).json()
    assert [each["id"] for each in thread["interrupts"]] == [interrupt["id"]]
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    answered = await begin(b, body(None, thread=ask["threadId"], messages=thread["messages"], resume=resume), 1000)
    (result,) = [event for _, event in answered if event["type"] == "TOOL_CALL_RESULT"]
    assert result["content"] == "sent to ada@example.org" and text_of(answered) == "It is sent."
    messages = (await a.get(f"/agui/threads/{ask['threadId']}/messages")).json()["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]


async def test_the_metrics_say_whether_runs_are_shared(a, b):
    ask = body("count 1000 0.02")
    await begin(a, ask, 6)
    async with b.stream("GET", f"/agui/runs/{ask['runId']}/events"):
        here, there = [(await client.get("/metrics")).text.splitlines() for client in (a, b)]
    assert "agent_server:redis_up 1.0" in here and "agent_server:redis_up 1.0" in there
    assert "agent_server:shared_runs 1.0" in here and "agent_server:followed_runs 1.0" in there
    await b.post(f"/agui/runs/{ask['runId']}/cancel")


async def test_what_goes_on_is_listed_and_the_thread_is_busy_at_the_other_gateway(a, b):
    first, second = body("count 40 0.02"), body("and?")
    second["threadId"] = first["threadId"]
    await begin(a, first, 3)
    assert (await b.get(f"/agui/threads/{first['threadId']}")).json()["running"] == [first["runId"]]
    assert first["threadId"] in [each["id"] for each in (await b.get("/agui/threads")).json()["threads"]]
    assert (await b.delete(f"/agui/threads/{first['threadId']}")).status_code == 409
    again = await b.post("/agui", json=first)
    assert (again.status_code, again.json()["error"]["param"]) == (409, "runId")
    reading = asyncio.create_task(rest(a, first["runId"]))
    waited = legal(await begin(b, second, 1000))
    assert reading.done() or text_of(await reading) == count(40)
    assert waited[-1]["type"] == "RUN_FINISHED"
    runs = (await b.get(f"/agui/threads/{first['threadId']}/runs")).json()["runs"]
    assert [run["id"] for run in runs] == [first["runId"], second["runId"]]
    assert runs[1]["createdAt"] >= runs[0]["endedAt"]


async def test_only_so_many_runs_wait_for_a_thread_wherever_they_wait(a, b):
    first = body("count 1000 0.02")
    await begin(a, first, 3)
    waiting = [body("and?", thread=first["threadId"]) for _ in range(4)]
    queued = [asyncio.create_task(begin(client, ask, 1000)) for client, ask in zip((a, b, a, b), waiting, strict=True)]
    async with asyncio.timeout(5):
        while len((await a.get(f"/agui/threads/{first['threadId']}")).json()["running"]) < 5:
            await asyncio.sleep(0.02)
    for client in (a, b):
        refused = await client.post("/agui", json=body("and?", thread=first["threadId"]))
        assert (refused.status_code, refused.headers["retry-after"]) == (409, "1")
    await b.post(f"/agui/runs/{first['runId']}/cancel")
    for task in queued:
        assert legal(await task)[-1]["type"] == "RUN_FINISHED"
    runs = (await b.get(f"/agui/threads/{first['threadId']}/runs")).json()["runs"]
    assert all(later["createdAt"] >= earlier["endedAt"] for earlier, later in itertools.pairwise(runs))


async def test_a_websocket_reads_on_and_stops_at_the_other_gateway(a, gateways):
    ask = body("count 1000 0.02")
    await begin(a, ask, 6)
    address = gateways[1].url.replace("http", "ws") + "/agui/ws"
    async with asyncio.timeout(30), websockets.connect(address) as socket:
        await socket.send(json.dumps({"type": "subscribe", "runId": ask["runId"], "after": 6}))
        first = json.loads(await socket.recv())
        assert first["type"] == "TEXT_MESSAGE_CONTENT"
        await socket.send(json.dumps({"type": "cancel"}))
        said = [json.loads(await socket.recv())]
        while said[-1]["type"] != "RUN_FINISHED":
            said.append(json.loads(await socket.recv()))
        assert said[-1]["outcome"] == {"type": "cancelled"} and len(said) < 500


async def test_copilotkit_joins_and_stops_at_the_other_gateway(a, b):
    ask = body("count 1000 0.02", state={"n": 1})
    await begin(a, ask, 6)
    joining = asyncio.create_task(b.post("/copilotkit/agent/default/connect", json=ask | {"messages": []}))
    await asyncio.sleep(0.2)
    stopped = await b.post(f"/copilotkit/agent/default/stop/{ask['threadId']}", json={})
    assert stopped.json()["stopped"] is True
    events = [json.loads(frame["data"]) for frame in sse.parse([(await joining).content])]
    assert [event["type"] for event in events[:3]] == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "STATE_SNAPSHOT"]
    assert events[2]["snapshot"] == {"n": 1}
    assert events[1]["messages"][0]["content"] == "count 1000 0.02" and events[-1]["type"] == "RUN_FINISHED"
    assert "".join(event.get("delta", "") for event in events).startswith("1 2 3")


async def test_a_background_response_is_polled_resumed_and_cancelled_at_the_other_gateway(a, b):
    ask = {"model": "default", "input": "count 100 0.01", "background": True, "stream": True}
    seen = []
    async with a.stream("POST", "/v1/responses", json=ask) as response:
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                seen.append(json.loads(line[5:]))
            if len(seen) == 10:
                break
    id, after = seen[0]["response"]["id"], seen[-1]["sequence_number"]
    assert (await b.get(f"/v1/responses/{id}")).json()["status"] == "in_progress"
    resumed = await b.get(f"/v1/responses/{id}?stream=true&starting_after={after}")
    tail = [json.loads(frame["data"]) for frame in sse.parse([resumed.content]) if frame["data"] != "[DONE]"]
    assert [event["sequence_number"] for event in seen + tail] == list(range(len(seen + tail)))
    assert tail[-1]["type"] == "response.completed"
    assert tail[-1]["response"]["output"][0]["content"][0]["text"] == count(100)
    long = (await a.post("/v1/responses", json={**ask, "input": "count 1000 0.02", "stream": False})).json()
    assert (await b.post(f"/v1/responses/{long['id']}/cancel")).json()["status"] == "cancelled"


@pytest.mark.parametrize("id", ODD_IDS)
async def test_every_id_is_addressed_at_the_other_gateway(a, b, id):
    await use_everywhere(a, b, id)
