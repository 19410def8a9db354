"""An output that a limit ends within a call: in no format, and wherever it is cut, is that call said to be complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count

import pytest

from adapters.anthropic_messages import message_body
from adapters.openai_chat import chat_body
from adapters.openai_responses import ResponseStream, response_object
from events.formats.registry import FORMATS
from events.message import fold
from events.metadata import is_cut
from events.run_output import FinishedCall
from events.translator import Translator
from events.vocabulary import Event, RunFinished, RunStarted, ToolCallEnd
from tests.adapters.wires import CHAT, MESSAGE, RESPONSE, anthropic_streamed, chat_streamed, framed, responses_streamed
from tests.formats.cases import CASES, Case

WITH_CALLS = [
    pytest.param(name, [case for case in cases if case.calls], id=name)
    for name, cases in CASES.items()
    if any(case.calls for case in cases)
]


def translated(name: str, case: Case, pieces: Iterable[str], reason: str, stop: str | int | None = None) -> list[Event]:
    """The events of an output that comes in pieces; of a text in its characters."""
    ids = count()
    tools = None if case.tools is None else [{"name": tool, "parameters": each} for tool, each in case.tools.items()]
    translator = Translator(FORMATS[name], tools=tools, opened=case.prefix, new_id=lambda kind: f"{kind}_{next(ids)}")
    events = [event for piece in pieces for event in translator.feed(piece)]
    return events + translator.finish(reason, stop)


def run_of(events: Sequence[Event], reason: str) -> list[Event]:
    """The run that these events are, without pending calls: those of a cut-off message are nobody's to make."""
    end = RunFinished(thread_id="t", run_id="r", metadata={"finishReason": reason})
    return [RunStarted(thread_id="t", run_id="r"), *events, end]


def calls_of(events: Sequence[Event]) -> tuple[FinishedCall, ...]:
    return fold(events).output().tool_calls


@pytest.mark.parametrize(("name", "cases"), WITH_CALLS)
def test_no_call_that_was_cut_off_is_complete(name: str, cases: list[Case]) -> None:
    for case in cases:
        whole = [(call.name, call.arguments) for call in calls_of(translated(name, case, case.text, "stop"))]
        for length in range(len(case.text)):
            for number, call in enumerate(calls_of(translated(name, case, [case.text[:length]], "length"))):
                if call.complete:
                    assert (call.name, json.loads(call.arguments)) == (whole[number][0], json.loads(whole[number][1]))


@pytest.mark.parametrize(("name", "cases"), WITH_CALLS)
def test_every_wire_says_that_a_message_was_cut_off(name: str, cases: list[Case]) -> None:
    case = cases[0]
    for length in range(1, len(case.text), 3):
        events = run_of(translated(name, case, case.text[:length], "length"), "length")
        cut = {event.tool_call_id for event in events if isinstance(event, ToolCallEnd) and is_cut(event.metadata)}
        assert chat_streamed(events).end == responses_streamed(events).end == anthropic_streamed(events).end == "length"
        assert json.loads(chat_body([events], CHAT))["choices"][0]["finish_reason"] == "length"
        message = json.loads(message_body(events, MESSAGE))
        assert message["stop_reason"] == "max_tokens"
        assert all("_raw" not in block["input"] for block in message["content"] if block["type"] == "tool_use")
        response = response_object(events, RESPONSE)
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        items = [item for item in response["output"] if item["type"] == "function_call"]
        assert {item["call_id"] for item in items if item["status"] != "completed"} == cut
        done = [
            f for f in framed(ResponseStream(RESPONSE), events) if f["type"] == "response.function_call_arguments.done"
        ]
        assert len(done) == len(items) - len(cut)


@pytest.mark.parametrize("stop", ["Brest", ' "'])
def test_a_stop_string_within_a_call_ends_no_call(stop: str) -> None:
    case = CASES["hermes"][0]
    text = case.text[: case.text.index(stop)]
    (call,) = calls_of(translated("hermes", case, text, "stop", stop)) or [None]
    assert call is None or not call.complete


def test_a_stop_string_that_is_the_formats_own_end_marker_ends_the_call() -> None:
    case = CASES["hermes"][0]
    text = case.text[: case.text.index("</tool_call>")]
    (call,) = calls_of(translated("hermes", case, text, "stop", "</tool_call>"))
    assert call.complete and json.loads(call.arguments) == {"port": "Brest"}


def test_an_end_marker_that_the_model_forgets_is_forgiven() -> None:
    """The model ended its answer itself, so its call is as complete as it wanted it to be."""
    case = CASES["hermes"][0]
    (call,) = calls_of(translated("hermes", case, case.text[: case.text.index("</tool_call>")], "stop"))
    assert call.complete and json.loads(call.arguments) == {"port": "Brest"}
