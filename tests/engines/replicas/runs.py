"""AG-UI runs against a gateway, and what they come to when their events are joined."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

Event = dict[str, Any]
Options = Mapping[str, Any]
QUESTIONS = (
    "Tell me about the sea.",
    "What is a prime number?",
    "Write a short list of colours.",
    "How do I boil an egg?",
    "Who are you?",
)


def body(number: int, options: Options) -> dict[str, Any]:
    """Run `number`; the same number is the same question."""
    question = QUESTIONS[number % len(QUESTIONS)] * (1 + number // len(QUESTIONS) % 5)
    return {
        "threadId": f"thread-{number}",
        "runId": f"run-{number}-{id(options):x}",
        "protocolVersion": "1.0",
        "messages": [{"id": "m1", "role": "user", "content": question}],
        "tools": [],
        "context": [],
        "state": None,
        "forwardedProps": dict(options),
    }


async def run_all(
    url: str, options: Sequence[Options], disturb: Callable[[Callable[[], list[int]]], Awaitable[None]] | None = None
) -> list[list[Event]]:
    """All runs at once. `disturb` runs beside them and may ask how many events of each have come."""
    events: list[list[Event]] = [[] for _ in options]
    async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
        reading = [_read(client, url, body(number, each), events[number]) for number, each in enumerate(options)]
        disturbing = [disturb(lambda: [len(each) for each in events])] if disturb else []
        await asyncio.gather(*reading, *disturbing)
    return events


async def _read(client: httpx.AsyncClient, url: str, asked: dict[str, Any], into: list[Event]) -> None:
    async with client.stream("POST", f"{url}/agui", json=asked) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            into += [json.loads(line[6:])] if line.startswith("data: ") else []


def joined(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """The events without what differs from run to run: deltas that follow each other as one, ids by their order, names
    of tools, no times, and of the end's metadata how it ended."""
    names: dict[str, int] = {}
    found: list[list[Any]] = []
    for event in events:
        owner = event.get("messageId") or event.get("toolCallId") or ""
        name = names.setdefault(owner, len(names)) if owner else -1
        if found and "delta" in event and found[-1][:2] == [event["type"], name]:
            found[-1][2] += event["delta"]
            continue
        rest = event["metadata"].get("finishReason") if event["type"] == "RUN_FINISHED" else None
        usage = [(u["inputTokens"], u["outputTokens"]) for u in event.get("usage") or ()]
        shown = event.get("toolCallName") or event.get("message") or event.get("delta", "")
        found.append([event["type"], name, shown, rest, usage])
    return [(*each[:4], tuple(each[4])) for each in found]


def resumed(events: Sequence[Event]) -> int:
    """How often the run moved to another replica."""
    return int(events[-1].get("metadata", {}).get("resumed", 0))
