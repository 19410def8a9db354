"""What a template writes for calls, the grammar that is derived from it accepts: it forces no other spelling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest

from agent_server.engine_protocol.protocol import Constraint
from agent_server.generation.core.grammar import GrammarBackend
from events.formats.output_format import markers
from events.grammar import Function, Stage, plan
from events.options import ToolChoice
from events.template import probe as words
from events.template.analyser import analyse
from events.template.content import analyse_content
from events.template.environment import ChatTemplate
from events.template.probe import Probe, capabilities
from events.template.reasoning import analyse_reasoning, find_switches, settings
from events.template.rendered_calls import CallRenderer
from events.template.turn_frame import END_OF_SEQUENCE, find_turn
from events.template.writer import WrittenCall, write
from tests.grammar.vocabulary import END, byte_level
from tests.grammar.walks import CONTROL
from tests.template.folder import own, own_names

SCHEMA = {"type": "object", "properties": {words.ARGUMENT: {"type": "string"}, words.ARGUMENT_TWO: {"type": "string"}}}
FUNCTIONS = [Function(name, SCHEMA) for name in (words.FUNCTION, words.FUNCTION_TWO)]


# What is not to be written as the history has it, or what the grammar does not write.
OTHERWISE = {
    "dsml_blob": "one argument that holds all",
    "enclosed_text": "two calls with nothing between them",
    "harmony": "messages with headers",
    "indented_header": "the template's own indentation",
    "llama_pythonic": "the end of a message that is not the turn's last",
    "loose_header": "two calls with nothing between them",
    "quoted_objects": "the end of a message that is not the turn's last",
    "python_dicts": "dictionaries of Python's",
    "recipients": "messages with headers",
}


def renderer_of(source: str) -> CallRenderer:
    probe = Probe(ChatTemplate(source, {"eos_token": END_OF_SEQUENCE}))
    probe.capabilities = capabilities(probe)
    switches = find_switches(probe)
    turn = find_turn(probe, [settings(switches, True), settings(switches, False)])
    reasoning = analyse_reasoning(probe, turn, switches)
    content = analyse_content(probe, turn, reasoning, settings(switches, True))
    return CallRenderer(probe, turn, reasoning, content)


def written(source: str) -> list[str]:
    """The template's texts for one call with two arguments, for one without any, and for two calls."""
    renderer = renderer_of(source)
    pair = {words.ARGUMENT: words.VALUE, words.ARGUMENT_TWO: words.VALUE_TWO}
    texts = (renderer.one(pair), renderer.one({}), renderer.two(pair, pair))
    return [text for text in texts if text is not None and words.FUNCTION in text]


def written_with_thoughts(source: str) -> list[str]:
    """Whole messages: thoughts, then one call and two."""
    renderer = renderer_of(source)
    shape, found = renderer.probe.capabilities, []
    made = [renderer.call(words.FUNCTION, {words.ARGUMENT: words.VALUE})]
    made.append(renderer.call(words.FUNCTION_TWO, {words.ARGUMENT: words.VALUE_TWO}, second=True))
    for calls in [made[:1], made] if shape.parallel_calls else [made[:1]]:
        message = words.calling(calls, shape.call_content)
        thoughtful = words.with_reasoning(message, shape.reasoning_field) if shape.reasoning_field else message
        on = settings(find_switches(renderer.probe), True)
        text = renderer.probe.render([words.user(), thoughtful], tools=renderer.declared, **on)
        if text is not None and words.REASONING in text:
            found.append(renderer.turn.assistant_text(text).rstrip())
    return found


def refused(
    source: str,
    text: str,
    stage: Stage = "content",
    functions: Sequence[Function] = tuple(FUNCTIONS),
    mode: Literal["required", "auto"] = "required",
    tokens: bool = False,
) -> str | None:
    """Where the grammar of calls refuses the text, None where it accepts all of it. tokens: markers are tokens."""
    described = analyse(source).output_format
    spelled = (mark for marker in markers(described) for mark in CONTROL.findall(marker))
    tokenizer = byte_level(tuple(dict.fromkeys(spelled)) if tokens else ())
    backend = GrammarBackend(tokenizer, tokenizer.get_vocab_size(), [tokenizer.token_to_id(END)])
    added = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()}
    planned = plan(
        described,
        functions=functions,
        choice=ToolChoice(mode),
        parallel=True,
        response_format=None,
        stage=stage,
        marker_ids={mark: number for mark, number in added.items() if mark != END},
    )
    assert planned.tag is not None, planned.warnings
    matcher = backend.compile(Constraint(kind="structural_tag", value=planned.tag)).matcher()
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for place, number in enumerate(ids):
        if not matcher.accept(number):
            read, rest = (tokenizer.decode(part, skip_special_tokens=False) for part in (ids[:place], ids[place:]))
            return f"{read}|{rest}"
    return None if matcher.accepting else text


CALLING = [name for name in own_names() if name not in OTHERWISE and analyse(own(name)).tool_mode != "none"]


@pytest.mark.parametrize("name", CALLING)
def test_what_the_template_writes_is_accepted(name: str) -> None:
    source = own(name)
    for text in written(source):
        assert refused(source, text.strip()) is None


THINKING = [name for name in CALLING if written_with_thoughts(own(name))]


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("mode", ["required", "auto"])
@pytest.mark.parametrize("name", THINKING)
def test_what_the_template_writes_behind_thoughts_is_accepted(
    name: str, mode: Literal["required", "auto"], tokens: bool
) -> None:
    source = own(name)
    for text in written_with_thoughts(source):
        thought = analyse(source).output_format.reasoning
        stage: Stage = "start" if thought is None or thought.start else "reasoning"
        assert refused(source, text, stage, mode=mode, tokens=tokens) is None


def test_a_constant_is_accepted_as_python_spells_it() -> None:
    """Templates that write a value as it comes write `True`."""
    source = own("coder_tags")
    text = renderer_of(source).one({words.ARGUMENT: "True"})
    assert text is not None
    for kind in ("boolean", "string"):
        functions = [Function(words.FUNCTION, {"type": "object", "properties": {words.ARGUMENT: {"type": kind}}})]
        assert refused(source, text.strip(), functions=functions) is None
    functions = [Function(words.FUNCTION, {"type": "object", "properties": {words.ARGUMENT: {"type": "integer"}}})]
    assert refused(source, text.strip(), functions=functions)


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
