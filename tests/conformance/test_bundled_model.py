"""The real clients hold conversations with the bundled model on the embedded engine: nothing between is a stand-in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from adapters import sse
from tests.conformance.node import NodeClients
from tests.dictated import ENGINE
from tests.server import serving

LOCATION = {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]}
WEATHER = {"name": "get_weather", "description": "The weather in a place", "parameters": LOCATION}
RESULT = {"city": "Oslo", "temperature": 7, "conditions": "cloudy"}
QUESTION = "What is the weather in Oslo?"
FUNCTION = {"type": "function", "function": WEATHER}


def arguments(message: dict[str, Any]) -> list[Any]:
    return [json.loads(call["function"]["arguments"]) for call in message.get("toolCalls") or ()]


@pytest.mark.parametrize("client", ["1.0.0", "0.0.59"])
async def test_ag_ui_clients_get_reasoning_a_call_and_an_answer(node_clients: NodeClients, client: str):
    async with serving() as running:
        entry = {
            "url": f"{running.url}/agui", "client": client, "tools": [WEATHER], "results": {"get_weather": RESULT},
            "turns": [QUESTION, "Thank you!"],
        }  # fmt: skip
        [report] = await asyncio.to_thread(node_clients.run, "converse.mjs", [entry])
    assert report["problems"] == []
    assert [run["error"] for run in report["runs"]] == [None, None, None]
    assert {run["events"][-1] for run in report["runs"]} == {"RUN_FINISHED"}
    assert "REASONING_MESSAGE_CONTENT" in report["runs"][0]["events"]
    roles = [message["role"] for message in report["messages"] if message["role"] != "reasoning"]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    spoken = [message for message in report["messages"] if message["role"] == "assistant"]
    assert arguments(spoken[0]) == [{"location": "Oslo"}]
    assert "7" in spoken[1]["content"] and "cloudy" in spoken[1]["content"]
    assert report["runs"][0]["usage"][0]["outputTokens"] > 0


async def test_the_openai_sdk_gets_the_same_message_streaming_and_not():
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    async with serving() as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        request: dict[str, Any] = {"model": "agent-server-demo", "messages": messages, "tools": [FUNCTION]}
        whole = (await client.chat.completions.create(**request)).choices[0]
        async with client.chat.completions.stream(**request) as stream:
            streamed = (await stream.get_final_completion()).choices[0]
        assert whole.finish_reason == streamed.finish_reason == "tool_calls"
        calls = [
            [call.function.model_dump(include={"name", "arguments"}) for call in each.message.tool_calls or ()]
            for each in (whole, streamed)
        ]
        assert calls[0] == calls[1] and json.loads(calls[0][0]["arguments"]) == {"location": "Oslo"}
        assert whole.message.model_extra and whole.message.model_extra["reasoning"]
        call = (whole.message.tool_calls or [])[0]
        messages += [
            whole.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": json.dumps(RESULT)},
        ]
        answer = (await client.chat.completions.create(**request)).choices[0]
    assert answer.finish_reason == "stop" and "cloudy" in (answer.message.content or "")


async def test_one_generation_is_the_same_on_both_wires():
    body = {
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "state": {}, "context": [], "tools": [WEATHER],
        "messages": [{"id": "u", "role": "user", "content": QUESTION}], "forwardedProps": {"temperature": 0},
    }  # fmt: skip
    chat = {"messages": [{"role": "user", "content": QUESTION}], "tools": [FUNCTION], "temperature": 0}
    async with serving() as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        stream = (await client.post("/agui", json=body)).content
        message = (await client.post("/v1/chat/completions", json=chat)).json()["choices"][0]["message"]
    events = [json.loads(frame["data"]) for frame in sse.parse([stream])]

    def joined(kind: str) -> str:
        return "".join(event["delta"] for event in events if event["type"] == kind)

    assert joined("REASONING_MESSAGE_CONTENT") == message["reasoning"]
    assert joined("TEXT_MESSAGE_CONTENT") == (message["content"] or "")
    assert joined("TOOL_CALL_ARGS") == message["tool_calls"][0]["function"]["arguments"]
    names = [event["toolCallName"] for event in events if event["type"] == "TOOL_CALL_START"]
    assert names == [message["tool_calls"][0]["function"]["name"]]


async def test_a_prompt_is_scored_as_the_model_would_have_written_it():
    """What harnesses for evaluation ask: `echo` with `logprobs` and nothing to be generated."""
    asked: dict[str, Any] = {"model": "agent-server-demo", "temperature": 0, "logprobs": 1}
    async with serving() as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        ids = {"return_token_ids": True}
        written = (
            await client.completions.create(prompt="The weather", max_tokens=6, extra_body=ids, **asked)
        ).choices[0]
        prompt = [*(written.model_extra or {})["prompt_token_ids"], *(written.model_extra or {})["token_ids"]]
        if ENGINE:  # an upstream's streams have no such thing, and that is said
            with pytest.raises(openai.BadRequestError, match="prompt_logprobs"):
                await client.completions.create(prompt=prompt, max_tokens=0, echo=True, **asked)
            return
        scored = (await client.completions.create(prompt=prompt, max_tokens=0, echo=True, **asked)).choices[0]
    assert written.logprobs and scored.logprobs and scored.logprobs.tokens and written.logprobs.tokens
    assert scored.text == "".join(scored.logprobs.tokens) == "The weather" + written.text
    assert scored.logprobs.token_logprobs and scored.logprobs.token_logprobs[0] is None
    count = len(written.logprobs.tokens)
    assert scored.logprobs.tokens[-count:] == written.logprobs.tokens
    # Keys and values are kept in bfloat16, so a token is scored a little differently where its prompt is read at once.
    assert scored.logprobs.token_logprobs[-count:] == pytest.approx(written.logprobs.token_logprobs, abs=1e-2)


@pytest.mark.parametrize("tools", [None, [FUNCTION]], ids=["text", "call"])
async def test_every_token_that_was_generated_has_its_id(tools: Any):
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    extra = {"return_token_ids": True}
    request: dict[str, Any] = {"model": "default", "messages": messages, "extra_body": extra, "seed": 1}
    request |= {"tools": tools} if tools else {"max_tokens": 60}
    async with serving() as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        whole = (await client.chat.completions.create(**request)).model_dump()
        stream = await client.chat.completions.create(**request, stream=True)
        chunks = [chunk.model_dump() async for chunk in stream]
        async with httpx.AsyncClient(base_url=running.url) as http:
            ids = whole["choices"][0]["token_ids"]
            text = (await http.post("/detokenize", json={"tokens": ids})).json()["prompt"]
    assert len(ids) == whole["usage"]["completion_tokens"]
    assert text.endswith("</tool_call><|im_end|>" if tools else "<|im_end|>")
    assert [number for chunk in chunks for number in chunk["choices"][0].get("token_ids") or []] == ids
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])


async def test_a_client_renders_and_encodes_as_the_server_does():
    """lm-evaluation-harness's remote tokenizer takes the template and the special tokens from `/tokenizer_info`."""
    messages = [{"role": "user", "content": QUESTION}]
    async with serving() as running, httpx.AsyncClient(base_url=running.url) as http:
        told = (await http.get("/tokenizer_info")).json()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        rendered = environment.from_string(told["chat_template"]).render(messages=messages, add_generation_prompt=True)
        assert rendered == (await http.post("/apply-template", json={"messages": messages})).json()["prompt"]
        for name in ("eos_token", "pad_token"):
            encoded = await http.post("/tokenize", json={"prompt": told[name], "add_special_tokens": False})
            assert encoded.json()["count"] == 1
        assert (await http.get("/tokenizer_info", params={"model": "no-such-model"})).status_code == 404
    assert told["model_max_length"] == 4096


async def test_words_and_tokens_that_may_not_come():
    """`bad_words` and `allowed_token_ids` of vLLM, by the openai SDK."""
    ask: dict[str, Any] = {"model": "default", "prompt": "The weather", "max_tokens": 6, "temperature": 0}
    async with serving() as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client:
        free = (await client.completions.create(**ask, extra_body={"return_token_ids": True})).choices[0]
        ids = (free.model_extra or {})["token_ids"]
        prompts = running.server.model.prompts
        token = next(each for each in ids if prompts.detokenize([each]).strip().isalpha())
        word = prompts.detokenize([token])
        if ENGINE:  # an upstream that has no word for a parameter has a 400 for it, which says which
            return
        without = {"bad_words": [word], "return_token_ids": True}
        barred = (await client.completions.create(**ask, extra_body=without)).choices[0]
        only = {"allowed_token_ids": ids[:1], "return_token_ids": True}
        narrow = (await client.completions.create(**ask, extra_body=only)).choices[0]
        with pytest.raises(openai.BadRequestError, match="vocabulary"):
            await client.completions.create(**ask, extra_body={"allowed_token_ids": [10**6]})
    assert token not in (barred.model_extra or {})["token_ids"]  # it may spell the word in other tokens
    assert (narrow.model_extra or {})["token_ids"] == ids[:1] * 6


async def test_a_long_prompt_tells_how_far_it_is_on_each_wire():
    """llama.cpp's `return_progress`, and the same for AG-UI."""
    words = "word " * 200
    asked: dict[str, Any] = {"model": "default", "max_tokens": 4, "stream": True}
    agui = {
        "threadId": "t", "runId": "r", "protocolVersion": "1.0", "state": {}, "context": [], "tools": [],
        "messages": [{"id": "u", "role": "user", "content": f"b {words}"}],
        "forwardedProps": {"max_tokens": 4, "prompt_progress": True},
    }  # fmt: skip
    extra = {"return_progress": True}
    async with (
        serving(step_tokens=80, max_batch=4) as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        messages: list[Any] = [{"role": "user", "content": f"a {words}"}]
        streams = [
            await client.chat.completions.create(messages=messages, extra_body=extra, **asked),
            await client.completions.create(prompt=f"c {words}", extra_body=extra, **asked),
        ]
        chunks = [[chunk.model_dump() async for chunk in stream] for stream in streams]  # type: ignore[attr-defined]
        events = [json.loads(frame["data"]) for frame in sse.parse([(await http.post("/agui", json=agui)).content])]
    if ENGINE:  # an upstream does not tell, which is said
        assert "does not tell how far" in str(chunks[0]) and not any("prompt_progress" in str(each) for each in chunks)
        return
    for found in chunks:
        reports = [chunk["prompt_progress"] for chunk in found if "prompt_progress" in chunk]
        assert found[: len(reports)] == [chunk for chunk in found if "prompt_progress" in chunk] and len(reports) > 3
        check_progress([(each["total"], each["cache"], each["processed"], each["time_ms"]) for each in reports])
    values = [event["value"] for event in events if event.get("name") == "agent_server.prompt_progress"]
    check_progress([(each["total"], each["cached"], each["processed"], each["seconds"]) for each in values])


def check_progress(reports: list[tuple[int, int, int, float]]) -> None:
    total, cached, first, _ = reports[0]
    assert total > 200 and cached == first and reports[-1][2] == total
    assert {each[:2] for each in reports} == {(total, cached)}
    assert [each[2] for each in reports] == sorted({each[2] for each in reports})
    assert [each[3] for each in reports] == sorted(each[3] for each in reports)


async def test_a_predicted_answer_is_the_same_in_fewer_steps():
    async with (
        serving() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="-") as client,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        asked: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": 80}
        asked["messages"] = [{"role": "user", "content": QUESTION}]
        plain = await client.chat.completions.create(**asked)
        text = plain.choices[0].message.content
        parts: Any = [{"type": "text", "text": "It says: "}, {"type": "text", "text": text}]
        for content in (text, parts):
            prediction: Any = {"type": "content", "content": content}
            raw = await client.chat.completions.with_raw_response.create(**asked, prediction=prediction)
            assert raw.parse().choices[0].message == plain.choices[0].message
            assert raw.parse().usage == plain.usage
            if ENGINE:
                assert "prediction changes nothing" in raw.headers["x-warning"]
            else:
                assert "x-warning" not in raw.headers
        if not ENGINE:
            lines = dict(line.rsplit(" ", 1) for line in (await http.get("/metrics")).text.splitlines() if line)
            assert float(lines["agent_server:spec_decode_num_accepted_tokens_total"]) > 8
        for wrong in ({"type": "content"}, {"type": "text", "content": "a"}, {"type": "content", "content": [{}]}):
            with pytest.raises(openai.BadRequestError, match="prediction must be"):
                await client.chat.completions.create(**asked, prediction=wrong)  # type: ignore[arg-type]


async def test_what_other_servers_take_changes_the_models_own_answer():
    """A budget of reasoning, the model's own spelling, and a prompt that is scored, on Chat and Completions."""
    base: dict[str, Any] = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 60}
    async with serving() as running, httpx.AsyncClient(base_url=running.url, timeout=60) as http:

        async def chat(path: str = "/v1/chat/completions", **fields: Any) -> dict[str, Any]:
            answer = await http.post(path, json={**base, **fields})
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        free = await chat()
        raw = await chat(skip_special_tokens=False, include_stop_str_in_output=True)
        thought, said = (free["choices"][0]["message"][part] for part in ("reasoning", "content"))
        text = raw["choices"][0]["message"]["content"]
        assert thought in text and text.endswith(said) and "</think>" in text
        if ENGINE:  # an upstream's streams have no scores of prompts, and it keeps no budget
            return
        bounded = await chat(thinking_token_budget=2, return_token_ids=True)
        message, usage = bounded["choices"][0]["message"], bounded["usage"]
        assert usage["completion_tokens_details"]["reasoning_tokens"] < 6 < len(thought)
        assert thought.startswith(message["reasoning"]) and message["content"]
        scored = await chat(prompt_logprobs=1, max_tokens=1, return_token_ids=True)
        rows = scored["prompt_logprobs"]
        assert rows[0] is None and len(rows) == len(scored["prompt_token_ids"])
        for token, row in zip(scored["prompt_token_ids"][1:], rows[1:], strict=True):
            ranked = row[str(token)]
            assert ranked["logprob"] <= max(each["logprob"] for each in row.values())
            assert ranked["rank"] in (1, None)
        body = {"prompt": scored["prompt_token_ids"], "prompt_logprobs": 1, "max_tokens": 1}
        again = (await http.post("/v1/completions", json=body)).json()
        assert again["choices"][0]["prompt_logprobs"] == rows
