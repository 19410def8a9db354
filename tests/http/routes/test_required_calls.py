"""A required call on each wire, of a model that writes the same call until the limit: one call, and an end."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from agent_server.engines.scripted import Script
from tests.server import scripted, serving

CALL = '<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n</tool_call>\n'
SCHEMA = {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}
ASKED = [{"role": "user", "content": "When is high tide in Brest?"}]
FUNCTION = {"type": "function", "function": {"name": "tide", "parameters": SCHEMA}}
CHAT = {"messages": ASKED, "tools": [FUNCTION], "max_tokens": 4000}
MESSAGES = {"messages": ASKED, "tools": [{"name": "tide", "input_schema": SCHEMA}], "max_tokens": 4000}
REPEATED = 40


async def answers(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The answer as a whole, and the stream's text."""
    async with (
        serving(scripted([Script(text=CALL * REPEATED)] * 2)) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        whole = await client.post(path, json=body)
        stream = await client.post(path, json=body | {"stream": True})
    assert (whole.status_code, stream.status_code) == (200, 200), whole.text
    return whole.json(), stream.text


@pytest.mark.parametrize(
    ("choice", "reason"),
    # As OpenAI has it, "stop" is the reason where the request names the function.
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "tide"}}, "stop")],
)
async def test_chat_completions_end_behind_the_call(choice: Any, reason: str):
    whole, stream = await answers("/v1/chat/completions", CHAT | {"tool_choice": choice})
    (answer,) = whole["choices"]
    (call,) = answer["message"]["tool_calls"]
    assert (answer["finish_reason"], json.loads(call["function"]["arguments"])) == (reason, {"port": "Brest"})
    assert 0 < whole["usage"]["completion_tokens"] < 200
    assert stream.count('"name":"tide"') == 1 and f'"finish_reason":"{reason}"' in stream


async def test_messages_end_behind_the_call():
    whole, stream = await answers("/v1/messages", MESSAGES | {"tool_choice": {"type": "any"}})
    assert [block["type"] for block in whole["content"]] == ["tool_use"]
    assert (whole["stop_reason"], whole["content"][0]["input"]) == ("tool_use", {"port": "Brest"})
    assert stream.count('"type":"tool_use"') == 1
