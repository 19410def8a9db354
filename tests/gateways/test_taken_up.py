"""What a gateway that was killed with -9 left to be done: another does it, and what may be done once is done once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
from sqlalchemy import select

from agent_server.runs.store import Store, schema
from tests.gateways.client import Frame, begin, body, legal, rest, text_of
from tests.gateways.test_killed_gateway import begin_until_cut


async def test_runs_of_a_killed_gateway_go_on_at_others(gateways, database: str, tmp_path: Path) -> None:
    paid, seen = tmp_path / "paid", tmp_path / "seen"
    doomed, one, two = (httpx.AsyncClient(base_url=gateways[at].url, timeout=20) for at in (3, 0, 1))
    async with doomed, one, two:
        bill = body(f"pay {paid}")
        asked = await begin(doomed, bill, 1000)
        slow = body(f"look {seen}")
        cut = asyncio.create_task(begin_until_cut(doomed, slow))
        await kept(database, slow["runId"])
        assert seen.read_text() == "looked\n" and not paid.exists()
        gateways[3].kill()
        await cut
        await answered_once(one, two, asked, bill["threadId"])
        assert paid.read_text() == "paid\n"
        events = await told(one, slow["runId"])
        assert await told(two, slow["runId"]) == events
    whole = legal(events)
    assert whole[-1]["type"] == "RUN_FINISHED" and text_of(events) == "It is done."
    assert [event["content"] for event in whole if event["type"] == "TOOL_CALL_RESULT"] == ["seen"]
    assert seen.read_text() == "looked\nlooked\n"


async def kept(database: str, run_id: str) -> None:
    """Wait until a run is kept, so that it outlives its gateway."""
    store = Store(database)
    await store.open()
    table = schema.kept_runs
    async with asyncio.timeout(10):
        while not await store.read(
            lambda connection: connection.scalar(select(table.c.run_id).where(table.c.run_id == run_id))
        ):
            await asyncio.sleep(0.02)
    await store.close()


async def answered_once(one: httpx.AsyncClient, two: httpx.AsyncClient, asked: list[Frame], thread: str) -> None:
    """Both gateways are given the answer at the same time; one of the runs makes the call, and the other tells again what came of it."""
    (interrupt,) = asked[-1][1]["outcome"]["interrupts"]
    resume = [{"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}}]
    runs = await asyncio.gather(
        *(begin(client, body(None, thread=thread, resume=resume), 1000) for client in (one, two))
    )
    assert [legal(run)[-1]["type"] for run in runs] == ["RUN_FINISHED"] * 2
    results = [event["content"] for run in runs for _, event in run if event["type"] == "TOOL_CALL_RESULT"]
    assert set(results) == {"paid"} and "It is done." in [text_of(run) for run in runs]


async def told(client: httpx.AsyncClient, run_id: str) -> list[Frame]:
    """The run from its beginning, once another gateway has taken it up and it has come to its end."""
    async with asyncio.timeout(20):
        while True:
            events = await rest(client, run_id)
            if events[-1][1]["type"] == "RUN_FINISHED":
                return events
            await asyncio.sleep(0.1)
