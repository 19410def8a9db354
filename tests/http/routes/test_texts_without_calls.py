"""Texts that only show JSON reach clients as text on the wires of OpenAI and Anthropic, with tools in the request."""

from __future__ import annotations

import httpx

from agent_server.engines.scripted import Script
from tests.parsing.texts_without_calls import TEXTS
from tests.server import scripted, serving

ASKED = [{"role": "user", "content": "How is a tool called?"}]


async def test_no_call_reaches_a_client():
    scripts = [Script(text=text.text) for text in TEXTS for _ in range(2)]
    async with (
        serving(scripted(scripts)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        for text in TEXTS:
            functions = [{"name": name, "parameters": schema} for name, schema in text.tools.items()]
            tools = [{"type": "function", "function": function} for function in functions]
            chat = await client.post("/v1/chat/completions", json={"messages": ASKED, "tools": tools})
            (choice,) = chat.json()["choices"]
            assert not choice["message"].get("tool_calls"), text.source
            assert choice["finish_reason"] == "stop", text.source
            tools = [{"name": name, "input_schema": schema} for name, schema in text.tools.items()]
            body = {"messages": ASKED, "tools": tools, "max_tokens": 4000}
            blocks = (await client.post("/v1/messages", json=body)).json()["content"]
            assert {block["type"] for block in blocks} <= {"text"}, text.source
