"""OpenAI's client asks for decisions: the probabilities are those of the model's own logits over the options' labels."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import torch
import transformers
from openai import AsyncOpenAI

from adapters import openai_decisions
from agent_server.engines.scripted import Fault, Script
from agent_server.http.server import BUNDLED
from agent_server.ids import new_id
from tests.server import scripted, serving

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Support tickets."},
    {
        "role": "user",
        "content": [{"type": "input_text", "text": "Late: "}, {"type": "input_json", "data": {"days": 9}}],
    },
]
CHOICES = {"type": "choice", "name": "topic", "choices": [{"value": "billing"}, {"value": True, "description": "late"}]}
LEVELS = {"type": "score", "levels": [{"label": "calm"}, {"label": "annoyed"}, {"label": "furious"}]}
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "It is late.", "name": "late"},
    {**CHOICES, "instructions": [{"type": "input_text", "text": "What is it about?"}]},
    {**LEVELS, "instructions": "How angry?"},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": str(number)} for number in range(24)]},
]


async def test_probabilities_are_those_of_the_models_logits() -> None:
    body = {"model": "default", "input": MESSAGES, "questions": QUESTIONS}
    # A CPU with instructions for bfloat16 would keep keys and values in it.
    async with serving(local=True, kv_cache_dtype="float32") as running:
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
            made: Any = await client.post("/decisions", body=body, cast_to=httpx.Response)
        answers, usage = made.json()["answers"], made.json()["usage"]
        prompts = running.server.model.prompts
        read = openai_decisions.parse(json.dumps(body).encode(), new_id=new_id)
        asked = read.with_prompts(lambda text: prompts.tokenize(text, add_special_tokens=False), new_id)
        ids = [prompts.build(each.input, each.options).token_ids for each in asked.questions]
    model = transformers.AutoModelForCausalLM.from_pretrained(BUNDLED, dtype="float32").eval()
    for question, prompt, answer in zip(asked.questions, ids, answers, strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([list(prompt)])).logits[0, -1, list(question.labels)]
        wanted = logits.softmax(0).tolist()
        if question.question.type == "predicate":
            assert answer["probability"] == pytest.approx(wanted[0], abs=1e-4)
            continue
        shares = [each["probability"] for each in answer["probabilities"]]
        assert shares == pytest.approx(wanted, abs=1e-4)
        assert answer["confidence"] == max(shares) and sum(shares) == pytest.approx(1)
    late, topic, anger, which = answers
    assert [each["name"] for each in answers] == ["late", "topic", None, None]
    assert {"billing": 0, True: 1}[topic["choice"]] == max(
        (0, 1), key=lambda i: topic["probabilities"][i]["probability"]
    )
    assert [(each["label"], each["value"]) for each in anger["probabilities"]] == [
        ("calm", 0),
        ("annoyed", 1),
        ("furious", 2),
    ]
    expected = sum(each["value"] * each["probability"] for each in anger["probabilities"])
    assert anger["score"] == pytest.approx(expected) and late["type"] == "predicate"
    assert which["choice"] in {str(number) for number in range(24)}
    assert usage["output_tokens"] >= len(QUESTIONS) and usage["total_tokens"] > usage["input_tokens"] > 100


BAD: list[tuple[dict[str, Any], str]] = [
    ({"questions": []}, "questions must be a list of 1 to 400"),
    ({"questions": [{"type": "guess", "instructions": "?"}]}, "questions.0.type"),
    ({"questions": [{"type": "predicate"}]}, "instructions"),
    ({"questions": [{**CHOICES, "instructions": "?", "choices": [{"value": "a"}]}]}, "2 to 255 choices"),
    ({"questions": [{**CHOICES, "instructions": "?", "choices": [{"value": "a"}] * 2}]}, "unique values"),
    ({"questions": [{**LEVELS, "instructions": "?", "levels": [{"label": "a"}] * 11}]}, "2 to 10 levels"),
    ({"input": []}, "input must be text or an array"),
    ({"model": "unheard-of"}, "model"),
]


async def test_what_cannot_be_decided_is_refused() -> None:
    base = {"model": "default", "input": "Hi", "questions": QUESTIONS[:1]}
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        for changes, message in BAD:
            answer = await client.post("/v1/decisions", json={**base, **changes})
            assert answer.status_code in (400, 404) and message in answer.json()["error"]["message"], answer.text


async def test_a_question_that_fails_fails_the_request() -> None:
    failing = Script(fault=Fault(action="error", kind="overloaded", message="Too much.", retryable=True))
    body = {"input": "Hi", "questions": [QUESTIONS[0]] * 3}
    async with serving(scripted([failing])) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/v1/decisions", json=body)
        assert running.server.runs.active == 0
    assert answer.status_code == 503 and "Too much." in answer.json()["error"]["message"]


def test_options_that_cannot_matter_are_not_asked_about() -> None:
    assert openai_decisions.still_unknown({}, 3) == [0, 1, 2]
    assert openai_decisions.still_unknown({0: -0.1, 1: -3.0}, 3) == [2]
    assert openai_decisions.still_unknown({0: -0.1, 1: -20.0}, 3) == []
