"""Histories as clients send them, in the shape that templates accept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Context, Message, RunAgentInput, Tool
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from events.formats import registry
from events.formats.output_format import OutputFormat
from events.template.analyser import analyse
from events.template.declarations import simplify_schemas, tool_declaration
from events.template.environment import ChatTemplate
from events.template.history import read_arguments
from events.template.messages import PromptMessages, build_conversation
from events.template.probe import Capabilities
from tests.template.folder import SHARED_TEMPLATES, needs_shared, own, own_names

USUAL = Capabilities(
    system_role=True,
    system_anywhere=True,
    tools=True,
    tool_calls=True,
    parallel_calls=True,
    tool_role="tool",
    reasoning_field="reasoning_content",
)
READ: TypeAdapter[list[Message]] = TypeAdapter(RunAgentInput.model_fields["messages"].annotation)


def user(text: Any = "hi") -> dict[str, Any]:
    return {"id": "u", "role": "user", "content": text}


def assistant(text: str | None = "hello", *calls: tuple[str, str, str]) -> dict[str, Any]:
    made = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"id": "a", "role": "assistant", "content": text, **({"toolCalls": made} if made else {})}


def result(call_id: str, text: Any = "42") -> dict[str, Any]:
    return {"id": "t", "role": "tool", "content": text, "toolCallId": call_id}


def reasoning(text: str) -> dict[str, Any]:
    return {"id": "r", "role": "reasoning", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"id": "s", "role": "system", "content": text}


def build(
    *messages: dict[str, Any], can: Capabilities = USUAL, output_format: OutputFormat | None = None, **more: Any
) -> PromptMessages:
    described = output_format or registry.named("hermes")
    return build_conversation(READ.validate_python(list(messages)), capabilities=can, output_format=described, **more)


def can(**changes: Any) -> Capabilities:
    return Capabilities(**{name: getattr(USUAL, name) for name in USUAL.__struct_fields__} | changes)


def roles(made: PromptMessages) -> list[str]:
    return [message["role"] for message in made.messages]


def test_content_is_never_none() -> None:
    made = build(user(""), assistant(None), user("x"))
    assert [message["content"] for message in made.messages] == ["", "", "x"]


def test_parts_are_flattened_and_media_are_told() -> None:
    image = {"type": "image", "source": {"type": "data", "value": "aGk=", "mimeType": "image/png"}}
    made = build(user([{"type": "text", "text": "one"}, image, {"type": "text", "text": "two"}]))
    assert made.messages[0]["content"] == "one\n[An image is here, which you cannot see.]\ntwo"
    assert any("image" in warning for warning in made.warnings)


def test_developer_and_instructions_and_context_are_system_text() -> None:
    developer = {"id": "d", "role": "developer", "content": "be brief"}
    made = build(
        developer,
        user(),
        instructions="I am the server.",
        context=[Context(description="city", value="Paris"), Context(description="", value="loose")],
    )
    assert roles(made) == ["system", "user"]
    assert made.messages[0]["content"] == "I am the server.\n\nContext:\n- city: Paris\n- loose\n\nbe brief"


def test_a_later_system_message_stays_or_moves() -> None:
    history = (user("one"), assistant(), system("now shout"), user("two"))
    assert roles(build(*history)) == ["user", "assistant", "system", "user"]
    first = build(*history[:2], user("two"), can=can(system_anywhere=False))
    kept = build(*history, can=can(system_anywhere=False))
    assert roles(kept) == ["user", "assistant", "user", "user"]
    assert kept.messages[:2] == first.messages[:2], "what is cached stays as it is"
    assert kept.messages[2]["content"] == "now shout"
    moved = build(user("one"), system("shout"), assistant(), can=can(system_anywhere=False))
    assert roles(moved) == ["system", "user", "assistant"]


def test_system_text_without_a_system_role() -> None:
    made = build(system("be kind"), user("hi"), can=can(system_role=False))
    assert made.messages == [{"role": "user", "content": "be kind\n\nhi"}]
    alone = build(system("be kind"), can=can(system_role=False))
    assert alone.messages == [{"role": "user", "content": "be kind"}]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_joins_the_answer_it_led_to(field: Any) -> None:
    made = build(user(), reasoning("first"), reasoning("second"), assistant(), user(), can=can(reasoning_field=field))
    assert made.messages[1] == {"role": "assistant", "content": "hello", field: "first\nsecond"}
    assert not any(field in message for message in made.messages[2:])


def test_reasoning_as_a_part() -> None:
    made = build(user(), reasoning("hm"), assistant(), can=can(reasoning_field="content_part"))
    assert made.messages[1]["content"] == [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hello"}]


def test_reasoning_that_nobody_renders_is_left_out() -> None:
    made = build(user(), reasoning("hm"), assistant(), can=can(reasoning_field=None))
    assert made.messages[1] == {"role": "assistant", "content": "hello"}


def test_reasoning_that_led_nowhere_is_left_out() -> None:
    assert roles(build(user(), reasoning("hm"), user("again"))) == ["user", "user"]


def test_reasoning_written_into_the_content() -> None:
    made = build(user(), assistant("<think>\nhm\n</think>\n\nhello"), user())
    assert made.messages[1] == {"role": "assistant", "content": "hello", "reasoning_content": "hm"}
    kept = build(user(), assistant("say <think> twice"), user())
    assert kept.messages[1]["content"] == "say <think> twice"


def test_text_and_the_calls_behind_it_are_one_message() -> None:
    made = build(user(), assistant("let me see"), assistant(None, ("1", "f", "{}")), result("1"))
    assert roles(made) == ["user", "assistant", "tool"]
    assert made.messages[1]["content"] == "let me see"
    assert made.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_arguments_as_text() -> None:
    made = build(user(), assistant(None, ("1", "f", '{"a":"é"}')), result("1"), can=can(arguments="string"))
    assert made.messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": "é"}'


@pytest.mark.parametrize(
    ("text", "arguments", "sound"),
    [
        ('{"a": 1}', {"a": 1}, True),
        ("", {}, True),
        ('{"a": 1, "b": "cut o', {"a": 1, "b": "cut o"}, False),
        ('{"a": [1, 2', {"a": [1, 2]}, False),
        ('{"a": ', {}, False),
        ("[1]", {"input": [1]}, False),
        ("no json", {"input": "no json"}, False),
        ('{"a": 1} and more', {"input": '{"a": 1} and more'}, False),
        ("[" * 100_000, {"input": "[" * 100_000}, False),
        ('{"a":' * 5_000, None, False),
        ('"text"', {"input": "text"}, False),
    ],
)
def test_broken_arguments_are_mended_or_carried(text: str, arguments: dict[str, Any] | None, sound: bool) -> None:
    found, whole = read_arguments(text)
    assert whole == sound
    assert isinstance(found, dict)
    if arguments is not None:
        assert found == arguments
    json.dumps(found)


def test_mended_arguments_are_told() -> None:
    made = build(user(), assistant(None, ("1", "f", '{"a": "x')), result("1"))
    assert made.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": "x"}
    assert made.warnings


def test_results_follow_their_calls_in_their_order() -> None:
    calls = (("1", "f", "{}"), ("2", "g", "{}"), ("3", "h", "{}"))
    made = build(user(), assistant(None, *calls), result("3", "c"), result("1", "a"), result("2", "b"))
    assert [(m["tool_call_id"], m["name"], m["content"]) for m in made.messages[2:]] == [
        ("1", "f", "a"),
        ("2", "g", "b"),
        ("3", "h", "c"),
    ]


def test_missing_and_stray_results() -> None:
    made = build(user(), assistant(None, ("1", "f", "{}"), ("2", "g", "{}")), result("2", "b"), user("so?"))
    assert [m.get("content") for m in made.messages[2:]] == ["(no result)", "b", "so?"]
    pending = build(user(), assistant(None, ("1", "f", "{}")))
    assert roles(pending) == ["user", "assistant"]
    stray = build(user(), result("9", "lost"), assistant())
    assert roles(stray) == ["user", "user", "assistant"]
    assert "lost" in stray.messages[1]["content"]


def test_a_failed_call_says_so() -> None:
    failed = {**result("1", ""), "error": "no network"}
    made = build(user(), assistant(None, ("1", "f", "{}")), failed)
    assert made.messages[2]["content"] == "Error: no network"


def test_one_call_for_each_message_where_only_one_is_rendered() -> None:
    calls = (("1", "f", "{}"), ("2", "g", "{}"))
    made = build(
        user(), reasoning("hm"), assistant("so", *calls), result("1"), result("2"), can=can(parallel_calls=False)
    )
    assert roles(made) == ["user", "assistant", "tool", "assistant", "tool"]
    assert made.messages[1]["content"] == "so"
    assert made.messages[1]["reasoning_content"] == "hm"
    assert [m["tool_calls"][0]["id"] for m in made.messages if "tool_calls" in m] == ["1", "2"]
    assert [m["tool_call_id"] for m in made.messages if m["role"] == "tool"] == ["1", "2"]


def test_calls_that_the_template_does_not_render_are_written_as_the_model_does() -> None:
    history = (user(), assistant("so", ("1", "f", '{"a": 1}')), result("1"))
    made = build(*history, can=can(tool_calls=False), output_format=registry.named("lfm2"))
    assert made.messages[1]["content"] == "so\n<|tool_call_start|>[f(a=1)]<|tool_call_end|>"
    assert roles(made)[2] == "tool"
    bare = build(*history, can=can(tool_calls=False, tool_role=None), output_format=OutputFormat())
    assert bare.messages[1]["content"] == 'so\n{"name": "f", "arguments": {"a": 1}}'
    assert bare.messages[2] == {"role": "user", "content": "Result of f: 42"}


def test_text_and_calls_apart_where_they_exclude_each_other() -> None:
    shape = can(text_with_calls=False, call_content="null")
    made = build(user(), assistant("so", ("1", "f", "{}")), result("1"), can=shape)
    assert roles(made) == ["user", "assistant", "assistant", "tool"]
    assert made.messages[1]["content"] == "so"
    assert made.messages[2]["content"] is None
    assert not made.warnings
    strict = build(
        user(), assistant("so", ("1", "f", "{}")), result("1"), can=can(text_with_calls=False, alternation=True)
    )
    assert roles(strict) == ["user", "assistant", "tool"]
    assert "left out" in strict.warnings[0]


def test_short_ids() -> None:
    made = build(
        user(), assistant(None, ("call_0123456789", "f", "{}")), result("call_0123456789"), can=can(short_ids=True)
    )
    short = made.messages[1]["tool_calls"][0]["id"]
    assert len(short) == 9
    assert short.isalnum()
    assert made.messages[2]["tool_call_id"] == short
    again = build(user(), assistant(None, ("call_0123456789", "f", "{}")), can=can(short_ids=True))
    assert again.messages[1]["tool_calls"][0]["id"] == short
    kept = build(user(), assistant(None, ("abcdefgh9", "f", "{}")), can=can(short_ids=True))
    assert kept.messages[1]["tool_calls"][0]["id"] == "abcdefgh9"


def test_ids_that_carry_the_name() -> None:
    calls = (("x", "f", "{}"), ("functions.g:7", "g", "{}"))
    made = build(user(), assistant(None, *calls), result("x"), result("functions.g:7"), can=can(id_is_name=True))
    assert [call["id"] for call in made.messages[1]["tool_calls"]] == ["functions.f:0", "functions.g:7"]
    assert [m["tool_call_id"] for m in made.messages[2:]] == ["functions.f:0", "functions.g:7"]


def test_alternation() -> None:
    shape = can(alternation=True)
    made = build(assistant("I begin"), user("a"), user("b"), assistant("c"), assistant("d"), can=shape)
    assert roles(made) == ["user", "assistant", "user", "assistant"]
    assert [m["content"] for m in made.messages] == ["...", "I begin", "a\n\nb", "c\n\nd"]
    after = build(user(), assistant(None, ("1", "f", "{}")), result("1"), user("so?"), can=shape)
    assert roles(after) == ["user", "assistant", "tool", "assistant", "user"]


def test_parts_where_only_parts_are_read() -> None:
    made = build(user("x"), can=can(string_content=False))
    assert made.messages == [{"role": "user", "content": [{"type": "text", "text": "x"}]}]


def test_tools_in_the_system_message() -> None:
    tools = [Tool(name="f", description="d", parameters={})]
    made = build(user(), can=can(tools_in_system=True), tools=tools)
    assert made.tools is None
    assert json.loads(made.messages[0]["tools"])[0]["name"] == "f"


def test_declarations_have_what_templates_read_without_looking() -> None:
    made = tool_declaration(Tool(name="f", description="d", parameters=None))
    assert made["function"] == {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}


def test_simple_schemas() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"anyOf": [{"type": "null"}, {"type": "integer"}], "description": "n"},
            "b": {"type": ["string", "null"]},
            "c": {"type": "array", "items": {"$ref": "#/x"}},
            "d": True,
        },
        "required": ["a", "z"],
    }
    found = simplify_schemas([tool_declaration(Tool(name="f", description="", parameters=schema))])[0]["function"][
        "parameters"
    ]
    assert found["properties"]["a"]["type"] == "integer"
    assert found["properties"]["b"]["type"] == "string"
    assert found["properties"]["c"]["items"]["type"] == "string"
    assert found["required"] == ["a"]


def test_a_template_that_puts_tools_into_the_users_words() -> None:
    source = (
        "{% if tools and messages[-1].role != 'user' %}{{ raise_exception('no user') }}{% endif %}"
        "{{ tools | tojson if tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    )
    assert analyse(source).capabilities.needs_user
    assert not analyse(own("hermes_think")).capabilities.needs_user


def test_a_template_that_looks_for_the_users_words() -> None:
    """It refuses a conversation of instructions alone, and one whose oldest turns were left out."""
    source = (
        "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no query') }}{% endif %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
    )

    def rendered(*messages: dict[str, Any]) -> str:
        made = build(*messages, can=analyse(source).capabilities)
        return ChatTemplate(source).render(made.messages)

    assert rendered(system("Be kind.")) == "<|system|>Be kind.<|user|>..."
    assert rendered(assistant("Hello.")) == "<|user|>...<|assistant|>Hello."
    assert rendered(system("Be kind."), user("Hi.")) == "<|system|>Be kind.<|user|>Hi."


# --- every template renders every history


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    texts = st.sampled_from(["", "hi", "a\nb", "<think>x</think>y", "{}", "é"])
    ids = st.sampled_from(["1", "2", "call_3"])
    arguments = st.sampled_from(['{"a": "b"}', "{}", '{"a": ', "nonsense", '{"a": {"b": [1, null, true]}}'])
    calls = st.lists(st.tuples(ids, st.sampled_from(["f", "g"]), arguments), max_size=3, unique_by=lambda call: call[0])
    kinds = st.one_of(
        texts.map(user),
        texts.map(system),
        texts.map(reasoning),
        st.tuples(st.none() | texts, calls).map(lambda pair: assistant(pair[0], *pair[1])),
        st.tuples(ids, texts).map(lambda pair: result(*pair)),
        st.just({"id": "x", "role": "activity", "activityType": "t", "content": {}}),
    )
    return [user("begin"), *draw(st.lists(kinds, max_size=8))]


TOOL = Tool(
    name="f",
    description="d",
    parameters={"type": "object", "properties": {"a": {"type": "string", "description": "x"}}},
)


def rendered(source: str, messages: list[dict[str, Any]]) -> str:
    found = analyse(source)
    made = build(
        *messages, can=found.capabilities, output_format=found.output_format, tools=[TOOL], instructions="be nice"
    )
    variable = found.capabilities.tools_variable
    elsewhere = {variable: made.tools} if variable != "tools" else {}
    return ChatTemplate(source).render(
        made.messages, tools=made.tools if variable == "tools" else None, add_generation_prompt=True, **elsewhere
    )


@pytest.mark.parametrize("name", own_names())
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=histories())
def test_no_history_makes_an_own_template_fail(name: str, messages: list[dict[str, Any]]) -> None:
    assert rendered(own(name), messages)


@needs_shared
@pytest.mark.parametrize("name", sorted(path.stem for path in SHARED_TEMPLATES.glob("*.jinja")))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=histories())
def test_no_history_makes_a_shared_template_fail(name: str, messages: list[dict[str, Any]]) -> None:
    assert rendered((SHARED_TEMPLATES / f"{name}.jinja").read_text("utf-8"), messages)


def test_text_beside_a_thought_and_a_call_joins_the_thought_where_the_template_refuses_it() -> None:
    """gpt-oss: "Cannot pass both content and thinking in an assistant message with tool calls"."""
    history = [user(), reasoning("hm"), assistant("let me see", ("1", "f", "{}")), result("1")]
    beside = build(*history, can=can(reasoning_field="reasoning_content")).messages[1]
    assert (beside["content"], beside["reasoning_content"]) == ("let me see", "hm")
    joined = build(*history, can=can(reasoning_field="reasoning_content", thought_beside_text=False)).messages[1]
    assert joined["reasoning_content"] == "hm\nlet me see"
    assert joined.get("content") != "let me see"


SCHEMA_WORDS = ("type", "properties", "required", "items", "enum", "anyOf", "oneOf", "allOf", "description")
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", *SCHEMA_WORDS]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(schema=st.dictionaries(st.sampled_from(SCHEMA_WORDS), JSON_VALUES))
@example({"properties": {}, "required": 0.5})
@example({"properties": {"a": {}}, "required": [["a"], {}, "a"]})
def test_any_schema_is_simplified(schema: dict[str, Any]):
    declared = {"type": "function", "function": {"name": "f", "description": "", "parameters": schema}}
    parameters = simplify_schemas([declared])[0]["function"]["parameters"]
    assert isinstance(parameters["type"], str) and isinstance(parameters.get("required", []), list)
