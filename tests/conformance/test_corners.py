"""What clients do beside the straight way: each corner on every wire that has it, against one running server."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import msgspec
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from agent_server.engines.scripted import Script
from agent_server.version import version
from tests.server import Running, scripted, serving

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWER = "<think>\nI have it.\n</think>\n\nIt is sunny in Oslo."
HELLO: Any = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CHAT_TOOL = {"type": "function", "function": WEATHER}
PATHS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO},
    "/v1/completions": {"prompt": "Hello"},
    "/v1/responses": {"input": "Hello"},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
}


def answers(request: Any) -> Script:
    """A call where a tool is declared and has not answered yet."""
    text = running_vocabulary.decode(request.prompt_token_ids)
    return Script(text=CALL if "get_weather" in text and "sunny" not in text else ANSWER)


class _Vocabulary:
    """Set by the server's fixture: what the scripts read the prompt with."""

    engine: Any = None

    def decode(self, ids: Any) -> str:
        decoder = self.engine.vocabulary.detokenizer()
        return "".join(map(decoder.push, ids)) + decoder.flush()


running_vocabulary = _Vocabulary()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    engine = scripted(answers)
    running_vocabulary.engine = engine
    async with serving(engine) as found:
        yield found


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as found:
        yield found


async def post(http: httpx.AsyncClient, path: str, **fields: Any) -> Any:
    return (await http.post(path, json={**PATHS.get(path, {}), **fields})).json()


# ---- Anthropic ------------------------------------------------------------------------------------------------------


async def test_the_tool_runner_falls_back_from_threads(running: Running) -> None:
    asked: list[str] = []

    @anthropic.beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather now."""
        asked.append(city)
        return "sunny"

    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        runner = client.beta.messages.tool_runner(model="default", max_tokens=200, messages=HELLO, tools=[get_weather])
        last = await runner.until_done()
    assert asked == ["Oslo"]
    assert "sunny in Oslo" in "".join(block.text for block in last.content if block.type == "text")


async def test_message_start_has_the_prompts_length(running: Running) -> None:
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        counted = await client.messages.count_tokens(model="default", messages=HELLO)
        stream = await client.messages.create(model="default", max_tokens=99, messages=HELLO, stream=True)
        first, *_ = [event async for event in stream]
    assert first.type == "message_start"
    assert first.message.usage.input_tokens == counted.input_tokens > 0


# ---- prompts --------------------------------------------------------------------------------------------------------


async def test_the_beginning_of_an_answer_is_left_out_where_that_is_asked_for(http: httpx.AsyncClient) -> None:
    whole = await post(http, "/tokenize", messages=HELLO)
    bare = await post(http, "/tokenize", messages=HELLO, add_generation_prompt=False)
    assert whole["tokens"][: bare["count"]] == bare["tokens"] and bare["count"] < whole["count"]
    prefill = [*HELLO, {"role": "assistant", "content": "It is"}]
    continued = {"messages": prefill, "continue_final_message": True}
    assert (await post(http, "/tokenize", **continued, add_generation_prompt=False)) == (
        await post(http, "/tokenize", **continued)
    )
    for path in ("/tokenize", "/v1/chat/completions"):
        refused = await post(http, path, **continued, add_generation_prompt=True)
        assert refused["error"]["param"] == "add_generation_prompt"
        assert "error" not in await post(http, path, **continued, add_generation_prompt=False)


# ---- schemas --------------------------------------------------------------------------------------------------------

FORMATS: dict[str, tuple[str, Any]] = {
    "/v1/chat/completions": ("response_format", lambda shape: {"response_format": shape}),
    "/v1/completions": ("response_format", lambda shape: {"response_format": shape}),
    "/v1/responses": ("text.format", lambda shape: {"text": {"format": shape}}),
    "/v1/messages": ("output_config.format", lambda shape: {"output_config": {"format": shape}}),
}
HICCUP = {"type": "object", "properties": {"a": {"type": "hiccup"}}}


@pytest.mark.parametrize("path", FORMATS)
@pytest.mark.parametrize(
    ("shape", "place"),
    [
        ({"type": "json_schema"}, ".schema"),
        ({"type": "json_schema", "json_schema": {"name": "n"}}, ".json_schema.schema"),
        ({"type": "json_schema", "schema": {"type": "hiccup"}}, ".schema.type"),
        ({"type": "json_schema", "schema": HICCUP}, ".schema.properties.a.type"),
        ({"type": "json_schema", "schema": {"properties": {"a": "b"}}}, ".schema.properties.a"),
        ({"type": "json_schema", "schema": {"anyOf": [{"items": "b"}]}}, ".schema.anyOf.0.items"),
        ({"type": "json_schema", "schema": {"properties": ["a"]}}, ".schema.properties"),
        ({"type": "json_object", "schema": {"type": "hiccup"}}, ".schema.type"),
        ({"type": "json_object", "json_schema": {"schema": {}}}, ".json_schema"),
    ],
)
async def test_a_schema_that_would_constrain_nothing_is_refused(
    http: httpx.AsyncClient, path: str, shape: Any, place: str
) -> None:
    at, written = FORMATS[path]
    found = await http.post(path, json={**PATHS[path], **written(shape)})
    assert found.status_code == 400
    assert at + place in found.json()["error"]["message"]


async def test_a_schema_beside_json_object_is_honoured(running: Running, http: httpx.AsyncClient) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    await post(http, "/v1/chat/completions", response_format={"type": "json_object", "schema": schema})
    asked = running.engine.requests[-1].constraint
    await post(
        http,
        "/v1/chat/completions",
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    assert asked is not None and asked == running.engine.requests[-1].constraint


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_context_that_is_too_long_is_the_fault_of_the_wires_own_field(path: str, stream: bool) -> None:
    field = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    long = "word " * 400
    body = {
        **PATHS[path],
        "stream": stream,
        field: [{"role": "user", "content": long}] if field == "messages" else long,
    }
    async with (
        serving(scripted(ANSWER, context_length=64), max_context=64) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        found = await http.post(path, json=body)
    if path == "/v1/responses" and stream:
        # As OpenAI's service: clients compact the conversation after this code in `response.failed` alone.
        kinds = [line for line in found.text.splitlines() if line.startswith("event: ")]
        assert kinds == ["event: response.created", "event: response.in_progress", "event: response.failed"]
        error = json.loads(found.text.splitlines()[-2].removeprefix("data: "))["response"]["error"]
        assert error["code"] == "context_length_exceeded" and "prompt is too long" in error["message"]
        return
    assert found.status_code == 400
    error = found.json()["error"]
    assert re.search(r"prompt is too long: \d+ tokens > 64 maximum", error["message"])
    if path != "/v1/messages":
        assert (error["code"], error["param"]) == ("context_length_exceeded", field)


async def test_a_limit_that_does_not_fit_is_named_as_the_wire_spells_it() -> None:
    async with (
        serving(scripted(ANSWER, context_length=64), max_context=64) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        told = await post(http, "/v1/responses", top_logprobs=40, include=["message.output_text.logprobs"])
        assert told["error"]["param"] == "top_logprobs"
        told = await post(http, "/v1/responses", max_output_tokens=0)
        assert told["error"]["param"] == "max_output_tokens"
        told = await post(http, "/v1/messages", stop_sequences=["x"] * 65)
        assert "stop_sequences" in told["error"]["message"]


@pytest.mark.parametrize("path", [*PATHS, "/v1/responses/input_tokens", "/v1/messages/count_tokens"])
async def test_an_unknown_model_has_a_code_of_its_own(http: httpx.AsyncClient, path: str) -> None:
    base = PATHS["/v1/responses"] if path.endswith("input_tokens") else PATHS.get(path, {"messages": HELLO})
    found = await http.post(path, json={**base, "model": "unheard-of"})
    error = found.json()["error"]
    assert found.status_code == 404
    assert error.get("code", error.get("details", {}).get("error_code")) == "model_not_found"


async def test_an_unknown_previous_response_has_a_code_of_its_own(http: httpx.AsyncClient) -> None:
    found = await http.post("/v1/responses", json={"input": "x", "previous_response_id": "resp_none"})
    assert (found.status_code, found.json()["error"]["code"]) == (404, "previous_response_not_found")


# ---- Responses ------------------------------------------------------------------------------------------------------


async def test_items_are_referred_to_by_their_ids(running: Running) -> None:
    """The second step of a client that stores: what the server said is not sent again, only named."""
    tool: Any = {"type": "function", **WEATHER}
    client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    async with client:
        first = await client.responses.create(model="default", input="Hello", tools=[tool])
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert call.id is not None and call.id.startswith("fc_")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        references = [{"type": "item_reference", "id": item.id} for item in first.output]
        sent: Any = [*HELLO, *references, result]
        second = await client.responses.create(model="default", input=sent, tools=[tool])
        assert "sunny in Oslo" in second.output_text
        assert [item.id.partition("_")[0] for item in second.output if item.id] == ["rs", "msg"]
        asked = running.engine.requests[-1].prompt_token_ids
        whole: Any = [*HELLO, *[item.model_dump(exclude_none=True) for item in first.output], result]
        await client.responses.create(model="default", input=whole, tools=[tool])
        assert running.engine.requests[-1].prompt_token_ids == asked
        listed = await client.responses.input_items.list(second.id, order="asc")
        assert [item.type for item in listed.data][-1] == "function_call_output"


@pytest.mark.parametrize("item_id", ["rs_none_0", "msg_none_0", "x", "", "resp_none_in_0", None])
async def test_a_reference_to_nothing_is_refused(http: httpx.AsyncClient, item_id: Any) -> None:
    found = await http.post("/v1/responses", json={"input": [{"type": "item_reference", "id": item_id}]})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "input.0")


async def test_other_tenants_items_are_not_there() -> None:
    async with (
        serving(scripted(ANSWER), api_keys=("a:one", "b:two")) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("one", "two"))
        made = (await http.post("/v1/responses", json={"input": "Hello"}, headers=mine)).json()
        body = {"input": [*HELLO, {"type": "item_reference", "id": made["output"][-1]["id"]}]}
        assert (await http.post("/v1/responses", json=body, headers=mine)).status_code == 200
        assert (await http.post("/v1/responses", json=body, headers=theirs)).status_code == 400


async def test_input_is_counted(http: httpx.AsyncClient) -> None:
    found = await post(http, "/v1/responses/input_tokens", input="Hello")
    told = await post(http, "/tokenize", messages=HELLO)
    assert found == {"object": "response.input_tokens", "input_tokens": told["count"]}


# ---- Chat's lesser used fields ------------------------------------------------------------------------------------------


async def chunks_of(running: Running, **fields: Any) -> list[dict[str, Any]]:
    client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    async with client:
        made: Any = client.chat.completions.create(model="default", messages=HELLO, stream=True, **fields)
        return [chunk.model_dump() async for chunk in await made]


async def test_usage_is_told_with_every_chunk_of_a_completion(running: Running) -> None:
    async def chunks(**told: bool) -> list[Any]:
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            made: Any = client.completions.create(model="default", prompt="Hi", stream=True, stream_options=told)
            return [chunk.usage async for chunk in await made]

    told = await chunks(include_usage=True, continuous_usage_stats=True)
    counts = [usage.completion_tokens for usage in told]
    assert counts == sorted(counts) and counts[0] < counts[-1] == counts[-2]
    assert {usage.prompt_tokens for usage in told} == {len(running.engine.requests[-1].prompt_token_ids)}
    assert set(await chunks(continuous_usage_stats=True)) == {None}


@pytest.mark.parametrize("stream", [False, True])
async def test_log_probabilities_name_tokens_by_their_ids(running: Running, stream: bool) -> None:
    """As vLLM: several tokens may have the same text."""
    ids = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        chat: Any = await client.chat.completions.create(
            model="default", messages=HELLO, logprobs=True, top_logprobs=1, stream=stream, extra_body=ids
        )
        text: Any = await client.completions.create(
            model="default", prompt="Hi", logprobs=1, stream=stream, extra_body=ids
        )
        for choice in await choices(chat, stream):
            if choice.logprobs is not None and choice.logprobs.content:
                assert {each.token for each in choice.logprobs.content} <= set(named(choice.token_ids))
                assert bytes(choice.logprobs.content[0].bytes).decode() in ANSWER
        for choice in await choices(text, stream):
            if choice.logprobs is not None:
                # Special tokens that the text leaves out have ids, but no part in it.
                rest = iter(named(choice.token_ids))
                assert all(token in rest for token in choice.logprobs.tokens)
                assert [next(iter(row)) for row in choice.logprobs.top_logprobs] == choice.logprobs.tokens


async def choices(answer: Any, stream: bool) -> list[Any]:
    found = [chunk.choices[0] async for chunk in answer] if stream else list(answer.choices)
    assert any(choice.logprobs is not None for choice in found)
    return found


def named(ids: list[int]) -> list[str]:
    return [f"token_id:{id}" for id in ids]


@pytest.mark.parametrize("tools", [None, [CHAT_TOOL]], ids=["text", "call"])
async def test_usage_is_told_with_every_chunk(running: Running, http: httpx.AsyncClient, tools: Any) -> None:
    fields = {"tools": tools} if tools else {}
    told = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await chunks_of(running, stream_options=told, **fields)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    whole = await post(http, "/v1/chat/completions", **fields)
    assert counts == sorted(counts) and counts[0] < counts[-1]
    assert counts[-2:] == [whole["usage"]["completion_tokens"]] * 2
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {whole["usage"]["prompt_tokens"]}
    assert "token_ids" not in chunks[0]["choices"][0]


async def test_functions_are_answered_as_they_were_before_tools(running: Running, http: httpx.AsyncClient) -> None:
    whole = (await post(http, "/v1/chat/completions", functions=[WEATHER]))["choices"][0]
    assert whole["finish_reason"] == "function_call" and "tool_calls" not in whole["message"]
    assert whole["message"]["function_call"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    chunks = await chunks_of(running, functions=[WEATHER])
    calls = [chunk["choices"][0]["delta"]["function_call"] for chunk in chunks]
    said = [call for call in calls if call]
    assert said[0] == {"name": "get_weather", "arguments": ""}
    assert "".join(call["arguments"] for call in said) == '{"city": "Oslo"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "function_call": whole["message"]["function_call"]},
        {"role": "function", "name": "get_weather", "content": "sunny"},
    ]
    again = (await post(http, "/v1/chat/completions", messages=history, functions=[WEATHER]))["choices"][0]
    assert "sunny in Oslo" in again["message"]["content"]
    named = await post(http, "/v1/chat/completions", functions=[WEATHER], function_call={"name": "get_weather"})
    assert named["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"function_call": "auto"}, "function_call"),
        ({"functions": [WEATHER], "tools": [CHAT_TOOL]}, "functions"),
        ({"functions": [{"parameters": {}}]}, "tools.0.function.name"),
        ({"functions": [WEATHER], "function_call": {"name": "other"}}, "tool_choice"),
    ],
)
async def test_functions_that_cannot_be_are_named(http: httpx.AsyncClient, fields: Any, param: str) -> None:
    assert (await post(http, "/v1/chat/completions", **fields))["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stop_string_is_shown_where_that_is_asked_for(http: httpx.AsyncClient, path: str) -> None:
    for include in (False, True):
        fields = {"stop": [" in "], "max_tokens": 99, "include_stop_str_in_output": include}
        choice = (await post(http, path, **fields))["choices"][0]
        text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
        assert (text.endswith(" in "), choice["stop_reason"]) == (include, " in ")
        streamed = ""
        async with http.stream("POST", path, json={**PATHS[path], **fields, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    [choice] = json.loads(line.removeprefix("data: "))["choices"]
                    streamed += choice.get("text") or choice.get("delta", {}).get("content") or ""
        assert streamed == text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_what_steers_other_servers_is_taken_with_a_warning(http: httpx.AsyncClient, path: str) -> None:
    fields = {"cache_prompt": True, "id_slot": 0, "mirostat": 0, "return_progress": True}
    told = (await post(http, path, **fields))["extensions"]["warnings"]
    assert told == [
        "cache_prompt changes nothing: prefixes are cached by their content.",
        "id_slot changes nothing: the scheduler finds a place.",
        "This engine does not report the progress of a prompt.",
    ]
    async with http.stream("POST", path, json={**PATHS[path], **fields, "stream": True}) as answer:
        text = (await answer.aread()).decode()
    assert all(sentence in text for sentence in told)
    assert (await post(http, path, mirostat=2))["error"]["param"] == "mirostat"


# ---- custom tools -------------------------------------------------------------------------------------------------------

PATCH = 'say "x"\n\tand é'
CUSTOM_CALL = "<tool_call>\n" + json.dumps({"name": "patch", "arguments": {"input": PATCH}}) + "\n</tool_call>"
LARK = "start: line (LF line)*\nline: /.+/\n%import common.LF"


def custom(wire: str, **format: Any) -> dict[str, Any]:
    """A custom tool as the wire writes it; format: its syntax and definition."""
    if wire == "chat":
        shape = {"type": "grammar", "grammar": format} if format else {"type": "text"}
        return {"type": "custom", "custom": {"name": "patch", "description": "Patch.", "format": shape}}
    shape = {"type": "grammar", **format} if format else {"type": "text"}
    return {"type": "custom", "name": "patch", "description": "Patch.", "format": shape}


def says_done(request: Any) -> Script:
    text = running_vocabulary.decode(request.prompt_token_ids)
    return Script(text="Done." if "patched" in text else CUSTOM_CALL)


@pytest.fixture
async def patching() -> AsyncIterator[Running]:
    engine = scripted(says_done)
    running_vocabulary.engine = engine
    async with serving(engine, demo=False) as found:
        yield found


FORMATS_OF_TEXT: list[dict[str, str]] = [
    {}, {"syntax": "lark", "definition": LARK}, {"syntax": "regex", "definition": r"(?s:.)+"}
]  # fmt: skip


@pytest.mark.parametrize("format", FORMATS_OF_TEXT, ids=["text", "lark", "regex"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_is_called_with_its_text_on_chat(patching: Running, format: Any, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "default", "tools": [custom("chat", **format)]}
    async with AsyncOpenAI(base_url=f"{patching.url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            made = await client.chat.completions.create(messages=HELLO, stream=True, **asked)
            deltas = [chunk.choices[0].delta async for chunk in made]
            parts = [call.model_dump(exclude_none=True) for delta in deltas for call in delta.tool_calls or ()]
            assert len(parts) > 4 and {part["index"] for part in parts} == {0}
            assert {key: parts[0][key] for key in ("type", "custom")} == {
                "type": "custom",
                "custom": {"name": "patch", "input": ""},
            }
            call = {**parts[0], "custom": {"name": "patch", "input": "".join(p["custom"]["input"] for p in parts)}}
        else:
            choice = (await client.chat.completions.create(messages=HELLO, **asked)).choices[0]
            assert choice.finish_reason == "tool_calls"
            call = choice.message.model_dump()["tool_calls"][0]
        assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": PATCH})
        history = [
            *HELLO,
            {"role": "assistant", "tool_calls": [{key: call[key] for key in ("id", "type", "custom")}]},
            {"role": "tool", "tool_call_id": call["id"], "content": "patched"},
        ]
        last = await client.chat.completions.create(messages=history, **asked)
    assert last.choices[0].message.content == "Done."
    grammar = patching.engine.requests[-1].constraint
    assert ('"lark"' in json.dumps(grammar.value)) == (format.get("syntax") == "lark")


@pytest.mark.parametrize("format", FORMATS_OF_TEXT, ids=["text", "lark", "regex"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_is_called_with_its_text_on_responses(patching: Running, format: Any, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "default", "tools": [custom("responses", **format)]}
    async with AsyncOpenAI(base_url=f"{patching.url}/v1", api_key="none", max_retries=0) as client:
        if stream:
            events = [event async for event in await client.responses.create(input="Hello", stream=True, **asked)]
            deltas = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
            [done] = [event for event in events if event.type == "response.custom_tool_call_input.done"]
            assert len(deltas) > 4 and "".join(deltas) == done.input == PATCH
            response = events[-1].response
        else:
            response = await client.responses.create(input="Hello", **asked)
        [call] = response.output
        assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", PATCH)
        assert call.id.startswith("ctc_")
        output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"}
        for sent in (
            {"input": [output], "previous_response_id": response.id},
            {"input": [*HELLO, call.model_dump(exclude_none=True), output]},
            {"input": [*HELLO, {"type": "item_reference", "id": call.id}, output]},
        ):
            assert (await client.responses.create(**sent, **asked)).output_text == "Done."


@pytest.mark.parametrize("wire", ["chat", "responses"])
async def test_a_custom_tools_grammar_is_refused_where_it_cannot_be_kept(patching: Running, wire: str) -> None:
    path = "/v1/chat/completions" if wire == "chat" else "/v1/responses"
    async with httpx.AsyncClient(base_url=patching.url) as http:
        for definition in ("start: <x>", "start: /(/"):
            told = await post(http, path, tools=[custom(wire, syntax="lark", definition=definition)])
            assert "grammar of the tool 'patch' is refused" in told["error"]["message"]
        chosen = {"type": "custom", **({"custom": {"name": "patch"}} if wire == "chat" else {"name": "patch"})}
        taken = await post(http, path, tools=[custom(wire)], tool_choice=chosen)
        assert taken.get("error") is None
        patching.engine.supports_constraints = False
        info = patching.engine.info
        patching.engine.__dict__["_info"] = msgspec.structs.replace(info, supports_constraints=False)
        told = await post(http, path, tools=[custom(wire, syntax="lark", definition=LARK)])
        assert "cannot enforce the schema of the tool 'patch'" in told["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_fields_of_llama_cpp_and_sglang_shape_an_answer(
    running: Running, http: httpx.AsyncClient, path: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for own, other in (
        ({"json_schema": schema}, {"structured_outputs": {"json": schema}}),
        ({"grammar": 'root ::= "a"{5,5}'}, {"structured_outputs": {"grammar": 'root ::= "a"{5,5}'}}),
        ({"ebnf": 'root ::= "a"{5,5}'}, {"structured_outputs": {"grammar": 'root ::= "a"{5,5}'}}),
        ({"regex": "[0-9]{3}"}, {"structured_outputs": {"regex": "[0-9]{3}"}}),
        ({"grammar": ""}, {}),
    ):
        assert (await post(http, path, **own)).get("error") is None
        asked = running.engine.requests[-1].constraint
        await post(http, path, **other)
        assert asked == running.engine.requests[-1].constraint
        assert (asked is None) == (own == {"grammar": ""})
    told = await post(http, path, json_schema={"type": "hiccup"})
    assert told["error"]["param"] == "json_schema.type"


async def test_chats_prompt_is_counted_as_llama_cpp_counts_it(http: httpx.AsyncClient) -> None:
    told = await post(http, "/tokenize", messages=HELLO)
    assert await post(http, "/v1/chat/completions/input_tokens", messages=HELLO) == {"input_tokens": told["count"]}


# ---- where and when a request is computed, and how much of its prompt ------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
async def test_a_request_gives_way_and_has_a_cache_of_its_own(
    running: Running, http: httpx.AsyncClient, path: str
) -> None:
    assert (await post(http, path, priority=3, cache_salt="mine")).get("error") is None
    assert (running.engine.requests[-1].priority, running.engine.requests[-1].cache_salt) == (-3, "mine")
    assert "lower its own priority" in (await post(http, path, priority=-1))["error"]["message"]
    assert "cache_salt" in (await post(http, path, cache_salt=""))["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_end_of_a_prompt_is_kept(running: Running, http: httpx.AsyncClient, path: str) -> None:
    await post(http, path)
    whole = running.engine.requests[-1].prompt_token_ids
    found = await post(http, path, truncate_prompt_tokens=1, return_token_ids=True)
    assert running.engine.requests[-1].prompt_token_ids == whole[-1:]
    assert found.get("prompt_token_ids", found["choices"][0].get("prompt_token_ids")) == list(whole[-1:])
    await post(http, path, truncate_prompt_tokens=10_000)
    assert running.engine.requests[-1].prompt_token_ids == whole
    assert (await post(http, path, truncate_prompt_tokens=0))["error"]["param"] == "truncate_prompt_tokens"
    for side, kept in (("left", (6, 7)), ("right", (5, 6))):
        await post(http, "/v1/completions", prompt=[5, 6, 7], truncate_prompt_tokens=2, truncation_side=side)
        assert running.engine.requests[-1].prompt_token_ids == kept


async def test_as_much_of_a_prompt_as_fits() -> None:
    async with (
        serving(scripted(ANSWER, context_length=64), max_context=64) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        for path, fields in (("/v1/completions", {"prompt": "word " * 400}), ("/v1/chat/completions", {"messages": [
            {"role": "user", "content": "word " * 400}
        ]})):  # fmt: skip
            assert "error" not in await post(http, path, **fields, truncate_prompt_tokens=-1, max_tokens=9)
            assert len(running.engine.requests[-1].prompt_token_ids) == 55


async def test_the_oldest_turns_are_left_out_where_that_is_asked_for() -> None:
    turns: list[Any] = [{"role": "system", "content": "Be brief."}]
    for number in range(9):
        turns += [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "yes " * 12}]
    turns += [{"role": "user", "content": "And now?"}]
    engine = scripted(ANSWER, context_length=128)
    running_vocabulary.engine = engine
    async with (
        serving(engine, max_context=128) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        refused = await post(http, "/v1/responses", input=turns)
        assert refused["error"]["code"] == "context_length_exceeded"
        found = await post(http, "/v1/responses", input=turns, truncation="auto")
        assert (found["error"], found["truncation"]) == (None, "auto")
        read = running_vocabulary.decode(running.engine.requests[-1].prompt_token_ids)
        kept = [number for number in range(9) if f"question {number}" in read]
        assert "Be brief." in read and "And now?" in read
        assert kept and kept == list(range(kept[0], 9)) and kept[0] > 0
        with_one_more = [turns[0], *turns[2 * kept[0] - 1 :]]
        assert (await post(http, "/v1/responses", input=with_one_more))["error"]["code"] == "context_length_exceeded"
        alone = [{"role": "user", "content": "word " * 400}]
        assert (await post(http, "/v1/responses", input=alone, truncation="auto"))["error"] is not None
        assert (await post(http, "/v1/responses", truncation="never"))["error"]["param"] == "truncation"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_times_are_told_as_llama_cpp_tells_them(http: httpx.AsyncClient, path: str) -> None:
    whole = await post(http, path, timings_per_token=True)
    async with http.stream("POST", path, json={**PATHS[path], "timings_per_token": True, "stream": True}) as answer:
        text = (await answer.aread()).decode()
    streamed = next(json.loads(line[6:]) for line in text.splitlines() if '"timings"' in line)
    for timings in (whole["timings"], streamed["timings"]):
        assert timings["prompt_n"] + timings["cache_n"] == whole["usage"]["prompt_tokens"]
        assert timings["predicted_n"] == whole["usage"]["completion_tokens"]
        assert timings["prompt_ms"] >= 0 and timings["predicted_ms"] >= 0
    assert "timings" not in await post(http, path)


async def test_control_tokens_are_shown_where_that_is_asked_for(http: httpx.AsyncClient) -> None:
    chat, text = "/v1/chat/completions", "/v1/completions"
    shown = await post(http, chat, skip_special_tokens=False)
    assert shown["choices"][0]["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    refused = await post(http, chat, skip_special_tokens=False, tools=[CHAT_TOOL])
    assert refused["error"]["param"] == "skip_special_tokens"
    hidden = (await post(http, text, max_tokens=99))["choices"][0]["text"]
    assert (await post(http, text, max_tokens=99, skip_special_tokens=False))["choices"][0]["text"] == ANSWER
    assert hidden == ANSWER.replace("<think>", "").replace("</think>", "")


async def test_the_server_has_sampling_defaults() -> None:
    async with (
        serving(scripted(ANSWER), sampling_defaults={"temperature": 0.6, "top_k": 9, "stop": ["zz"]}) as running,
        httpx.AsyncClient(base_url=running.url, timeout=30) as http,
    ):
        for path in PATHS:
            await post(http, path, top_k=0)
            asked = running.engine.requests[-1].sampling
            assert (asked.temperature, asked.top_k, asked.stop) == (0.6, 0, ("zz",))


# ---- a budget of reasoning ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fields", "budget"),
    [
        ("/v1/chat/completions", {"thinking_token_budget": 7}, 7),
        ("/v1/chat/completions", {"reasoning_effort": "low"}, 2048),
        ("/v1/chat/completions", {"reasoning_effort": "low", "thinking_token_budget": 7}, 7),
        ("/v1/chat/completions", {"reasoning_effort": "high"}, None),
        ("/v1/responses", {"thinking_token_budget": 7}, 7),
        ("/v1/responses", {"reasoning": {"effort": "medium"}}, 8192),
        ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 1024),
        ("/v1/messages", {"thinking": {"type": "disabled", "budget_tokens": 1024}}, None),
        ("/v1/messages", {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}, 2048),
    ],
)
async def test_reasoning_has_a_budget(
    running: Running, http: httpx.AsyncClient, path: str, fields: Any, budget: int | None
) -> None:
    assert (await post(http, path, **fields)).get("error") is None
    asked = running.engine.requests[-1]
    assert asked.sampling.thinking_token_budget == budget
    if budget is not None:
        assert asked.thought is not None
        assert (asked.thought.end, asked.thought.close.strip()) == (("</think>",), "</think>")


async def test_a_budget_that_the_engine_cannot_keep_is_refused_where_it_is_asked_for_by_name(
    running: Running, http: httpx.AsyncClient
) -> None:
    info = running.engine.info
    lesser = msgspec.structs.replace(info, sampling=info.sampling - {"thinking_token_budget"})
    running.engine.__dict__["_info"] = lesser
    refused = await post(http, "/v1/chat/completions", thinking_token_budget=7)
    assert refused["error"]["param"] == "thinking_token_budget"
    told = await post(http, "/v1/chat/completions", reasoning_effort="low")
    assert "error" not in told
    assert "error" not in await post(http, "/v1/messages", thinking={"type": "enabled", "budget_tokens": 1024})
    assert running.engine.requests[-1].sampling.thinking_token_budget is None


# ---- what operators and other clients ask --------------------------------------------------------------------------------


async def test_the_version_and_the_load_are_told(http: httpx.AsyncClient) -> None:
    assert (await http.get("/version")).json() == {"version": version()}
    assert (await http.get("/load")).json() == {"server_load": 0}


async def test_a_prompt_is_shown_without_an_answer(running: Running, http: httpx.AsyncClient) -> None:
    found = await post(http, "/v1/chat/completions/render", messages=HELLO, tools=[CHAT_TOOL])
    assert running.engine.requests == []
    await post(http, "/v1/chat/completions", tools=[CHAT_TOOL])
    assert running.engine.requests[-1].prompt_token_ids == tuple(found["token_ids"])
    assert found["count"] == len(found["token_ids"]) and "get_weather" in found["prompt"]
    refused = await http.post("/v1/chat/completions/render", json={"messages": HELLO, "model": "unheard-of"})
    assert refused.status_code == 404


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("prefix", ["", "/v1/v1"])
async def test_paths_may_lack_or_repeat_their_version(http: httpx.AsyncClient, path: str, prefix: str) -> None:
    bare = prefix + path.removeprefix("/v1")
    assert (await http.post(bare, json=PATHS[path])).status_code == 200
    refused = (await http.post(bare, json={**PATHS[path], "temperature": "x"})).json()
    assert "temperature" in refused["error"]["message"]
    assert ("request_id" in refused) == (path == "/v1/messages")


async def test_paths_without_their_version_are_guarded_as_those_with_it() -> None:
    async with (
        serving(scripted(ANSWER), api_keys=("one",), root_path="/ai") as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        for path in ("/models", "/v1/models", "/v1/v1/models", "/ai/models", "/ai/v1/models", "/ai/v1/v1/models"):
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers={"authorization": "Bearer one"})).status_code == 200
        for path in ("/modelsx", "/aimodels", "/ai/ai/models", "/v1/v1/v1/models"):
            assert (await http.get(path, headers={"authorization": "Bearer one"})).status_code == 404


# ---- models and browsers ------------------------------------------------------------------------------------------------


async def test_models_have_the_form_of_who_asks(running: Running) -> None:
    async with AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        page = await client.models.list()
        one = await client.models.retrieve(page.data[0].id)
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("unheard-of")
    assert [model.type for model in page.data][:1] == ["model"] and one == page.data[0] and not page.has_more
    openai_client = AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
    async with openai_client:
        assert [model.id async for model in openai_client.models.list()] == [model.id for model in page.data]


@pytest.mark.parametrize("allowed", [False, True])
async def test_a_page_may_send_its_cookies_where_the_operator_says_so(allowed: bool) -> None:
    origin = "http://a.example"
    async with (
        serving(scripted(ANSWER), cors_origins=(origin,), cors_credentials=allowed) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        plain = await http.get("/copilotkit/info", headers={"origin": origin})
        asked = {"origin": origin, "access-control-request-method": "POST"}
        preflight = await http.options("/copilotkit/info", headers=asked)
    for answer in (plain, preflight):
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers.get("access-control-allow-credentials") == ("true" if allowed else None)


async def test_a_model_is_found_under_every_name_that_requests_may_use(running: Running) -> None:
    async with (
        httpx.AsyncClient(base_url=running.url, headers={"anthropic-version": "2023-06-01"}) as claude,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        listed = (await http.get("/v1/models")).json()["data"][0]["id"]
        assert (await http.get("/v1/models/default")).json()["id"] == listed
        assert (await claude.get("/v1/models/default")).json()["id"] == listed
        unknown = await claude.get("/v1/models/other")
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
        assert (await http.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"
