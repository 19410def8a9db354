"""A gateway killed with -9: its runs go on at another, its readers see one stream, its threads can be used."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest

from tests.gateways.client import Frame, begin, body, frames, goes_on, legal, rest, rest_anywhere, text_of
from tests.gateways.conftest import Process

FINISHED, RUNNING = 4, 4
KNOWN = 10
"""Events of each run that are known elsewhere before its gateway is killed."""
LONG = "count 400 0.01"
COUNTED = " ".join(map(str, range(1, 401)))


@pytest.mark.timeout(300)  # its gateways take long to start on a busy machine
async def test_a_killed_gateway_hands_its_runs_on_and_readers_see_one_stream(gateways):
    doomed, other = (httpx.AsyncClient(base_url=each.url, timeout=60) for each in (gateways[2], gateways[0]))
    async with doomed, other:
        finished = [body(f"count {10 + number} 0.001") for number in range(FINISHED)]
        told = [await begin(doomed, ask, 1000) for ask in finished]
        running = [body(LONG) for _ in range(RUNNING)]
        reading = [asyncio.create_task(begin_until_cut(doomed, ask)) for ask in running]
        thread = await started(other, running[0])
        # one at each: the run goes on before the one that waits for it, wherever that is
        queued = [asyncio.create_task(wait_behind(each.url, running[0], thread)) for each in survivors(gateways)]
        await started(other, running[1])
        follower = asyncio.create_task(rest_anywhere(other, running[1]["runId"]))
        for ask in running:
            await started(other, ask, events=KNOWN)
        gateways[2].kill()
        followed = legal(await follower)
        assert [event["type"] for event in followed[-3:]] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_FINISHED"]
        for ask, seen in zip(running, await asyncio.gather(*reading), strict=True):
            await same_for_all(other, ask, seen)
        for ask, events in zip(finished, told, strict=True):
            thread = (await other.get(f"/agui/threads/{ask['threadId']}")).json()
            assert thread["messages"][-1]["content"] == text_of(events) and thread["running"] == []
            assert legal(await rest(other, ask["runId"])) == [event for _, event in events]
        for events in await asyncio.gather(*queued):
            assert legal(events)[-1]["type"] == "RUN_FINISHED"
        await usable(other, running)


def survivors(gateways: Sequence[Process]) -> list[Process]:
    return [gateways[0], gateways[1], gateways[3]]


async def wait_behind(url: str, ask: dict, thread: str) -> list[Frame]:
    waiting = body("and?", thread=thread)
    waiting["messages"] = ask["messages"] + waiting["messages"]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        return await begin(client, waiting, 1000)


async def begin_until_cut(client: httpx.AsyncClient, ask: dict) -> list:
    """Whatever came before the connection broke."""
    seen: list[Frame] = []
    try:
        async with client.stream("POST", "/agui", json=ask) as response:
            async for frame in frames(response):
                if goes_on(frame):  # on a busy machine it was taken for dead before it was killed
                    return seen
                seen.append(frame)  # one by one: what came before the break counts
    except httpx.HTTPError:
        return seen
    raise AssertionError("the stream ended as if the run had")


async def started(client: httpx.AsyncClient, ask: dict, events: int = 0) -> str:
    """The run's thread, once so many events of the run are known elsewhere."""
    async with asyncio.timeout(60):
        while (await client.get(f"/agui/runs/{ask['runId']}")).json().get("lastEvent", -1) < events:
            await asyncio.sleep(0.02)
    return ask["threadId"]


async def same_for_all(client: httpx.AsyncClient, ask: dict, seen: list[Frame]) -> None:
    """A client of the dead gateway reads on: nothing twice, nothing missing, and the whole answer."""
    tail = await rest_anywhere(client, ask["runId"], seen[-1][0])
    assert tail[-1][1]["type"] == "RUN_FINISHED" and seen
    whole = await rest(client, ask["runId"])
    assert whole == [*seen, *tail] and legal(whole) and text_of(whole) == COUNTED
    found = (await client.get(f"/agui/runs/{ask['runId']}")).json()
    assert found["status"] == "finished"
    assert (await client.post(f"/agui/runs/{ask['runId']}/cancel")).status_code == 409


async def usable(client: httpx.AsyncClient, asks: list) -> None:
    for ask in asks:
        thread = (await client.get(f"/agui/threads/{ask['threadId']}")).json()
        assert thread["messages"][0]["content"] == LONG
        again = body("and now?", thread=ask["threadId"])
        again["messages"] = thread["messages"] + again["messages"]
        assert legal(await begin(client, again, 1000))[-1]["type"] == "RUN_FINISHED"
        runs = (await client.get(f"/agui/threads/{ask['threadId']}/runs")).json()["runs"]
        assert (runs[0]["id"], runs[0]["status"]) == (ask["runId"], "finished")
        assert {run["status"] for run in runs[1:]} == {"finished"}
