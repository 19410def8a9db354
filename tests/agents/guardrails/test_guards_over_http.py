"""A server with guards, asked over every wire."""

import json
from typing import Any

import httpx
import pytest
import websockets

from agent_server.engines.scripted import Script
from tests.agents.guests.graphs import graph
from tests.agents.guests.talking import body, user
from tests.agents.guests.test_pydantic_ai_guest import traveller
from tests.server import scripted, serving

GUARDS = """
[[guard]]
name = "heron"
phrases = ["blue heron"]
message = "We do not speak of that."
"""
ANSWER = "The bird is a blue heron, they say."
HELLO = [{"role": "user", "content": "Which bird?"}]
FORBIDDEN = [{"role": "user", "content": "Tell me of the Blue  Heron"}]


@pytest.fixture
async def url(tmp_path):
    file = tmp_path / "guards.toml"
    file.write_text(GUARDS)
    async with serving(scripted(lambda request: Script(text=ANSWER)), guard=(str(file),), demo=False) as running:
        yield running


WIRES: dict[str, tuple[str, Any, Any]] = {
    "/v1/chat/completions": (lambda said: {"messages": said}, "finish_reason", "content_filter"),
    "/v1/completions": (lambda said: {"prompt": said[0]["content"]}, "finish_reason", "content_filter"),
    "/v1/responses": (lambda said: {"input": said[0]["content"]}, "reason", "content_filter"),
    "/v1/messages": (lambda said: {"messages": said, "max_tokens": 50}, "stop_reason", "refusal"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", WIRES)
async def test_an_answer_is_cut_off_and_says_so(url, path, stream):
    made, name, word = WIRES[path]
    async with httpx.AsyncClient(base_url=url.url, timeout=60) as client:
        answer = await client.post(path, json={"model": "default", "stream": stream, **made(HELLO)})
    assert answer.status_code == 200
    assert ("heron" not in answer.text and "The bird is a" in answer.text.replace('"}', "")) or stream
    assert f'"{name}":"{word}"' in answer.text.replace('": "', '":"')


async def test_a_forbidden_prompt_is_refused_and_never_reaches_the_model(url):
    async with httpx.AsyncClient(base_url=url.url, timeout=60) as client:
        for path, (made, _, _) in WIRES.items():
            for stream in (False, True):
                answer = await client.post(path, json={"model": "default", "stream": stream, **made(FORBIDDEN)})
                assert answer.status_code == 400 and "We do not speak of that." in answer.text, answer.text
    assert not url.engine.requests


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": "blue\\u0020heron"}'}}
FUNCTION = {"name": "f", "description": "", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["blue heron"]}}}
PARTS = [{"type": "text", "text": "the blue "}, {"type": "text", "text": "heron"}]
LINES = [{"type": "text", "text": "the blue"}, {"type": "text", "text": "heron"}]
PLACES: dict[str, tuple[str, dict[str, Any]]] = {
    "an earlier message": ("/agui", {"messages": [*body(user("blue heron", "u0"))["messages"], user("Hi", "u1")]}),
    "a call": ("/agui", {"messages": [user("Hi", "u1"), {"id": "a", "role": "assistant", "toolCalls": [CALL]}]}),
    "a result": ("/agui", {"messages": [
        user("Hi", "u1"), {"id": "a", "role": "assistant", "toolCalls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}]},
        {"id": "t", "role": "tool", "toolCallId": "c", "content": "a blue heron"},
    ]}),
    "a name": ("/agui", {"messages": [{**user("Hi", "u1"), "name": "blue heron"}]}),
    "a tool's name": ("/agui", {"tools": [{**FUNCTION, "name": "blue heron"}]}),
    "a tool's description": ("/agui", {"tools": [{**FUNCTION, "description": "blue heron"}]}),
    "a tool's schema": ("/agui", {"tools": [{**FUNCTION, "parameters": {"type": "object", "title": "blue heron"}}]}),
    "context": ("/agui", {"context": [{"description": "bird", "value": "blue heron"}]}),
    "state": ("/agui", {"state": {"bird": ["blue heron"]}}),
    "forwardedProps": ("/agui", {"forwardedProps": {"bird": "blue heron"}}),
    "an answer's shape": ("/v1/chat/completions", {"messages": HELLO, "response_format": SCHEMA}),
    "two parts of a message": ("/agui", {"messages": [{**user("Hi", "u1"), "content": PARTS}]}),
    "two lines of parts": ("/v1/messages", {"messages": [{"role": "user", "content": LINES}], "max_tokens": 9}),
    "two parts of a result": ("/agui", {"messages": [
        user("Hi", "u1"), {"id": "a", "role": "assistant", "toolCalls": [{**CALL, "function": {"name": "f", "arguments": "{}"}}]},
        {"id": "t", "role": "tool", "toolCallId": "c", "content": PARTS},
    ]}),
    "a space that does not break": ("/v1/completions", {"prompt": "blue\u00a0heron"}),
    "a template's variable": (
        "/v1/chat/completions", {"messages": HELLO, "chat_template_kwargs": {"persona": "blue heron"}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
async def test_it_is_found_wherever_it_stands(url, place):
    path, more = PLACES[place]
    sent = {**body(user("Hi")), **more} if path == "/agui" else {"model": "default", **more}
    async with httpx.AsyncClient(base_url=url.url, timeout=60) as client:
        answer = await client.post(path, json=sent)
    assert "We do not speak of that." in answer.text, answer.text
    assert not url.engine.requests


async def test_parts_of_which_each_may_be_said_may_be_said_together(url):
    said = [{"type": "text", "text": "the blue "}, {"type": "text", "text": "sky and a heron"}]
    async with httpx.AsyncClient(base_url=url.url, timeout=60) as client:
        sent = {"model": "default", "messages": [{"role": "user", "content": said}]}
        assert (await client.post("/v1/chat/completions", json=sent)).status_code == 200


async def test_agui_shows_it_and_the_thread_keeps_nothing_of_it(url):
    async with httpx.AsyncClient(base_url=url.url, timeout=60) as client:
        answer = await client.post("/agui", json=body(user("Which bird?"), thread="kept"))
        stored = (await client.get("/agui/threads/kept")).text
        refused = await client.post("/agui", json=body(user("the blue heron", "u2"), thread="new", run="r2"))
        unknown = await client.get("/agui/threads/new")
    assert "agent_server.withheld" in answer.text and '"finishReason":"content_filter"' in answer.text
    assert "heron" not in answer.text + stored and "agent_server.withheld" in stored
    events = [json.loads(line[6:]) for line in refused.text.splitlines() if line.startswith("data: ")]
    assert [(event["type"], event.get("code")) for event in events] == [("RUN_ERROR", "content_filter")]
    assert unknown.status_code == 404


async def test_the_websocket_says_it_as_an_error_and_as_the_reason(url):
    said: list[dict[str, Any]] = []
    async with websockets.connect(url.url.replace("http", "ws") + "/generate") as socket:
        await socket.send(json.dumps({"type": "config", "prompt": "Which bird?", "options": {"stream": True}}))
        while not said or said[-1]["type"] != "completion":
            said.append(json.loads(await socket.recv()))
    assert said[-1]["finish_reason"] == "content_filter" and "heron" not in json.dumps(said)
    (error,) = [message for message in said if message["type"] == "error"]
    assert error["error"] == "content_filter"


async def test_token_ids_cannot_be_read_and_are_refused(url):
    async with httpx.AsyncClient(base_url=url.url, timeout=60) as client:
        answer = await client.post("/v1/completions", json={"model": "default", "prompt": [1, 2, 3]})
    assert answer.status_code == 400 and "cannot check a prompt of token ids" in answer.text


class Bird:
    name = "bird"

    async def run(self, input: Any):
        yield {"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"}
        for part in ("It is a bl", "ue he", "ron."):
            yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": part}
        yield {"type": "STATE_SNAPSHOT", "snapshot": {"bird": "blue heron"}}


async def test_another_frameworks_agent_is_read_too(tmp_path):
    file = tmp_path / "guards.toml"
    file.write_text(GUARDS)
    async with (
        serving(scripted(ANSWER), agents=[Bird()], guard=(str(file),)) as running,
        httpx.AsyncClient(base_url=running.url, timeout=60) as client,
    ):
        answer = await client.post("/agui", json=body(user("Which?")))
        stored = (await client.get("/agui/threads/t1")).text
    assert "It is a " in answer.text and '"finishReason":"content_filter"' in answer.text
    assert "ron." not in answer.text + stored and "blue heron" not in answer.text + stored


@pytest.mark.parametrize("make", [graph, traveller], ids=["LangGraph", "pydantic-ai"])
async def test_other_frameworks_texts_arguments_and_results_are_read(tmp_path, make):
    """The guests say "You said …" after what they are asked, call what they are told to, and say "Sun in …"."""
    file = tmp_path / "guards.toml"
    file.write_text('[[guard]]\nname = "heron"\nphrases = ["blue heron"]\non = ["text", "arguments", "results"]\n')
    asked = ["a tall blue heron it is", 'call weather {"place": "Blue Heron"}']
    for number, said in enumerate(asked):
        async with (
            serving(scripted("no"), agents=[make()], guard=(str(file),)) as running,
            httpx.AsyncClient(base_url=running.url, timeout=60) as client,
        ):
            answer = await client.post("/agui", json=body(user(said)))
            fine = await client.post("/agui", json=body(user("hello", "u2"), thread="other", run="r2"))
        told = answer.text.partition("RUN_STARTED")[2]
        assert '"finishReason":"content_filter"' in told and "agent_server.withheld" in told
        assert "eron" not in told.replace(said, ""), told
        assert ("You said a tall" in spoken(told)) == (number == 0)
        assert spoken(fine.text).strip() == "You said hello"


def spoken(stream: str) -> str:
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no guards"),
        ("[[guard]]\nname = 'a'", "neither"),
        ("[[guard]]\nname = 'a'\npatterns = ['(']", "RE2"),
        ("[[guard]]\nname = 'a'\nphrases = ['b']\non = ['thoughts']", "on"),
        ("[[model]]\nname = 'a'\nmodel = 'none'", "served ones are"),
        ("[[guard", "cannot be used"),
    ],
)
async def test_a_file_that_cannot_be_used_says_why(tmp_path, text, said):
    from agent_server.http.server import StartupError

    file = tmp_path / "guards.toml"
    file.write_text(text)
    with pytest.raises(StartupError, match=said):
        async with serving(scripted("a"), guard=(str(file),)):
            pass
