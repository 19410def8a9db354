"""The AI SDK (npm: `ai`, `@ai-sdk/openai`) against a running server: it takes its turns with tools on either wire.

On Responses, its default, a later step only names what the server said before (`item_reference`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.conformance.node import NodeClients
from tests.conformance.test_agent_loops import turn_of
from tests.server import scripted, serving

TOOLS = {"get_weather": "20 degrees", "to_fahrenheit": "68"}


@pytest.mark.parametrize("wire", ["responses", "chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_it_takes_its_turns(node_clients: NodeClients, wire: str, stream: bool) -> None:
    entry: dict[str, Any] = {
        "wire": wire, "stream": stream, "tools": TOOLS,
        "messages": [{"role": "user", "content": "How warm is it in Oslo?"}],
    }  # fmt: skip
    async with serving(scripted(turn_of)) as running:
        [answer] = await asyncio.to_thread(node_clients.run, "ai_sdk.mjs", [{**entry, "baseURL": f"{running.url}/v1"}])
    assert "error" not in answer, answer
    assert answer["calls"] == [["get_weather", {"city": "Oslo"}], ["to_fahrenheit", {"celsius": 20}]]
    assert (answer["text"], answer["steps"]) == ("It is 68 F in Oslo.", 3)
