"""The table of sampling parameters: nothing of it can be left out, and everybody who names parameters names all."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest

from adapters import anthropic_messages, openai_chat, openai_completions, openai_responses
from adapters.request_options import SAMPLING, read_options
from events.options import OptionError, SamplingParams
from events.sampling import DEFAULTS, PARAMETERS, WIRES, Parameter, Wire, _declared, json_schema, names_on

FIELDS = {
    "chat": openai_chat.FIELDS,
    "completions": openai_completions.FIELDS,
    "responses": openai_responses.FIELDS,
    "messages": anthropic_messages.FIELDS,
}


def test_a_parameter_without_a_row_is_no_parameter():
    class Forgotten(msgspec.Struct):
        kept: Annotated[int, Parameter(note="", example=1)] = 0
        forgotten: int = 0

    with pytest.raises(TypeError, match=r"Forgotten\.forgotten must be annotated"):
        _declared(Forgotten)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_row_says_what_asks_for_something(name: str):
    parameter = PARAMETERS[name]
    params = SamplingParams(**{name: parameter.example, "max_tokens": 9})
    params.validate()
    assert params.names_in_effect() >= {name}
    for nothing in (DEFAULTS[name], parameter.neutral):
        if nothing is not None:
            assert name not in SamplingParams(**{name: nothing}).names_in_effect()
    shape = json_schema(name)
    assert shape["description"] == parameter.note and shape["examples"]


@pytest.mark.parametrize("wire", WIRES)
def test_every_wire_reads_every_parameter_that_its_names_give(wire: Wire):
    for name in PARAMETERS:
        for key in names_on(wire, name):
            assert key in SAMPLING[wire] or name == "logprobs"
            if wire in FIELDS:
                assert FIELDS[wire][key].status == "honoured"
                assert FIELDS[wire][key].schema


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("temperature", -1.0, "must be at least 0 and at most 100"),
        ("top_p", 0.0, "must be more than 0 and at most 1"),
        ("top_p", float("nan"), "must be more than 0"),
        ("top_k", -2, "must be at least 0."),
        ("logit_bias", {1: 101.0}, "numbers from -100 to 100"),
        ("stop", ("",), "none of them empty"),
        ("stop", ("x",) * 65, "at most 64"),
    ],
)
def test_bounds_are_the_rows(name: str, value: Any, message: str):
    with pytest.raises(OptionError, match=message) as caught:
        SamplingParams(**{name: value}).validate()
    assert caught.value.param == name


def test_the_last_of_several_names_wins():
    options, rest = read_options({"max_completion_tokens": 3, "max_tokens": 4, "other": 1}, wire="chat")
    assert (options.sampling.max_tokens, rest) == (3, {"other": 1})
