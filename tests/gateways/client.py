"""What a client does: ask one gateway, read on at another."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx

from adapters import sse
from events.encode import from_wire
from events.lifecycle import Verifier

Frame = tuple[int, dict[str, Any]]


def body(text: str | None, *, thread: str | None = None, run: str | None = None, **more: Any) -> dict[str, Any]:
    messages = [] if text is None else [{"id": f"u{secrets.token_hex(4)}", "role": "user", "content": text}]
    return {
        "threadId": thread or f"thread-{secrets.token_hex(4)}",
        "runId": run or f"run-{secrets.token_hex(4)}",
        "protocolVersion": "1.0",
        "messages": messages,
        "tools": [], "context": [], "state": {}, "forwardedProps": {},
        **more,
    }  # fmt: skip


async def frames(response: httpx.Response) -> AsyncIterator[Frame]:
    """The numbered events of a stream as they come."""
    id = 0
    async for line in response.aiter_lines():
        if line.startswith("id:"):
            id = int(line[3:])
        elif line.startswith("data:"):
            yield id, json.loads(line[5:])


async def begin(client: httpx.AsyncClient, ask: dict[str, Any], events: int) -> list[Frame]:
    """Start a run and leave after so many events."""
    seen: list[Frame] = []
    async with client.stream("POST", "/agui", json=ask) as response:
        assert response.status_code == 200, await response.aread()
        async for frame in frames(response):
            seen.append(frame)
            if len(seen) == events:
                break
    return seen


class HandedOver(Exception):
    """The run is between two gateways."""


async def rest(client: httpx.AsyncClient, run: str, after: int = 0) -> list[Frame]:
    response = await client.get(f"/agui/runs/{run}/events", headers={"last-event-id": str(after)})
    if response.status_code == 503:
        raise HandedOver(response.text)
    assert response.status_code == 200, response.text
    return [(int(frame["id"]), json.loads(frame["data"])) for frame in sse.parse([response.content])]


async def rest_anywhere(client: httpx.AsyncClient, run: str, after: int = 0) -> list[Frame]:
    """As `rest`, for a run that may go on at another gateway meanwhile: then the reader asks again, as it is told to."""
    seen: list[Frame] = []
    moved, refusals = True, 0
    while moved:
        try:
            more = await rest(client, run, seen[-1][0] if seen else after)
        except HandedOver as error:
            refusals += 1
            assert refusals < 200, f"{run} is between two gateways for {refusals * 0.2:.0f} s: {error}"
            await asyncio.sleep(0.2)
            continue
        moved = bool(more) and goes_on(more[-1])
        seen += more[:-1] if moved else more
    return seen


def goes_on(frame: Frame) -> bool:
    """Whether it ends a stream whose run goes on elsewhere."""
    return frame[1]["type"] == "RUN_ERROR" and bool((frame[1].get("metadata") or {}).get("nextEvent"))


def legal(events: list[Frame]) -> list[dict[str, Any]]:
    """The events, checked: numbered without a gap and admitted by the protocol."""
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    verifier = Verifier(strict=True)
    for _, event in events:
        verifier.check(from_wire(event))
    return [event for _, event in events]


def text_of(events: list[Frame]) -> str:
    return "".join(event["delta"] for _, event in events if event["type"] == "TEXT_MESSAGE_CONTENT")
