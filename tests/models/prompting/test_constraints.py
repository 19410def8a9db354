"""What a turn asks of its output: planned, refused, or said not to be enforced."""

import asyncio
import json

import pytest
from ag_ui.core import RunAgentInput

from agent_server.engine_protocol.protocol import EngineError, EngineInfo
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.models.prompting.constraints import grammar_stage, plan_constraint
from agent_server.settings import OutputSettings
from events.formats import registry
from events.options import GenerationOptions, ResponseFormat, ToolChoice

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ODD = {"type": "object", "properties": {"n": {"type": "array", "uniqueItems": True}}}
INFO = EngineInfo(model="m", context_length=100, vocab_size=100, sampling=frozenset(), supports_constraints=True)
HERMES = Prompt(token_ids=(), text="", output_format=registry.named("hermes"))


def planned(tools=(("get_weather", SCHEMA),), *, prompt=HERMES, settings=None, info=INFO, **options):
    given = [{"name": name, "description": "", "parameters": schema} for name, schema in tools]
    input = RunAgentInput.model_validate(
        {
            "threadId": "t",
            "runId": "r",
            "messages": [],
            "tools": given,
            "state": {},
            "context": [],
            "forwardedProps": {},
        }
    )
    wanted = GenerationOptions(**options)
    return asyncio.run(plan_constraint(prompt, {}, input, wanted, settings or OutputSettings(), info))


def refused(**asked):
    with pytest.raises(EngineError) as error:
        planned(**asked)
    assert error.value.kind == "invalid_request" and not error.value.retryable
    return error.value.param, error.value.message


def test_declared_tools_are_held_to_by_default_and_one_switch_turns_it_off():
    assert planned().constraint is not None
    assert planned(settings=OutputSettings(constrain_tools=False)).constraint is None
    assert planned(constrain_tools=False).constraint is None
    assert planned(settings=OutputSettings(constrain_tools=False), constrain_tools=True).constraint is not None
    assert planned(tools=()).constraint is None
    assert planned(tool_choice=ToolChoice("none")).constraint is None


def test_the_same_tools_are_planned_once():
    assert planned().constraint is planned().constraint


def test_numbers_of_a_schema_may_have_any_size():
    huge = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**30}}}
    assert planned((("count", huge),), tool_choice=ToolChoice("required")).constraint is not None


def test_a_choice_of_an_undeclared_tool_is_refused():
    assert refused(tool_choice=ToolChoice("named", ("undeclared",)))[0] == "tool_choice"
    assert refused(tool_choice=ToolChoice("auto", ("undeclared",)))[0] == "tool_choice"
    assert refused(tools=(), tool_choice=ToolChoice("required"))[0] == "tool_choice"


def test_a_strict_tool_whose_schema_cannot_be_enforced_is_refused():
    param, message = refused(tools=(("pick", ODD),), strict_tools=frozenset({"pick"}))
    assert param == "tools" and "uniqueItems at /properties/n" in message and "'pick'" in message
    (warning,) = planned(tools=(("pick", ODD),)).warnings
    assert "uniqueItems at /properties/n" in warning


def test_a_strict_response_format_as_well():
    wanted = ResponseFormat(kind="json_schema", value=ODD, strict=True)
    assert refused(tools=(), response_format=wanted)[0] == "response_format"
    assert planned(tools=(), response_format=ResponseFormat(kind="json_schema", value=ODD)).warnings


def test_a_response_format_names_all_properties_as_instructors_lists_expect():
    # What Instructor's create_iterable sends, in short: nothing is required, nothing forbidden.
    tasks = {"type": "array", "items": {"$ref": "#/$defs/User"}}
    user = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    users = {"type": "object", "properties": {"tasks": tasks}, "$defs": {"User": user}}
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": users}}
    json_schema, structural_tag = (
        ResponseFormat(kind="json_schema", value=users),
        ResponseFormat(kind="structural_tag", value=tag),
    )
    for wanted in (json_schema, structural_tag):
        constraint = planned(tools=(), response_format=wanted).constraint
        assert constraint is not None
        assert json.dumps(constraint.value).count('"additionalProperties": false') == 2


def test_what_a_schema_cannot_be_held_to_is_said_and_refused_where_it_is_strict():
    remote = {"type": "object", "properties": {"a": {"$ref": "http://example.org"}, "n": {"type": "integer"}}}
    made = planned(tools=(("f", remote),), tool_choice=ToolChoice("required"))
    assert made.constraint is not None and "integer" in str(made.constraint.value)
    assert "'f'" in made.warnings[0] and "$ref at /properties/a" in made.warnings[0]
    param, message = refused(tools=(("f", remote),), strict_tools=frozenset({"f"}))
    assert param == "tools" and "$ref at /properties/a" in message
    pattern = ResponseFormat(kind="regex", value="(a+)+")
    assert refused(tools=(), response_format=pattern)[0] == "response_format"


def test_an_engine_without_grammars():
    info = EngineInfo(model="m", context_length=100, vocab_size=100, sampling=frozenset())
    assert planned(info=info) == planned(info=info, tools=())
    assert refused(info=info, tool_choice=ToolChoice("required"))[0] == "tool_choice"
    assert refused(info=info, strict_tools=frozenset({"get_weather"}))[0] == "tools"
    assert refused(info=info, response_format=ResponseFormat(kind="json_object"))[0] == "response_format"


def test_a_format_that_cannot_be_held_to():
    prompt = Prompt(token_ids=(), text="", output_format=registry.named("functionary_v3_2"))
    made = planned(prompt=prompt)
    assert made.constraint is None and "validated, not enforced" in made.warnings[0]
    assert refused(prompt=prompt, tool_choice=ToolChoice("required"))[0] == "tool_choice"
    assert refused(prompt=prompt, strict_tools=frozenset({"get_weather"}))[0] == "tools"


@pytest.mark.parametrize(
    ("opened", "stage"),
    [
        ("<|im_start|>assistant\n", "start"),
        ("<|im_start|>assistant\n<think>\n", "reasoning"),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "content"),
    ],
)
def test_the_stage_is_read_off_the_prompt(opened, stage):
    import msgspec

    output_format = msgspec.structs.replace(registry.named("hermes"), message_start="<|im_start|>assistant\n")
    assert grammar_stage(Prompt(token_ids=(), text="", output_format=output_format, opened=opened)) == stage
