"""Text completions: requests, whole frame sequences, and the body that says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from inline_snapshot import snapshot
from openai.types import Completion

from adapters.body import Inbound
from adapters.errors import RequestError
from adapters.openai_completions import (
    CompletionFlags,
    CompletionIdentity,
    CompletionStream,
    completion_body,
    parse,
)
from events.vocabulary import Event, TextMessageContent
from tests.adapters import recorded

IDENTITY = CompletionIdentity(id="cmpl-1", model="m", created=7, prompt_texts=("Say: ",))


def read(**fields: Any) -> Inbound:
    return parse(json.dumps(fields).encode(), new_id=lambda prefix: prefix)


def frames(events: list[Event], flags: CompletionFlags) -> list[Any]:
    stream = CompletionStream(IDENTITY, flags)
    data = b"".join(stream.encode(event) for event in events) + stream.finish()
    parts = data.decode().split("\n\n")
    assert parts.pop() == ""
    chunks = [json.loads(part.removeprefix("data: ")) for part in parts[:-1]]
    assert parts[-1] == "data: [DONE]"
    for chunk in chunks:
        assert [chunk.pop(key) for key in ("id", "object", "created", "model")] == ["cmpl-1", "text_completion", 7, "m"]
    return chunks


def with_tokens(*deltas: tuple[str, list[Any]]) -> list[Event]:
    contents = [TextMessageContent(message_id="m1", delta=text, metadata={"tokens": tokens}) for text, tokens in deltas]
    start, end = recorded.text()
    return [*recorded.started(), start, *contents, end, *recorded.finished("length", promptLogprobs=PROMPT)]


PROMPT = [None, [1, ": ", -2.0, []]]
SCORED = with_tokens(
    ("He", [[5, "He", -0.5, [[5, "He", -0.5], [6, "Ho", -1.5]]]]),
    ("y", [[7, "y", -0.25, []]]),
)


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ("hi",)),
        ([1, 2], ((1, 2),)),
        (["a", "b"], ("a", "b")),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_prompts(prompt: Any, prompts: tuple[Any, ...]) -> None:
    inbound = read(prompt=prompt)
    assert inbound.extra.prompts == prompts
    assert inbound.options.raw_prompt == prompts[0]
    assert inbound.options.sampling.max_tokens == 16
    assert not inbound.options.store


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt.0"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt.1"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "logprobs": True}, "logprobs"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, "echo"),
        ({"prompt": "x", "echo": 1}, "echo"),
        ({"prompt": "x", "tools": [{}]}, "tools"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    assert (caught.value.kind, caught.value.param) == ("invalid_request", param)


def test_scoring_a_prompt_asks_for_its_log_probabilities() -> None:
    inbound = read(prompt="Say: ", echo=True, logprobs=2, max_tokens=0)
    assert (inbound.options.sampling.prompt_logprobs, inbound.options.sampling.max_tokens) == (2, 1)
    body = json.loads(completion_body([SCORED], IDENTITY, inbound.extra))
    assert body["choices"][0]["text"] == "Say: "
    assert body["choices"][0]["logprobs"]["token_logprobs"] == [None, -2.0]
    assert body["usage"]["completion_tokens"] == 0


def test_no_alternatives_are_the_chosen_token_alone() -> None:
    body = json.loads(completion_body([SCORED], IDENTITY, CompletionFlags(prompts=("x",), logprobs=0)))
    assert body["choices"][0]["logprobs"]["top_logprobs"] == [{"He": -0.5}, {"y": -0.25}]


def test_best_of_that_asks_for_no_choice_passes() -> None:
    assert read(prompt="x", n=2, best_of=2).options.n == 2


def test_frames() -> None:
    assert frames(recorded.PLAIN, CompletionFlags(prompts=("Say: ",), include_usage=True)) == snapshot(
        [
            {"choices": [{"index": 0, "text": "Hel", "logprobs": None, "finish_reason": None}], "usage": None},
            {"choices": [{"index": 0, "text": "lo é\n", "logprobs": None, "finish_reason": None}], "usage": None},
            {"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}], "usage": None},
            {
                "choices": [],
                "usage": {
                    "prompt_tokens": 20,
                    "completion_tokens": 9,
                    "total_tokens": 29,
                    "prompt_tokens_details": {"cached_tokens": 16},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                },
            },
        ]
    )


def test_frames_with_echo() -> None:
    assert frames(recorded.CUT, CompletionFlags(prompts=("Say: ",), echo=True)) == snapshot(
        [
            {"choices": [{"index": 0, "text": "Say: ", "logprobs": None, "finish_reason": None}]},
            {"choices": [{"index": 0, "text": "Once upon", "logprobs": None, "finish_reason": None}]},
            {"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]},
        ]
    )


def test_frames_with_details() -> None:
    assert frames(SCORED, CompletionFlags(prompts=((1, 2),), logprobs=1, token_ids=True)) == snapshot(
        [
            {
                "choices": [
                    {"index": 0, "text": "", "logprobs": None, "finish_reason": None, "prompt_token_ids": [1, 2]}
                ]
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "text": "He",
                        "logprobs": {
                            "tokens": ["He"],
                            "token_logprobs": [-0.5],
                            "top_logprobs": [{"He": -0.5}],
                            "text_offset": [0],
                        },
                        "finish_reason": None,
                        "token_ids": [5],
                    }
                ]
            },
            {
                "choices": [
                    {
                        "index": 0,
                        "text": "y",
                        "logprobs": {
                            "tokens": ["y"],
                            "token_logprobs": [-0.25],
                            "top_logprobs": [{"y": -0.25}],
                            "text_offset": [2],
                        },
                        "finish_reason": None,
                        "token_ids": [7],
                    }
                ]
            },
            {"choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]},
        ]
    )


def test_frames_of_a_failure() -> None:
    assert frames(recorded.BROKEN, CompletionFlags(prompts=("Say: ",)))[-1] == snapshot(
        {
            "choices": [{"index": 0, "text": "", "logprobs": None, "finish_reason": "error"}],
            "error": {"message": "The engine was lost.", "type": "server_error", "param": None, "code": "connection"},
        }
    )


def test_body() -> None:
    flags = CompletionFlags(prompts=("Say: ",), logprobs=2, echo=True, token_ids=True)
    body = json.loads(completion_body([SCORED], IDENTITY, flags))
    assert body == snapshot(
        {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 7,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "text": "Say: Hey",
                    "logprobs": {
                        "tokens": ["Say", ": ", "He", "y"],
                        "token_logprobs": [None, -2.0, -0.5, -0.25],
                        "top_logprobs": [None, {": ": -2.0}, {"He": -0.5, "Ho": -1.5}, {"y": -0.25}],
                        "text_offset": [0, 3, 5, 7],
                    },
                    "finish_reason": "length",
                    "token_ids": [5, 7],
                }
            ],
            "usage": {
                "prompt_tokens": 20,
                "completion_tokens": 9,
                "total_tokens": 29,
                "prompt_tokens_details": {"cached_tokens": 16},
                "completion_tokens_details": {"reasoning_tokens": 4},
            },
        }
    )
    unechoed = CompletionFlags(prompts=("Say: ",), logprobs=2)
    Completion.model_validate_json(completion_body([SCORED], IDENTITY, unechoed), strict=True)


def test_echo_with_logprobs_needs_an_engine_that_scores_prompts() -> None:
    flags = CompletionFlags(prompts=("Say: ",), logprobs=1, echo=True)
    with pytest.raises(RequestError) as caught:
        completion_body([recorded.PLAIN], IDENTITY, flags)
    assert caught.value.param == "echo"


def test_several_prompts_with_several_answers() -> None:
    flags = CompletionFlags(prompts=("a", "b"), n=2, include_usage=True)
    body = json.loads(completion_body([recorded.PLAIN, recorded.CUT] * 2, IDENTITY, flags))
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 40
    assert body["usage"]["completion_tokens"] == 36
