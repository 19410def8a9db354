"""The wire that docs/adding-a-wire.md builds works as the page says, in fewer than 60 lines."""

from __future__ import annotations

import sys
from types import ModuleType

import httpx
import pytest

import adapters
from adapters import sse
from agent_server.engines.scripted import Fault, Script
from agent_server.http import routes
from tests import code_blocks
from tests.server import scripted, serving

PAGE = "docs/adding-a-wire.md"
TEXT = "One line.\n\nAnother, caf\u00e9."


def blocks() -> list[str]:
    return [block.code for block in code_blocks.blocks(PAGE)]


def test_it_takes_less_than_sixty_lines() -> None:
    lines = [line for block in blocks() for line in block.splitlines() if line.strip()]
    assert len(lines) < 60


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's two modules, where the page puts them."""
    adapter, route = (ModuleType(name) for name in ("adapters.plain", "agent_server.http.routes.plain"))
    monkeypatch.setitem(sys.modules, "adapters.plain", adapter)
    monkeypatch.setattr(adapters, "plain", adapter, raising=False)
    for module, source in zip((adapter, route), blocks(), strict=True):
        exec(compile(source, PAGE, "exec"), module.__dict__)
    found = routes.all_routes
    monkeypatch.setattr("agent_server.http.app.all_routes", lambda server: [*route.routes(server), *found(server)])


@pytest.mark.usefixtures("installed")
async def test_it_streams_plain_text() -> None:
    fault = Fault(action="error", kind="connection", after=3, message="The engine is gone.")
    engine = scripted([Script(text=f"<think>\n\n</think>\n\n{TEXT}"), Script(text=TEXT, fault=fault)])
    async with serving(engine) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/plain", json={"prompt": "Hi", "temperature": 0})
        frames = list(sse.parse([answer.content]))
        assert "".join(frame["data"] for frame in frames if "event" not in frame) == TEXT
        assert frames[-1]["event"] == "end"
        broken = await client.post("/plain", json={"prompt": "Hi"})
        assert "event: error\ndata: The engine is gone." in broken.text
        refused = await client.post("/plain", json={"prompt": "Hi", "frobnicate": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "frobnicate")
