"""Malformed requests for every wire: whatever comes, the answer is a request or a RequestError, small and soon.

    python -m tests.properties.test_fuzz_wires --cases 10000 --seed 1

Valid requests are changed at random, in their values and in their bytes; others are made from the request schemas of
the wires' own packages. Run as a test on a sample. `test_fuzz_http` does the same to a running server.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from adapters import (
    agui,
    anthropic_messages,
    generate,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
    tokenize,
    ui_messages,
    websocket_messages,
)
from adapters.errors import RequestError, Wire, response
from adapters.generate import Identity
from events.vocabulary import RunFinished
from tests.properties.schemas import body_of

ANSWER_LIMIT = 16 * 1024
LARGEST = 4 * 2**20
"""Bytes of a message: the transport lets none through that is larger than the server's limit."""
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": [{"type": "text", "text": "s"}]},
    {"role": "user", "content": [{"type": "text", "text": "u"}, IMAGE]},
    {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "ok"},
    {"role": "function", "name": "f", "content": "ok"},
]
CHAT = {
    "model": "m", "messages": HISTORY[:4], "tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}},
    "temperature": 0.5, "stop": ["x"], "logit_bias": {"5": 1}, "stream": True, "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}, "n": 2, "seed": 1,
    "reasoning": {"effort": "low"}, "chat_template_kwargs": {"a": 1}, "metadata": {"k": "v"}, "thinking": True,
}  # fmt: skip
RESPONSES = {
    "model": "m", "instructions": "i", "metadata": {"k": "v"}, "reasoning": {"effort": "low", "summary": "auto"},
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": "e"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "ok"}]},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {}}], "text": {"format": {"type": "text"}},
    "include": ["reasoning.encrypted_content"],
}  # fmt: skip
ANTHROPIC = {
    "model": "m", "max_tokens": 9, "system": [{"type": "text", "text": "s"}], "stop_sequences": ["x"],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "redacted_thinking", "data": "sealed-1.e"},
            {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok", "is_error": True}]},
    ],
    "tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"}, "metadata": {"user_id": "u"},
}  # fmt: skip
AGUI = {
    "threadId": "t", "runId": "r", "state": {}, "context": [{"description": "d", "value": "v"}], "tools": [],
    "messages": [{"id": "1", "role": "user", "content": "u"}], "forwardedProps": {"temperature": 0.5},
}  # fmt: skip
UI_MESSAGES = {
    "id": "t", "trigger": "submit-message", "system": "s", "state": {"a": 1}, "temperature": 0.5,
    "tools": {"f": {"description": "d", "parameters": {"type": "object"}}}, "context": [{"description": "d", "value": "v"}],
    "messages": [
        {"id": "u", "role": "user", "parts": [
            {"type": "text", "text": "u"}, {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,QUJD"},
        ]},
        {"id": "a", "role": "assistant", "parts": [
            {"type": "step-start"}, {"type": "reasoning", "text": "r", "providerMetadata": {"agui": {"messageId": "r"}}},
            {"type": "text", "text": "t", "providerMetadata": {"agui": {"messageId": "m"}}},
            {"type": "tool-f", "toolCallId": "c", "state": "output-available", "input": {"a": 1}, "output": {"b": [2]}},
            {"type": "dynamic-tool", "toolName": "g", "toolCallId": "d", "state": "output-error", "errorText": "e"},
        ]},
        {"id": "v", "role": "user", "parts": [{"type": "text", "text": "v"}]},
    ],
}  # fmt: skip
COMPLETIONS = {"model": "m", "prompt": ["a", [1, 2]], "echo": True, "logprobs": 1, "max_tokens": 0, "n": 2}
OLLAMA = {
    "model": "m", "format": {"type": "object"}, "think": "low", "options": {"num_predict": 9, "stop": ["x"]}, "tools": [TOOL],
    "messages": [
        {"role": "user", "content": "v", "images": ["AA=="]},
        {"role": "assistant", "thinking": "v", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"a": 1}}}]},
        {"role": "tool", "tool_name": "get_weather", "content": "v"},
    ],
}  # fmt: skip
GENERATE = {"prompt": "p", "max_tokens": 9, "stop": ["x"], "options": {"include_timing": True}, "stream": True}

Parse = Callable[..., Any]
BODIES: dict[str, tuple[Wire, Parse, dict[str, Any]]] = {
    "chat": ("openai", openai_chat.parse, CHAT),
    "responses": ("openai", openai_responses.parse, RESPONSES),
    "completions": ("openai", openai_completions.parse, COMPLETIONS),
    "anthropic": ("anthropic", anthropic_messages.parse, ANTHROPIC),
    "anthropic count": ("anthropic", anthropic_messages.parse_count, {k: v for k, v in ANTHROPIC.items() if k != "max_tokens"}),
    "tokenize": ("openai", tokenize.parse_tokenize, {"messages": HISTORY[:2], "tools": [TOOL], "return_token_strs": True}),
    "generate": ("generate", generate.parse, GENERATE),
    "agui": ("agui", agui.parse, AGUI),
    "ui messages": ("agui", ui_messages.parse, UI_MESSAGES),
    "ollama": ("ollama", ollama.parse_chat, OLLAMA),
}  # fmt: skip
MESSAGES: dict[str, list[dict[str, Any]]] = {
    "websocket": [
        {"type": "config", "prompt": "p", "parameters": {"temperature": 0.5}, "options": {"include_logprobs": True}},
        {"type": "config", "messages": HISTORY, "tools": [TOOL]},
        {"type": "control", "action": "modify", "parameters": {"top_p": 0.5}},
        {"type": "control", "action": "regenerate"},
        {"type": "control", "action": "stop"},
        {"type": "feedback", "rating": 1, "text": "t", "position": 4},
    ],
    "agui websocket": [
        {"type": "run", "input": AGUI, "agent": "default"},
        {"type": "subscribe", "runId": "r", "after": 3},
        {"type": "modify", "parameters": {"top_p": 0.5}},
        {"type": "cancel"},
    ],
}  # fmt: skip
ODD: list[Any] = [
    None, True, False, 0, -1, 1e308, 10**30, 2**63, 0.5, "", "x", "\u0000", "\ud800", "x" * 5000, "<|im_start|>", [], {},
    [[]], [None], [{}], {"a": {}}, {"type": "text"}, {"": ""}, {"\ud83d": 1}, ["x"] * 300, [0] * 3000, {"x" * 3000: 1},
]  # fmt: skip


def changed(value: Any, rng: random.Random) -> Any:
    """A copy with one to four places changed."""
    found = copy.deepcopy(value)
    for _ in range(rng.randint(1, 4)):
        places = list(_places(found))
        if not places:
            return copy.deepcopy(rng.choice(ODD))
        owner, key = rng.choice(places)
        match rng.randint(0, 5):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[rng.choice(["frobnicate", "type", "id", "", "x" * 500])] = copy.deepcopy(owner[key])
            case 2 if isinstance(owner, list):
                owner.extend([owner[key]] * rng.choice([1, 5, 600]))
            case 3:
                deep: Any = owner[key]
                for _ in range(rng.choice([3, 40, 70])):
                    deep = {"a": deep} if rng.random() < 0.5 else [deep]
                owner[key] = deep
            case _:
                owner[key] = copy.deepcopy(rng.choice(ODD))
    return found


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    waiting = [value]
    for _ in range(2000):
        if not waiting:
            return
        item = waiting.pop()
        keys: Any = item.keys() if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in list(keys):
            yield item, key
            waiting.append(item[key])


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """Bytes changed, cut, doubled or not at all."""
    match rng.randint(0, 11):
        case 0:
            return data[: rng.randint(0, len(data))]
        case 1:
            place = rng.randint(0, max(0, len(data) - 1))
            return data[:place] + bytes([rng.randint(0, 255)]) + data[place + 1 :]
        case 2:
            return data + data
        case 3:
            return data.replace(b'"', rng.choice([b"'", b'"\xff', b'"\\ud800']), rng.randint(1, 3))
        case 4:
            return data.replace(b":", b":" + b"[" * rng.choice([5, 70, 5000, 100_000]), 1)
        case 5:
            return data.replace(b":", b":" + rng.choice([b"NaN,", b"1e999,", b"9" * 5000 + b",", b"-", b"'"]), 1)
    return data


def written(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=True).encode()
    except RecursionError:
        return b"[" * 3000


def malformed(name: str, rng: random.Random) -> bytes:
    """A body for a wire: made from its schema, or a valid one changed; then perhaps its bytes are spoilt."""
    made = body_of(name, rng) if rng.random() < 0.5 else None
    return spoilt(written(made if made is not None else changed(BODIES[name][2], rng)), rng)


def check_body(name: str, rng: random.Random) -> float:
    """One malformed body; the seconds it took. AssertionError for an answer that is too large."""
    wire, parse, _ = BODIES[name]
    body = malformed(name, rng)
    counter = itertools.count()
    begun = time.thread_time()
    try:
        parse(body, new_id=lambda prefix: f"{prefix}_{next(counter)}")
    except RequestError as error:
        answer = response(wire, error)
        assert 400 <= answer.status < 500, (name, answer)
        assert len(answer.body) < ANSWER_LIMIT, name
    return time.thread_time() - begun


def check_session(name: str, rng: random.Random) -> float:
    """A row of malformed messages on one connection."""
    counter = itertools.count()
    begun = time.thread_time()
    session: Any = (
        generate.GenerationSession(new_id=lambda prefix: f"{prefix}_{next(counter)}", clock=lambda: 0.0)
        if name == "websocket"
        else agui.AguiSession()
    )
    for _ in range(rng.randint(1, 5)):
        value = rng.choice(MESSAGES[name])
        data = spoilt(written(value if rng.random() < 0.4 else changed(value, rng)), rng)[:LARGEST]
        for action in session.receive(data.decode("utf-8", "replace")):
            if isinstance(action, websocket_messages.Send):
                assert len(action.data) < ANSWER_LIMIT
                json.loads(action.data)
            if isinstance(action, generate.Start):
                session.on_started(Identity(request_id="gen_1", model="m"))
            if isinstance(action, generate.Stop | agui.StartRun):
                session.event(RunFinished(thread_id="t", run_id="r"))
    return time.thread_time() - begun


def run(name: str, cases: int, seed: int) -> float:
    """The longest that one case took, in seconds of this thread."""
    check = check_body if name in BODIES else check_session
    slowest = 0.0
    for case in range(cases):
        try:
            slowest = max(slowest, check(name, random.Random(f"{name} {seed} {case}")))
        except BaseException as error:
            raise AssertionError(f"{name}, seed {seed}, case {case}") from error
    return slowest


@pytest.mark.parametrize("name", [*BODIES, *MESSAGES])
def test_a_sample(name: str) -> None:
    run(name, 300, seed=7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    for name in (*BODIES, *MESSAGES):
        slowest = run(name, arguments.cases, arguments.seed)
        print(f"{name}: {arguments.cases} cases, none escaped, the slowest took {slowest * 1000:.1f} ms")


if __name__ == "__main__":
    main()
