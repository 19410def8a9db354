"""What a template writes for calls, the grammar that is derived from it accepts: it forces no other spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agent_server.engine.protocol import Constraint
from agent_server.generation.grammar import GrammarBackend
from events.grammar import Function, plan
from events.options import ToolChoice
from events.template import probe as words
from events.template.analyser import analyse
from events.template.environment import ChatTemplate
from events.template.probe import Probe, capabilities
from events.template.reasoning import analyse_reasoning, find_switches, settings
from events.template.rendered_calls import CallRenderer
from events.template.turn_frame import END_OF_SEQUENCE, find_turn
from events.template.writer import WrittenCall, write
from tests.grammar.vocabulary import END, byte_level
from tests.template.folder import own, own_names

SCHEMA = {"type": "object", "properties": {words.ARGUMENT: {"type": "string"}, words.ARGUMENT_TWO: {"type": "string"}}}
FUNCTIONS = [Function(name, SCHEMA) for name in (words.FUNCTION, words.FUNCTION_TWO)]


# What is not to be written as the history has it, or what the grammar does not write.
OTHERWISE = {
    "action_fence": "JSON over several lines",
    "closing_instruction": "JSON over several lines",
    "dsml_blob": "one argument that holds all",
    "harmony": "messages with headers",
    "indented_header": "the template's own indentation",
    "llama_pythonic": "the end of a message that is not the turn's last",
    "loose_header": "two calls with nothing between them",
    "python_dicts": "dictionaries of Python's",
    "recipients": "messages with headers",
}


def renderer_of(source: str) -> CallRenderer:
    probe = Probe(ChatTemplate(source, {"eos_token": END_OF_SEQUENCE}))
    probe.capabilities = capabilities(probe)
    switches = find_switches(probe)
    turn = find_turn(probe, [settings(switches, True), settings(switches, False)])
    return CallRenderer(probe, turn, analyse_reasoning(probe, turn, switches))


def written(source: str) -> list[str]:
    """The template's texts for one call with two arguments, for one without any, and for two calls."""
    renderer = renderer_of(source)
    pair = {words.ARGUMENT: words.VALUE, words.ARGUMENT_TWO: words.VALUE_TWO}
    texts = (renderer.one(pair), renderer.one({}), renderer.two(pair, pair))
    return [text for text in texts if text is not None and words.FUNCTION in text]


def refused(
    source: str, text: str, stage: str = "content", functions: Sequence[Function] = tuple(FUNCTIONS)
) -> str | None:
    """Where the grammar of required calls refuses the text, None where it accepts all of it."""
    tokenizer = byte_level(())
    backend = GrammarBackend(tokenizer, tokenizer.get_vocab_size(), [tokenizer.token_to_id(END)])
    planned = plan(
        analyse(source).output_format,
        functions=functions,
        choice=ToolChoice("required"),
        parallel=True,
        response_format=None,
        stage=stage,
        marker_ids={},
    )
    assert planned.tag is not None, planned.warnings
    matcher = backend.compile(Constraint(kind="structural_tag", value=planned.tag)).matcher()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for place, number in enumerate(ids):
        if not matcher.accept(number):
            return f"{tokenizer.decode(ids[:place])}|{tokenizer.decode(ids[place:])}"
    return None if matcher.accepting else text


CALLING = [name for name in own_names() if name not in OTHERWISE and analyse(own(name)).tool_mode != "none"]


@pytest.mark.parametrize("name", CALLING)
def test_what_the_template_writes_is_accepted(name: str) -> None:
    source = own(name)
    for text in written(source):
        assert refused(source, text.strip()) is None


@pytest.mark.parametrize("thought", ["", "<think>\nSo.\n</think>\n\n", "</think>\n\n"])
def test_calls_behind_reasoning_are_accepted(thought: str) -> None:
    """Line breaks between the two may belong to either; a model that has no thoughts may write their end alone."""
    source = own("spaced_calls")
    for text in written(source):
        assert refused(source, thought + text.removeprefix("\n" if not thought else ""), "start") is None


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("Brest", {}),
        ("Brest", {"type": "string"}),
        (7, {"type": "integer"}),
        (2.5, {"type": "number"}),
        (True, {"type": ["boolean", "string"]}),
        (None, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({"a": 1}, {"type": "object"}),
        ([1, 2], {"type": "array", "items": {"type": "integer"}}),
        (6, {"enum": ["Brest", 6, 2.5]}),
    ],
)
@pytest.mark.parametrize("name", ["open_sep_close", "dsml"])
def test_the_type_that_a_template_declares_is_the_one_that_is_enforced(name: str, value: Any, schema: Any) -> None:
    source = own(name)
    text = renderer_of(source).one({words.ARGUMENT: value})
    assert text is not None
    functions = [Function(words.FUNCTION, {"type": "object", "properties": {words.ARGUMENT: schema}})]
    assert refused(source, text.strip(), functions=functions) is None
    write_one = write(analyse(source).output_format, calls=[WrittenCall(words.FUNCTION, {words.ARGUMENT: value})])
    assert refused(source, write_one, functions=functions) is None


def test_a_word_that_declares_another_type_is_refused() -> None:
    source = own("open_sep_close")
    text = renderer_of(source).one({words.ARGUMENT: 7})
    assert text is not None and 'type="number"' in text
    functions = [Function(words.FUNCTION, {"type": "object", "properties": {words.ARGUMENT: {"type": "integer"}}})]
    for other in ("false", "string"):
        assert refused(source, text.replace('type="number"', f'type="{other}"'), functions=functions)


def test_what_no_schema_describes_may_be_of_any_type_that_is_declared() -> None:
    source = own("open_sep_close")
    text = renderer_of(source).one({words.ARGUMENT: {"a": [1]}})
    functions = [Function(words.FUNCTION, {"type": "object", "required": [words.ARGUMENT]})]
    assert text is not None and refused(source, text, functions=functions) is None


@pytest.mark.parametrize("opened", [True, False])
def test_an_answer_that_the_prompt_opened_may_be_closed_before_calls(opened: bool) -> None:
    source = own("open_sep_close")
    for text in written(source):
        assert refused(source, text.removeprefix("<|open|>response<|sep|>") if opened else text) is None
