"""The generation protocol as a state machine: every message, every control, the example flows, every error."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from inline_snapshot import snapshot

from adapters.errors import KINDS, RequestError
from adapters.generate import Close, ControlRun, Feedback, GenerationSession, Identity, Send, Start, Stop
from events.vocabulary import Custom, Event, TextMessageContent
from tests.adapters import recorded

CONFIG = {"type": "config", "prompt": "Once upon a time"}


class Clock:
    """Every reading is 10 ms after the one before."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return next(self._ticks) / 100


def session() -> GenerationSession:
    counter = itertools.count(1)
    return GenerationSession(new_id=lambda prefix: f"{prefix}_{next(counter)}", clock=Clock())


def say(to: GenerationSession, message: Any) -> list[Any]:
    return [shown(action) for action in to.receive(json.dumps(message))]


def shown(action: Any) -> Any:
    return json.loads(action.data) if isinstance(action, Send) else action


def running(config: dict[str, Any] | None = None, request_id: str = "gen_1") -> GenerationSession:
    made = session()
    (start,) = made.receive(json.dumps(config or CONFIG))
    assert isinstance(start, Start)
    made.on_started(Identity(request_id=request_id, model="m"))
    return made


def play(to: GenerationSession, events: list[Event]) -> list[Any]:
    return [shown(action) for event in events for action in to.event(event)]


def with_options(**options: Any) -> dict[str, Any]:
    return {**CONFIG, "options": options}


DETAILED: list[Event] = [
    *recorded.started(),
    *recorded.text()[:1],
    TextMessageContent(
        message_id="m1",
        delta=" the",
        metadata={"tokens": [[262, " the", -0.5, [[262, " the", -0.5], [9, " a", -1.5]]]]},
    ),
    TextMessageContent(
        message_id="m1", delta=" end", metadata={"tokens": [[7, " e", -0.25, []], [8, "nd", -0.125, []]]}
    ),
    *recorded.text()[-1:],
    *recorded.finished("length"),
]


def test_basic_text_generation() -> None:
    """The specification's first flow."""
    made = session()
    (start,) = made.receive(
        json.dumps({**CONFIG, "parameters": {"max_tokens": 200, "temperature": 0.7}, "options": {"stream": True}})
    )
    assert isinstance(start, Start)
    assert start.inbound.options.raw_prompt == "Once upon a time"
    assert (start.inbound.options.sampling.max_tokens, start.inbound.options.sampling.temperature) == (200, 0.7)
    info = {"version": "1", "max_tokens": 4096}
    said = [shown(action) for action in made.on_started(Identity(request_id="gen_1", model="m", model_info=info))]
    assert said + play(made, DETAILED) == snapshot(
        [
            {"type": "init", "request_id": "gen_1", "model": "m", "model_info": {"version": "1", "max_tokens": 4096}},
            {"type": "token", "token": " the", "generated_text": " the", "finish_reason": None, "finished": False},
            {"type": "token", "token": " e", "generated_text": " the e", "finish_reason": None, "finished": False},
            {"type": "token", "token": "nd", "generated_text": " the end", "finish_reason": None, "finished": False},
            {
                "type": "completion",
                "request_id": "gen_1",
                "generated_text": " the end",
                "finish_reason": "length",
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


def test_everything_that_can_be_included() -> None:
    asked = with_options(echo_prompt=True, include_token_ids=True, include_logprobs=True, include_timing=True)
    made = session()
    made.receive(json.dumps(asked))
    said = [shown(action) for action in made.on_started(Identity(request_id="gen_1", model="m"))]
    assert said + play(made, DETAILED) == snapshot(
        [
            {"type": "init", "request_id": "gen_1", "model": "m"},
            {
                "type": "token",
                "token": "Once upon a time",
                "generated_text": "Once upon a time",
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": " the",
                "token_id": 262,
                "generated_text": "Once upon a time the",
                "logprobs": [{"token": " the", "logprob": -0.5}, {"token": " a", "logprob": -1.5}],
                "timing": {"token_ms": 10.0, "total_ms": 10.0},
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": " e",
                "token_id": 7,
                "generated_text": "Once upon a time the e",
                "logprobs": [{"token": " e", "logprob": -0.25}],
                "timing": {"token_ms": 10.0, "total_ms": 20.0},
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": "nd",
                "token_id": 8,
                "generated_text": "Once upon a time the end",
                "logprobs": [{"token": "nd", "logprob": -0.125}],
                "timing": {"token_ms": 10.0, "total_ms": 30.0},
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "completion",
                "request_id": "gen_1",
                "generated_text": "Once upon a time the end",
                "finish_reason": "length",
                "usage": {
                    "prompt_tokens": 20,
                    "completion_tokens": 9,
                    "total_tokens": 29,
                    "prompt_tokens_details": {"cached_tokens": 16},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                },
                "timing": {"first_token_ms": 10.0, "total_ms": 40.0},
            },
        ]
    )


def test_the_text_so_far_can_be_left_out() -> None:
    tokens = play(running(with_options(include_generated_text=False)), DETAILED)[:-1]
    assert [set(token) for token in tokens] == [{"type", "token", "finish_reason", "finished"}] * 3


def test_no_token_messages_without_streaming() -> None:
    (only,) = play(running(with_options(stream=False)), DETAILED)
    assert (only["type"], only["generated_text"]) == ("completion", " the end")


def test_messages_and_tools() -> None:
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    config = {"type": "config", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    assert play(running(config), recorded.FULL) == snapshot(
        [
            {
                "type": "token",
                "token": "I ",
                "generated_text": "",
                "channel": "reasoning",
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": "think",
                "generated_text": "",
                "channel": "reasoning",
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": "Let me ",
                "generated_text": "Let me ",
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": "look.",
                "generated_text": "Let me look.",
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": '{"city":',
                "generated_text": "Let me look.",
                "channel": "tool_call",
                "tool_call": {"id": "call_1", "name": "get_weather"},
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": ' "Oslo"}',
                "generated_text": "Let me look.",
                "channel": "tool_call",
                "tool_call": {"id": "call_1", "name": "get_weather"},
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "token",
                "token": "{}",
                "generated_text": "Let me look.",
                "channel": "tool_call",
                "tool_call": {"id": "call_2", "name": "now"},
                "finish_reason": None,
                "finished": False,
            },
            {
                "type": "completion",
                "request_id": "gen_1",
                "generated_text": "Let me look.",
                "finish_reason": "tool_calls",
                "usage": {
                    "prompt_tokens": 20,
                    "completion_tokens": 9,
                    "total_tokens": 29,
                    "prompt_tokens_details": {"cached_tokens": 16},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                },
                "reasoning": "I think",
                "tool_calls": [
                    {"id": "call_1", "name": "get_weather", "arguments": '{"city": "Oslo"}'},
                    {"id": "call_2", "name": "now", "arguments": "{}"},
                ],
            },
        ]
    )


def test_error_and_recovery() -> None:
    """The specification's second flow: the error carries what there is, and a new config goes on."""
    made = running()
    failed = recorded.started() + recorded.text("Once") + recorded.failed("out_of_memory", "Too little memory.")
    assert play(made, failed)[-1] == snapshot(
        {
            "type": "error",
            "error": "memory_pressure",
            "message": "Too little memory.",
            "recoverable": True,
            "recovery_action": "reduce_max_tokens",
            "request_id": "gen_1",
            "generated_text": "Once",
        }
    )
    (again,) = made.receive(json.dumps({**CONFIG, "parameters": {"max_tokens": 100}}))
    assert isinstance(again, Start)


def test_midstream_control() -> None:
    """The specification's third flow: modify is acknowledged, generation goes on, stop gives a completion."""
    made = running()
    play(made, DETAILED[:3])
    (modify,) = made.receive(json.dumps({"type": "control", "action": "modify", "parameters": {"temperature": 0.9}}))
    assert modify == ControlRun("modify", {"temperature": 0.9})
    assert [shown(action) for action in made.controlled("modify", True)] == snapshot(
        [{"type": "status", "operation": "modify", "message": "modify is accepted.", "progress": 0, "position": 1}]
    )
    in_effect = Custom(name="agent_server.control", value={"action": "modified", "position": 1})
    assert play(made, [in_effect]) == snapshot(
        [{"type": "status", "operation": "modify", "message": "modify is in effect.", "progress": 100, "position": 1}]
    )
    assert made.receive('{"type":"control","action":"stop"}') == [Stop()]
    assert play(made, recorded.finished("cancelled")) == snapshot(
        [
            {
                "type": "completion",
                "request_id": "gen_1",
                "generated_text": " the",
                "finish_reason": "stop",
                "usage": {
                    "prompt_tokens": 20,
                    "completion_tokens": 9,
                    "total_tokens": 29,
                    "prompt_tokens_details": {"cached_tokens": 16},
                    "completion_tokens_details": {"reasoning_tokens": 4},
                },
            }
        ]
    )


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_pause_and_resume(action: Any) -> None:
    made = running()
    assert made.receive(json.dumps({"type": "control", "action": action})) == [ControlRun(action, {})]
    assert shown(made.controlled(action, True)[0])["operation"] == action
    refused = shown(made.controlled(action, False)[0])
    assert (refused["error"], refused["recoverable"]) == ("invalid_request", True)


def test_regenerate_while_running_and_after() -> None:
    made = running({**CONFIG, "parameters": {"seed": 1}})
    made.receive('{"type":"control","action":"modify","parameters":{"temperature":0.5}}')
    assert made.receive('{"type":"control","action":"regenerate"}') == [Stop()]
    *ending, start = made.event(recorded.finished("cancelled")[0])
    assert shown(ending[0])["type"] == "completion"
    assert isinstance(start, Start)
    assert (start.inbound.options.sampling.seed, start.inbound.options.sampling.temperature) == (1, 0.5)
    made.on_started(Identity(request_id="gen_2", model="m"))
    play(made, recorded.PLAIN)
    (again,) = made.receive('{"type":"control","action":"regenerate"}')
    assert isinstance(again, Start)


def test_modify_between_generations_applies_to_the_next() -> None:
    made = running()
    play(made, recorded.PLAIN)
    assert say(made, {"type": "control", "action": "modify", "parameters": {"top_p": 0.5}}) == snapshot(
        [
            {
                "type": "status",
                "operation": "modify",
                "message": "The parameters apply to the next generation.",
                "progress": 100,
            }
        ]
    )
    (again,) = made.receive('{"type":"control","action":"regenerate"}')
    assert isinstance(again, Start)
    assert again.inbound.options.sampling.top_p == 0.5


def test_feedback_with_and_without_position() -> None:
    made = running()
    play(made, DETAILED)
    said = say(made, {"type": "feedback", "rating": 1, "text": "Great response!", "position": 120})
    assert said == [Feedback("gen_1", 1, "Great response!", 120)]
    assert say(made, {"type": "feedback", "rating": -0.5}) == [Feedback("gen_1", -0.5, None, 3)]
    assert shown(made.feedback_stored()[0]) == snapshot(
        {"type": "status", "operation": "feedback", "message": "The feedback is stored.", "progress": 100}
    )


def test_feedback_has_a_longest_text() -> None:
    made = running()
    assert "65536 characters" in shown(say(made, {"type": "feedback", "rating": 1, "text": "x" * 65537})[0])["message"]
    assert isinstance(say(made, {"type": "feedback", "rating": 1, "text": "x" * 65536})[0], Feedback)


def test_status_while_a_model_loads() -> None:
    made = session()
    made.receive(json.dumps(CONFIG))
    said = [shown(made.loading(progress, "weights")[0]) for progress in (0.0, 0.5, None)]
    assert said == snapshot(
        [
            {"type": "status", "operation": "model_loading", "message": "weights", "progress": 0},
            {"type": "status", "operation": "model_loading", "message": "weights", "progress": 50, "eta_seconds": 0.0},
            {"type": "status", "operation": "model_loading", "message": "weights"},
        ]
    )


def test_the_first_message_must_be_a_config() -> None:
    """The specification's fourth example: the error, then the close."""
    error, close = session().receive('{"type":"control","action":"stop"}')
    assert shown(error) == snapshot(
        {
            "type": "error",
            "error": "invalid_request",
            "message": "The first message must be a config message.",
            "recoverable": False,
        }
    )
    assert close == Close(1008, "invalid_request")


@pytest.mark.parametrize(
    "message",
    [
        "", "nonsense", "[]", "{}", '{"type":"hello"}', '{"type":"config"}', '{"type":"config","prompt":5}',
        '{"type":"config","prompt":"x","messages":[]}',
        '{"type":"config","prompt":"x","parameters":{"temperature":-1}}', '{"type":"config","messages":[]}',
        '{"type":"config","prompt":"x","parameters":{"n":2}}', '{"type":"config","prompt":"x","tools":[{}]}', "[" * 9999,
    ],
)  # fmt: skip
def test_a_bad_first_message_can_be_mended(message: str) -> None:
    made = session()
    (error,) = made.receive(message)
    said = shown(error)
    assert (said["type"], said["error"], said["recoverable"]) == ("error", "invalid_request", True)
    assert len(json.dumps(said)) < 4000
    assert isinstance(made.receive(json.dumps(CONFIG))[0], Start)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "config", "prompt": "x"},
        {"type": "control", "action": "explode"},
        {"type": "control"},
        {"type": "control", "action": "stop", "parameters": {"a": 1}},
        {"type": "control", "action": "modify"},
        {"type": "control", "action": "modify", "parameters": {"tool_choice": "none"}},
        {"type": "control", "action": "modify", "parameters": {"temperature": "hot"}},
        {"type": "feedback"},
        {"type": "feedback", "rating": 2},
        {"type": "feedback", "rating": 1, "position": -1},
    ],
)
def test_a_bad_message_while_running_changes_nothing(message: dict[str, Any]) -> None:
    made = running()
    (error,) = say(made, message)
    assert (error["type"], error["error"], error["request_id"]) == ("error", "invalid_request", "gen_1")
    assert made.state == "running"


@pytest.mark.parametrize("action", ["stop", "pause", "resume"])
def test_controls_that_need_a_running_generation(action: str) -> None:
    made = running()
    play(made, recorded.PLAIN)
    (error,) = say(made, {"type": "control", "action": action})
    assert error["error"] == "invalid_request"


def test_what_closes_the_connection() -> None:
    assert session().receive(b"\x00")[1] == Close(1003, "invalid_request")
    assert session().bad_text()[1] == Close(1007, "bad UTF-8")
    assert running().going_away()[1] == Close(1001, "going away")
    too_big = session().receive('{"type":"config","prompt":"' + "x" * (17 * 2**20) + '"}')
    assert too_big[1] == Close(1009, "invalid_request")


def test_every_kind_of_error_has_a_type_of_the_specification() -> None:
    types = {}
    for kind in KINDS:
        made = session()
        made.receive(json.dumps(CONFIG))
        said = shown(made.on_refused(RequestError(kind, "x"))[0])  # type: ignore[arg-type]
        types[kind] = (said["error"], said["recoverable"], said.get("recovery_action"))
        assert made.state == "waiting"
    assert types == snapshot(
        {
            "invalid_request": ("invalid_request", True, None),
            "context_length_exceeded": ("context_length_exceeded", True, "shorten_prompt"),
            "overloaded": ("memory_pressure", True, "retry"),
            "unavailable": ("model_loading_error", True, "retry"),
            "connection": ("internal_error", True, "retry"),
            "timeout": ("timeout", True, "retry"),
            "out_of_memory": ("memory_pressure", True, "reduce_max_tokens"),
            "internal": ("internal_error", False, None),
            "not_found": ("not_found", False, None),
            "unauthorized": ("unauthorized", False, None),
            "forbidden": ("forbidden", False, None),
            "rate_limited": ("rate_limited", True, "retry"),
            "payload_too_large": ("invalid_request", True, None),
            "conflict": ("conflict", False, None),
            "unsupported_media_type": ("invalid_request", True, None),
            "method_not_allowed": ("invalid_request", True, None),
            "content_filter": ("content_filter", False, None),
        }
    )


def test_stopped_before_it_began() -> None:
    made = session()
    made.receive(json.dumps(CONFIG))
    assert made.receive('{"type":"control","action":"stop"}') == [Stop()]
    (completion,) = (shown(action) for action in made.on_abandoned())
    assert (completion["type"], completion["generated_text"], completion["finish_reason"]) == ("completion", "", "stop")
    assert made.state == "idle"


@pytest.mark.parametrize("message", [CONFIG, {"type": "config"}, {"type": "control", "action": "stop"}, [], "no JSON"])
def test_reading_a_message_changes_nothing_of_the_session(message: object):
    made = running()
    before = dict(vars(made))
    made.read(json.dumps(message))
    assert vars(made) == before
