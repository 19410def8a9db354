"""A body of a thousand messages does not hold up the event loop: the work between two of its turns is counted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel, TypeAdapter

from agent_server.agents import Agent
from agent_server.observability import tracing
from agent_server.pacing import PART
from tests.server import scripted, serving

COUNT, PARTS = 1201, 3


class Watch:
    """Counts messages that are read or written in the event loop's thread, by the turn of the loop in which it was.

    A task that counts turns would not do: what a thread wakes may run once after it and once before it, which are two
    turns of the loop, and would be counted as one.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn = 0
        self._loop = asyncio.get_running_loop()
        self.work: Counter[tuple[str, int]] = Counter()
        self._thread = threading.get_ident()
        dump, validate = BaseModel.model_dump, TypeAdapter.validate_python

        def dumped(message: BaseModel, **options: Any) -> Any:
            self._note("dump", 1 + len(message.content) if isinstance(getattr(message, "content", None), list) else 1)
            return dump(message, **options)

        def validated(adapter: Any, value: Any, **options: Any) -> Any:
            self._note("validate", len(value) if isinstance(value, list) else 1)
            return validate(adapter, value, **options)

        monkeypatch.setattr(BaseModel, "model_dump", dumped)
        monkeypatch.setattr(TypeAdapter, "validate_python", validated)

    def _note(self, what: str, items: int) -> None:
        if threading.get_ident() == self._thread:
            self.work[what, self.turn] += items

    @contextlib.contextmanager
    def turning(self) -> Iterator[None]:
        once = self._loop._run_once  # type: ignore[attr-defined]  # every loop of asyncio calls it once a turn

        def counted() -> None:
            self.turn += 1
            once()

        self._loop._run_once = counted  # type: ignore[attr-defined]
        yield
        del self._loop._run_once  # type: ignore[attr-defined]


class Guest:
    async def run(self, given: Any) -> AsyncIterator[object]:
        yield {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a", "role": "assistant", "delta": f"{len(given.messages)}."}


def body(thread: str, run: str, first: int = 0, count: int = COUNT) -> dict[str, Any]:
    content = [{"type": "text", "text": "word"}] * PARTS
    messages = [{"id": f"m{number}", "role": "user", "content": content} for number in range(first, first + count)]
    return {"threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": messages}


async def post(url: str, sent: dict[str, Any]) -> str:
    async with httpx.AsyncClient(timeout=60) as http:
        return (await http.post(f"{url}/agui", json=sent)).text


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans are made, as by a server that sends them to a collector."""
    provider = TracerProvider()
    monkeypatch.setattr(tracing, "_tracer", provider.get_tracer("tests"))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("agent", ["ours", "a guest"])
async def test_no_turn_of_the_loop_handles_more_than_a_part_of_a_long_conversation(
    agent: str, monkeypatch: pytest.MonkeyPatch
):
    agents = [Agent(name="default", reasoning="hidden")] if agent == "ours" else [Guest()]
    async with serving(scripted("Yes.", context_length=10**6), agents=agents, max_context=10**6, demo=False) as running:
        watch = Watch(monkeypatch)
        with watch.turning():
            first = await post(running.url, body("t", "r1"))
            last = await post(running.url, body("t", "r2", COUNT, 1))  # which has the rest from the store
    assert "RUN_FINISHED" in first and "RUN_FINISHED" in last
    assert watch.turn > 100 and sum(watch.work.values()) >= 2 * COUNT
    assert max(watch.work.values()) <= PART + PARTS + 1
