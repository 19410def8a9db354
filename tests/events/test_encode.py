"""The encoder against the SDK's own, and reading back what it wrote."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from ag_ui.core import Event as SdkEvent
from ag_ui.core import RunAgentInput, UserMessage
from ag_ui.encoder import EventEncoder
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from events import vocabulary as v
from events.encode import DecodeError, decode, encode, from_wire, to_wire
from tests.conformance.samples import EVENT_TYPES, events_of
from tests.conformance.streams import shared_data

SDK: TypeAdapter[Any] = TypeAdapter(SdkEvent)


def sdk_json(event: v.Event) -> bytes:
    """What the SDK's encoder writes for the same data, which reach it as Python values, not as our JSON."""
    model = SDK.validate_python(msgspec.to_builtins(event))
    return EventEncoder().encode(model).removeprefix("data: ").removesuffix("\n\n").encode()


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
def test_bytes_equal_the_sdks(kind):
    """Messages, parts and patches are plain dictionaries here, which keep their order; so they are brought into the
    order of the SDK's models first."""

    @settings(max_examples=40, deadline=None)
    @given(events_of(kind))
    def check(event: v.Event) -> None:
        theirs = sdk_json(event)
        assert json.loads(encode(event)) == json.loads(theirs)
        assert encode(decode(theirs)) == theirs
        assert decode(encode(event)) == from_wire(to_wire(event))

    check()


LARGE = [1e15, 9999999999999998.0, 1e16, -1.5e16, 1.7976931348623157e308, 5e-324, 1e-5, -0.0, 2**53, 2**64, -(10**30)]


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("where", ["metadata", "raw_event", "value"])
def test_numbers_at_the_edge_are_written_as_the_sdk_writes_them(number, where):
    fields = {"name": "n", "value": None, where: {"n": number, "in a string": ":1e16"}}
    assert encode(v.Custom(**fields)) == sdk_json(v.Custom(**fields))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_become_null(value):
    assert to_wire(v.StateSnapshot(snapshot=[value]))["snapshot"] == [None]
    assert (
        encode(v.StateSnapshot(snapshot=[value]))
        == EventEncoder().encode(SDK.validate_python({"type": "STATE_SNAPSHOT", "snapshot": [value]}))[6:-2].encode()
    )


@pytest.mark.parametrize("value", [{True: 1, None: 2, 3: 4, 2.5: 5}, (1, {2}), type("Text", (str,), {})("x")])
def test_values_that_are_json_only_to_python_are_written_as_the_sdk_does(value):
    expected = EventEncoder().encode(SDK.validate_python({"type": "CUSTOM", "name": "n", "value": value}))
    assert encode(v.Custom(name="n", value=value)) == expected[6:-2].encode()


def test_models_of_the_sdk_may_ride_inside():
    echoed = RunAgentInput(thread_id="t", run_id="r", messages=[UserMessage(id="u", content="hi")])
    wire = to_wire(v.RunStarted(thread_id="t", run_id="r", input=echoed))
    assert wire["input"] == {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "hi"}]}


def test_a_lone_surrogate_is_replaced_and_does_not_end_the_stream():
    event = v.TextMessageContent(message_id="m", delta="a\ud800b", metadata={"\udfff": ["\ud83d"]})
    assert to_wire(event)["delta"] == "a\ufffdb"
    assert to_wire(event)["metadata"] == {"\ufffd": ["\ufffd"]}


def test_absent_is_left_out_and_a_null_that_means_something_stays():
    assert to_wire(v.RunFinished(thread_id="t", run_id="r")) == {"type": "RUN_FINISHED", "threadId": "t", "runId": "r"}
    assert to_wire(v.StateSnapshot(snapshot=None)) == {"type": "STATE_SNAPSHOT", "snapshot": None}
    assert to_wire(v.Custom(name="n", value={"a": None}, metadata={"k": None}))["metadata"] == {"k": None}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"type":"NO_SUCH"}',
        b'{"type":"RUN_ERROR"}',
        b'{"type":"RUN_ERROR","message":5}',
        b"\xff",
        b"[" * 9999,
    ],
)
def test_what_is_no_event_is_a_decode_error(data):
    with pytest.raises(DecodeError):
        decode(data)


@given(st.binary(max_size=60))
def test_decoding_never_raises_anything_else(data):
    with contextlib.suppress(DecodeError):
        decode(data)


def test_null_omission_as_the_sdks_agreed_on_it():
    data = shared_data()
    if data is None:
        pytest.skip("the conformance streams are not beside the repository (../shared/data)")
    cases = json.loads((data / "agui-conformance" / "null-omission.json").read_text())["stream"]
    assert cases
    for case in cases:
        if case["input"]["type"] in {str(kind.__struct_config__.tag) for kind in EVENT_TYPES}:
            assert to_wire(from_wire(_python_input(case["input"]))) == case["expected"], case["name"]


def _python_input(wire: dict[str, Any]) -> dict[str, Any]:
    """Free-form values ride through us untouched, so the echoed input is made by the SDK's model, as the server does."""
    if wire["type"] == "RUN_STARTED" and "input" in wire:
        return wire | {"input": json.loads(RunAgentInput.model_validate(wire["input"]).model_dump_json(by_alias=True))}
    return wire
