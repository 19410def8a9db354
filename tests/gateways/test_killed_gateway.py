"""A gateway killed with -9: its runs end everywhere, what it had committed is there, its threads can be used."""

from __future__ import annotations

import asyncio

import httpx

from tests.gateways.client import begin, body, frames, legal, rest, text_of

FINISHED, RUNNING = 4, 4
KNOWN = 10
"""Events of each run that are known elsewhere before its gateway is killed, and so are never lost."""


async def test_a_killed_gateway_loses_no_committed_message_and_its_readers_elsewhere_see_an_end(gateways):
    doomed, other = (httpx.AsyncClient(base_url=each.url, timeout=20) for each in (gateways[2], gateways[0]))
    async with doomed, other:
        finished = [body(f"count {10 + number} 0.001") for number in range(FINISHED)]
        told = [await begin(doomed, ask, 1000) for ask in finished]
        running = [body("count 2000 0.01") for _ in range(RUNNING)]
        reading = [asyncio.create_task(begin_until_cut(doomed, ask)) for ask in running]
        waiting = body("and?", thread=await started(other, running[0]))
        waiting["messages"] = running[0]["messages"] + waiting["messages"]
        queued = asyncio.create_task(begin(other, waiting, 1000))
        await started(other, running[1])
        follower = asyncio.create_task(rest(other, running[1]["runId"]))
        for ask in running:
            await started(other, ask, events=KNOWN)
        gateways[2].kill()
        followed = legal(await follower)
        assert [event["type"] for event in followed[-3:]] == ["TEXT_MESSAGE_END", "STEP_FINISHED", "RUN_ERROR"]
        assert followed[-1]["code"] == "unavailable" and followed[-1]["metadata"]["retryable"] is True
        for ask, seen in zip(running, await asyncio.gather(*reading), strict=True):
            await same_for_all(other, ask, seen)
        for ask, events in zip(finished, told, strict=True):
            thread = (await other.get(f"/agui/threads/{ask['threadId']}")).json()
            assert thread["messages"][-1]["content"] == text_of(events) and thread["running"] == []
            assert legal(await rest(other, ask["runId"])) == [event for _, event in events]
        assert legal(await queued)[-1]["type"] == "RUN_FINISHED"
        await usable(other, running)


async def begin_until_cut(client: httpx.AsyncClient, ask: dict) -> list:
    """Whatever came before the connection broke."""
    seen = []
    try:
        async with client.stream("POST", "/agui", json=ask) as response:
            async for number, event in frames(response):
                seen.append((number, event))  # one by one: what came before the break counts
    except httpx.HTTPError:
        return seen
    raise AssertionError("the stream ended as if the run had")


async def started(client: httpx.AsyncClient, ask: dict, events: int = 0) -> str:
    """The run's thread, once so many events of the run are known elsewhere."""
    async with asyncio.timeout(15):
        while (await client.get(f"/agui/runs/{ask['runId']}")).json().get("lastEvent", -1) < events:
            await asyncio.sleep(0.02)
    return ask["threadId"]


async def same_for_all(client: httpx.AsyncClient, ask: dict, seen: list) -> None:
    """A client of the dead gateway reads on: nothing twice, and an end, even if it was ahead of what Redis had."""
    tail = await rest(client, ask["runId"], len(seen))
    assert tail[-1][1]["type"] == "RUN_ERROR"
    whole = await rest(client, ask["runId"])
    assert whole[-1] == tail[-1] and legal(whole)
    both = min(len(seen), len(whole) - 3)
    assert whole[:both] == seen[:both] and both >= KNOWN
    found = (await client.get(f"/agui/runs/{ask['runId']}")).json()
    assert found["status"] == "finished"
    assert (await client.post(f"/agui/runs/{ask['runId']}/cancel")).status_code == 409


async def usable(client: httpx.AsyncClient, asks: list) -> None:
    for ask in asks:
        thread = (await client.get(f"/agui/threads/{ask['threadId']}")).json()
        assert thread["messages"][0]["content"] == "count 2000 0.01"
        again = body("and now?", thread=ask["threadId"])
        again["messages"] = thread["messages"] + again["messages"]
        assert legal(await begin(client, again, 1000))[-1]["type"] == "RUN_FINISHED"
        runs = (await client.get(f"/agui/threads/{ask['threadId']}/runs")).json()["runs"]
        assert (runs[0]["id"], runs[0]["status"]) == (ask["runId"], "broken")
        assert {run["status"] for run in runs[1:]} == {"finished"}
