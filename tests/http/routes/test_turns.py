"""What a request may ask much of on the event loop is done in parts: other streams have their turns in between."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from adapters.sse import SideBySideEncoder
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.pacing import PART
from tests.server import ROOT, scripted, serving


@contextlib.contextmanager
def work_by_turn(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> Iterator[Counter[int]]:
    """How often a method is called, by the turn of the event loop; under 0 in other threads."""
    loop: Any = asyncio.get_running_loop()
    once, method, thread = loop._run_once, getattr(kind, name), threading.get_ident()
    calls: Counter[int] = Counter()
    turn = 1

    def counted() -> None:
        nonlocal turn
        turn += 1
        once()

    def noted(*given: Any, **named: Any) -> Any:
        calls[turn if threading.get_ident() == thread else 0] += 1
        return method(*given, **named)

    monkeypatch.setattr(kind, name, noted)
    loop._run_once = counted
    yield calls
    del loop._run_once


EVENT = b'{"type":"TEXT_MESSAGE_CONTENT","messageId":"m","delta":"x"}\n'
ASKED: dict[str, tuple[type, str, Callable[[], dict[str, Any]]]] = {
    "/demo/wires": (SideBySideEncoder, "encode", lambda: {"content": EVENT * 3000}),
    "/tokenize": (
        PromptBuilder,
        "detokenize",
        lambda: {"json": {"prompt": (ROOT / "CONTRIBUTING.md").read_text(), "return_token_strs": True}},
    ),
}


@pytest.mark.parametrize("path", ASKED)
async def test_it_is_done_in_parts(path: str, monkeypatch: pytest.MonkeyPatch):
    kind, method, body = ASKED[path]
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        with work_by_turn(monkeypatch, kind, method) as calls:
            answer = await client.post(path, **body())
    assert answer.status_code == 200 and calls
    assert max((count for turn, count in calls.items() if turn), default=0) <= PART


async def test_a_token_s_text_is_looked_up_once(monkeypatch: pytest.MonkeyPatch):
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        with work_by_turn(monkeypatch, PromptBuilder, "detokenize") as calls:
            answer = (await client.post("/tokenize", json={"prompt": "a b" * 500, "return_token_strs": True})).json()
    assert "".join(answer["token_strs"]) == "a b" * 500 and calls.total() == len(set(answer["tokens"])) < 10
