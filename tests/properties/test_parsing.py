"""A sample of what `long_runs.py` does at length: the same events from every split, nothing raised, every stream legal."""

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.parsing.policy import Policy
from events.vocabulary import ToolCallArgs
from tests.formats.cases import CASES
from tests.formats.reading import cuts
from tests.properties.long_runs import check_fuzz, check_splits
from tests.properties.outputs import NAMES, Output, check_lifecycle, events_of, joined


@pytest.mark.parametrize("name", NAMES)
def test_random_splits_of_own_cases(name: str):
    check_splits(name, 30, seed=1)


def test_fuzz():
    check_fuzz(3000, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_long_fuzz():
    check_fuzz(100_000, seed=2)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.text(max_size=80), st.integers(0, 999))
def test_any_text_is_read_the_same_however_it_is_cut(name: str, text: str, seed: int):
    output = Output(name, text, Policy(tools={"f": None}), None)
    whole = joined(events_of(output, [text]))
    assert joined(events_of(output, list(text))) == joined(events_of(output, cuts(text, seed))) == whole
    check_lifecycle(events_of(output, list(text)))


@pytest.mark.parametrize("name", NAMES)
def test_every_beginning_of_an_output_is_a_legal_stream(name: str):
    for case in CASES[name]:
        for end in range(0, len(case.text), 7):
            output = Output(name, case.text[:end], Policy(tools=case.tools), case.prefix)
            check_lifecycle(events_of(output, list(output.text)))


def test_deep_nesting_is_no_matter():
    deep = "[" * 100_000
    for name, text in (
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": ' + deep),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n" + deep),
        ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">' + "]<]minimax[>[<a>" * 20_000),
        ("pythonic", "[f(a=" + deep),
    ):
        output = Output(name, text, Policy(), None)
        check_lifecycle(events_of(output, [text]))


def test_arguments_of_a_complete_call_are_json():
    generator, read = random.Random(3), 0
    for name in NAMES:
        for case in CASES[name]:
            events = events_of(
                Output(name, case.text, Policy(tools=case.tools), case.prefix),
                cuts(case.text, generator.randrange(1 << 30)),
            )
            if all(isinstance(value, dict) for _, value in case.calls):
                for number in {event.tool_call_id for event in events if isinstance(event, ToolCallArgs)}:
                    json.loads(
                        "".join(e.delta for e in events if isinstance(e, ToolCallArgs) and e.tool_call_id == number)
                    )
                    read += 1
    assert read >= len(NAMES) / 2
