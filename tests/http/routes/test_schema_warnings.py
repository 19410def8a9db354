"""A tool whose schema a grammar cannot enforce in full, on every wire: offered as it was declared, held to the rest of
its schema, with a warning that names the one keyword; and a 400 where it is strict. What can be enforced has none."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.models.prompting.test_written_schemas import Zoo
from tests.server import Running, scripted, serving

HELLO = [{"id": "u1", "role": "user", "content": "Hello"}]
HUGE = 10**30
DEEP: dict[str, Any] = {"type": "string"}
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "a bound above 64 bits": ({"type": "integer", "minimum": HUGE}, "minimum at /properties/odd"),
    "many alternatives": ({"anyOf": [{"const": n} for n in range(129)]}, "anyOf at /properties/odd"),
    "depth": (DEEP, "schema at /properties/odd/items"),
    "a pattern that costs too much": ({"type": "string", "pattern": "(a+)+"}, "pattern at /properties/odd"),
    "a pattern that looks ahead": ({"type": "string", "pattern": "^(?=a)"}, "pattern at /properties/odd"),
    "a malformed keyword": ({"type": "integer", "minimum": "3"}, "minimum at /properties/odd"),
}
BY_REFERENCE = {
    "type": "object",
    "properties": {"pet": {"oneOf": [{"$ref": "#/$defs/a~1b"}, {"$ref": "#dog"}, {"$ref": "fish.json"}]}},
    "required": ["pet"],
    "$id": "https://example.org/pets.json",
    "$defs": {
        name: {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"], **more}
        for name, kind, more in (("a/b", "cat", {}), ("d", "dog", {"$anchor": "dog"}), ("f", "fish", {"$id": "fish.json"}))
    },
}  # fmt: skip


def chat(schema: Any, **strict: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "pick", "parameters": schema, **strict}}]
    return {"messages": HELLO, "tools": tools}


def responses(schema: Any, **strict: Any) -> dict[str, Any]:
    return {"input": "Hello", "tools": [{"type": "function", "name": "pick", "parameters": schema, **strict}]}


def messages(schema: Any, **strict: Any) -> dict[str, Any]:
    return {"messages": HELLO, "max_tokens": 99, "tools": [{"name": "pick", "input_schema": schema, **strict}]}


def agui(schema: Any) -> dict[str, Any]:
    tools = [{"name": "pick", "description": "", "parameters": schema}]
    return {"threadId": "t1", "runId": "r1", "protocolVersion": "1.0", "state": {}, "context": [], "messages": HELLO,
            "tools": tools, "forwardedProps": {}}  # fmt: skip


STRICT = {"/v1/chat/completions": chat, "/v1/responses": responses, "/v1/messages": messages}
ANSWERED = STRICT | {"/v1/generate": chat}
BODIES = ANSWERED | {"/agui": agui, "/copilotkit/agent/default/run": agui}


TEMPLATE = """\
{%- if tools %}<|im_start|>system
# Tools
You are provided with function signatures within <tools></tools> XML tags:
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As Qwen2.5's: it shows schemas as they are. The bundled model's shows the types alone."""


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    async with serving(scripted("Hello."), chat_template=template) as found:
        yield found


def prompt_of(running: Running) -> str:
    decoder = running.engine.vocabulary.detokenizer()
    return "".join(map(decoder.push, running.engine.requests[-1].prompt_token_ids)) + decoder.flush()


async def warnings_of(running: Running, path: str, schema: Any, **strict: Any) -> list[list[str]]:
    """Of the answer, and of the streamed answer."""
    body = BODIES[path](schema, **strict)
    async with httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        streams = [{"stream": False}, {"stream": True}] if path in ANSWERED else [{}]
        answers = [await client.post(path, json=body | stream) for stream in streams]
    assert {answer.status_code for answer in answers} == {200}, answers[0].text
    return [told(answer.text) for answer in answers]


def told(text: str) -> list[str]:
    datas = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: {")] or [text]
    found = []
    for data in map(json.loads, datas):
        for holder in (data, data.get("response", {}), data.get("metadata", {})):
            found += holder.get("warnings") or holder.get("extensions", {}).get("warnings", [])
    return found


@pytest.mark.parametrize("path", BODIES)
async def test_what_is_not_enforced_is_told_and_the_tool_is_offered_whole(running: Running, path: str):
    for odd, expected in ODD.values():
        schema = {"type": "object", "properties": {"odd": odd, "n": {"type": "integer"}}, "required": ["odd", "n"]}
        for warnings in await warnings_of(running, path, schema):
            (warning,) = warnings
            assert expected in warning and "'pick'" in warning
        assert json.dumps(odd) in prompt_of(running)
        constraint = str(running.engine.requests[-1].constraint.value)
        assert "'n': {'type': 'integer'" in constraint and "'required': ['odd', 'n']" in constraint


@pytest.mark.parametrize("path", STRICT)
async def test_where_it_is_strict_it_is_refused(running: Running, path: str):
    async with httpx.AsyncClient(base_url=running.url) as client:
        for odd, expected in ODD.values():
            body = STRICT[path]({"type": "object", "properties": {"odd": odd}}, strict=True)
            answer = await client.post(path, json=body)
            assert answer.status_code == 400 and expected in answer.text


@pytest.mark.parametrize("path", BODIES)
async def test_unions_by_reference_are_enforced_without_a_warning(running: Running, path: str):
    for schema in (Zoo.model_json_schema(), BY_REFERENCE):
        strict = {"strict": True} if path in STRICT else {}
        assert not any(await warnings_of(running, path, schema, **strict))
        assert running.engine.requests[-1].constraint is not None


async def test_a_socket_tells_it_as_well(running: Running):
    odd, expected = ODD["a bound above 64 bits"]
    schema = {"type": "object", "properties": {"odd": odd}}
    async with connect(f"{running.url.replace('http', 'ws')}/agui/ws") as socket:
        await socket.send(json.dumps({"type": "run", "input": agui(schema)}))
        event: dict[str, Any] = {"type": ""}
        while event["type"] != "RUN_FINISHED":
            event = json.loads(await socket.recv())
    assert expected in event["metadata"]["warnings"][0]
