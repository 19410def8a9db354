"""llama.cpp's own `/completion`, `/tokenize` and `/apply-template`, as its clients ask for them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from agent_server.engines.scripted import Fault, Script
from tests.server import Running, scripted, serving

TEXT = "It is sunny\nin Oslo."


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with serving(scripted(TEXT)) as found:
        yield found


@pytest.fixture
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.url, timeout=30) as found:
        yield found


async def frames(http: httpx.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    answer = await http.post("/completion", json={**body, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream"), answer.text
    assert "[DONE]" not in answer.text
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.splitlines() if line.startswith("data: ")]


async def test_a_completion_both_ways(running: Running, http: httpx.AsyncClient) -> None:
    body = {"prompt": "The weather", "n_predict": 30, "seed": 7, "return_tokens": True, "n_probs": 2}
    whole = (await http.post("/completion", json=body)).json()
    ids = running.server.model.prompts.tokenize(TEXT, add_special_tokens=False)
    assert whole["content"] == TEXT and whole["tokens"][: len(ids)] == ids
    assert (whole["stop"], whole["stop_type"], whole["stopping_word"], whole["has_new_line"]) == (True, "eos", "", True)
    assert whole["prompt"] == "The weather" and whole["truncated"] is False
    assert (whole["generation_settings"]["n_predict"], whole["generation_settings"]["seed"]) == (30, 7)
    assert whole["tokens_evaluated"] == len(running.engine.requests[0].prompt_token_ids)
    assert whole["tokens_predicted"] == len(whole["tokens"]) and whole["timings"]["predicted_n"] == len(whole["tokens"])
    first = whole["completion_probabilities"][0]
    assert first["id"] == ids[0] and bytes(first["bytes"]).decode() == first["token"] and first["logprob"] <= 0
    found = await frames(http, **body)
    assert "".join(frame["content"] for frame in found) == TEXT and found[-1]["stop"]
    assert not any(frame["stop"] for frame in found[:-1])
    assert [number for frame in found for number in frame["tokens"]][: len(ids)] == ids
    assert all(len(frame["completion_probabilities"]) == len(frame["tokens"]) for frame in found[:-1])
    assert {k: v for k, v in found[-1].items() if k not in ("timings", "content", "tokens")} == {
        k: v for k, v in whole.items() if k not in ("timings", "content", "tokens", "completion_probabilities")
    }


async def test_prompts_of_every_shape(running: Running, http: httpx.AsyncClient) -> None:
    encode = running.server.model.prompts.tokenize
    ids = encode("The weather", add_special_tokens=False)
    for prompt in (ids, {"prompt_string": "The weather"}, [*ids[:1], running.server.model.prompts.detokenize(ids[1:])]):
        answer = await http.post("/completion", json={"prompt": prompt})
        assert answer.status_code == 200 and answer.json()["content"] == TEXT
    assert {each.prompt_token_ids for each in running.engine.requests} == {tuple(ids)}
    several = (await http.post("/completion", json={"prompt": [ids, "Hello", {"prompt_string": "You"}]})).json()
    assert [(each["index"], each["prompt"]) for each in several] == [(0, "The weather"), (1, "Hello"), (2, "You")]


async def test_what_is_asked_of_the_model(running: Running, http: httpx.AsyncClient) -> None:
    asked = {
        "prompt": "Hi", "n_predict": -1, "repeat_penalty": 1.5, "typical_p": 0.9, "ignore_eos": True, "stop": ["sunny"],
        "logit_bias": [[5, 1.5], [6, False], ["Oslo", -2]], "cache_prompt": True,
    }  # fmt: skip
    said = (await http.post("/completion", json=asked)).json()
    sampling = running.engine.requests[-1].sampling
    assert (sampling.repetition_penalty, sampling.typical_p, sampling.ignore_eos) == (1.5, 0.9, True)
    named = dict.fromkeys(running.server.model.prompts.tokenize("Oslo", add_special_tokens=False), -2.0)
    assert sampling.logit_bias == {5: 1.5, 6: -100.0, **named}
    assert (said["stop_type"], said["stopping_word"], said["content"]) == ("word", "sunny", "It is ")
    assert said["warnings"] == ["cache_prompt changes nothing: prefixes are cached by their content."]
    narrow = {"prompt": "Hi", "n_predict": 2, "response_fields": ["content", "generation_settings/n_predict", "prompt"]}
    answer = (await http.post("/completion", json=narrow)).json()
    assert answer == {"content": answer["content"], "generation_settings/n_predict": 2, "prompt": "Hi"}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": [True]}, "prompt.0"), ({"prompt": [1, None]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, "prompt.multimodal_data"),
        ({"prompt": "a", "n_predict": "9"}, "n_predict"), ({"prompt": "a", "logit_bias": [[1]]}, "logit_bias"),
        ({"prompt": "a", "logit_bias": [[None, 1]]}, "logit_bias"), ({"prompt": "a", "mirostat": 2}, "mirostat"),
        ({"prompt": "a", "response_fields": "content"}, "response_fields"), ({"prompt": "a", "max_tokens": "3"}, "max_tokens"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(http: httpx.AsyncClient, wrong: dict[str, Any], param: str) -> None:
    answer = await http.post("/completion", json=wrong)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_a_failure_is_told() -> None:
    script = Script(text=TEXT, fault=Fault(action="error", after=3))
    async with serving(scripted([script])) as running, httpx.AsyncClient(base_url=running.url) as http:
        assert (await http.post("/completion", json={"prompt": "a"})).status_code == 500
        found = await frames(http, prompt="a")
    assert found[-1]["error"]["message"] and not any(frame.get("stop") for frame in found)


async def test_tokens_and_templates(running: Running, http: httpx.AsyncClient) -> None:
    prompts = running.server.model.prompts
    text = "What is <|im_end|> 媽?"
    told = (await http.post("/tokenize", json={"content": text})).json()
    assert told == {"tokens": prompts.tokenize(text, add_special_tokens=False)}
    plain = (await http.post("/tokenize", json={"content": text, "parse_special": False})).json()
    assert plain["tokens"] == prompts.tokenize(text, parse_control_tokens=False) != told["tokens"]
    pieces = (await http.post("/tokenize", json={"content": "What is", "with_pieces": True})).json()["tokens"]
    assert "".join(each["piece"] for each in pieces) == "What is"
    assert (await http.post("/detokenize", json=told)).json()["content"] == text
    for wrong in ({"content": "a", "messages": []}, {"prompt": "a", "with_pieces": True}, {"content": 3}):
        assert (await http.post("/tokenize", json=wrong)).status_code == 400
    messages = [{"role": "user", "content": "Hello"}]
    shown = (await http.post("/apply-template", json={"messages": messages})).json()["prompt"]
    assert shown == (await http.post("/v1/chat/completions/render", json={"messages": messages})).json()["prompt"]
