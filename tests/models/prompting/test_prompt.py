from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import AssistantMessage, FunctionCall, Message, RunAgentInput, Tool, ToolCall, ToolMessage
from pydantic import TypeAdapter

from agent_server.engine_protocol.protocol import EngineError
from agent_server.fair_threads import FairThreads
from agent_server.model_files import ModelFiles, load_model_files
from agent_server.models.prompting.prompt import PromptBuilder
from agent_server.models.prompting.quick_builds import (
    FIRST_BUILDS,
    MAX_CREDIT,
    MOST_CHARACTERS,
    MOST_MESSAGES,
    QuickBuilds,
)
from agent_server.models.prompting.thinking import thought_of
from agent_server.settings import PromptSettings
from agent_server.user import User, current_user
from events.options import GenerationOptions, SamplingParams, ToolChoice
from events.parsing.machine import Parser
from events.parsing.pieces import ArgumentText, CallStart, ContentText, ReasoningText
from events.parsing.policy import Policy
from events.template.environment import ChatTemplate
from tests.models.prompting.tokenizers_for_tests import byte_level
from tests.template.folder import SHARED, SHARED_TEMPLATES, own, own_names

READ: TypeAdapter[list[Message]] = TypeAdapter(RunAgentInput.model_fields["messages"].annotation)
WEATHER = Tool(
    name="get_weather",
    description="The weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
TIME = Tool(name="get_time", description="The time.", parameters={"type": "object", "properties": {}})


@lru_cache(maxsize=1)
def tokenizer() -> Any:
    return byte_level()


def builder(template: str | None, **settings: Any) -> PromptBuilder:
    templates = {"default": template} if template is not None else {}
    special = {"bos_token": "<bos>", "eos_token": "</s>"}
    files = ModelFiles(tokenizer=tokenizer(), templates=templates, special_tokens=special, stop_token_ids=(7,))
    return PromptBuilder(files, PromptSettings(**settings), now=lambda: datetime(2030, 1, 2))


def run_input(*messages: tuple[str, str], tools: tuple[Tool, ...] = ()) -> RunAgentInput:
    read = READ.validate_python([{"id": str(i), "role": r, "content": c} for i, (r, c) in enumerate(messages)])
    return RunAgentInput(
        thread_id="t", run_id="r", state=None, messages=read, tools=list(tools), context=[], forwarded_props=None
    )


HELLO = run_input(("user", "hello"))


def test_a_prompt() -> None:
    made = builder(own("hermes_think"))
    prompt = made.build(HELLO, GenerationOptions(), "Be kind.")
    assert prompt.text == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert made.detokenize(prompt.token_ids) == prompt.text
    assert prompt.opened == "<|im_start|>assistant\n"
    assert prompt.output_format.tools is not None
    end = made.tokenizer.token_to_id("<|im_end|>")
    assert prompt.stop_token_ids == (7, end)
    assert prompt.marker_ids["<think>"] == made.tokenizer.token_to_id("<think>")
    assert prompt.marker_ids["<|im_end|>"] == end
    assert set(prompt.marker_ids) == {"<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"}


def test_text_and_ids() -> None:
    made = builder(own("hermes_think"))
    assert made.count_tokens(HELLO, GenerationOptions()) == len(made.build(HELLO, GenerationOptions()).token_ids)
    ids = made.tokenize("a <|im_end|>")
    assert made.is_control(ids[-1])
    assert made.detokenize(ids) == "a <|im_end|>"
    assert made.detokenize(ids, skip_special_tokens=True) == "a "
    plain = made.tokenize("a <|im_end|>", parse_control_tokens=False)
    assert not any(made.is_control(number) for number in plain)
    assert made.detokenize(plain) == "a <|im_end|>"


def test_no_template() -> None:
    made = builder(None)
    with pytest.raises(EngineError, match="--chat-template") as error:
        made.build(HELLO, GenerationOptions())
    assert error.value.kind == "invalid_request"
    assert made.analysis() is None
    assert made.build(HELLO, GenerationOptions(raw_prompt="the fox")).text == "the fox"


def test_raw_prompts() -> None:
    made = builder(own("hermes_think"))
    prompt = made.build(HELLO, GenerationOptions(raw_prompt="the <|im_end|>"))
    assert prompt.output_format.tools is None
    assert (prompt.opened, prompt.marker_ids) == ("", {})
    assert made.is_control(prompt.token_ids[-1])
    given = made.build(HELLO, GenerationOptions(raw_prompt=(5, 6, 9)))
    assert given.token_ids == (5, 6, 9)
    for wrong in ((5, 10_000_000), (-1,)):
        with pytest.raises(EngineError, match="vocabulary"):
            made.build(HELLO, GenerationOptions(raw_prompt=wrong))


def test_the_context_length() -> None:
    made = builder(own("hermes_think"), context_length=40)
    size = made.count_tokens(HELLO, GenerationOptions())
    for most in (40 - size, 41 - size, 10**9):  # what the prompt leaves is all that an answer gets
        assert len(made.build(HELLO, GenerationOptions(sampling=SamplingParams(max_tokens=most))).token_ids) == size
    with pytest.raises(EngineError, match=rf"{size} tokens > {size}"):  # nothing is left
        builder(own("hermes_think"), context_length=size).build(HELLO, GenerationOptions())
    long = run_input(("user", "the fox " * 40))
    with pytest.raises(EngineError) as error:
        made.build(long, GenerationOptions())
    assert error.value.kind == "context_length_exceeded"
    assert made.count_tokens(long, GenerationOptions()) > 40


def test_too_much_text() -> None:
    made = builder(own("hermes_think"), max_characters=1000)
    with pytest.raises(EngineError, match="1000") as error:
        made.build(run_input(("user", "x" * 1001)), GenerationOptions())
    assert error.value.kind == "context_length_exceeded"
    with pytest.raises(EngineError, match="1000"):
        made.build(HELLO, GenerationOptions(raw_prompt="x" * 1001))


def test_a_refusing_template() -> None:
    made = builder("{{ raise_exception('only on Sundays') }}")
    with pytest.raises(EngineError, match="only on Sundays") as error:
        made.build(HELLO, GenerationOptions())
    assert error.value.kind == "invalid_request"
    assert not error.value.retryable


async def test_a_slow_template_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made = builder(own("hermes_think"), render_seconds=0.05)
    prompt = await made.build_async(HELLO, GenerationOptions())
    assert prompt == made.build(HELLO, GenerationOptions())
    usual = ChatTemplate.render_prompt
    monkeypatch.setattr(ChatTemplate, "render_prompt", lambda *a, **k: (time.sleep(0.3), usual(*a, **k))[1])
    with pytest.raises(EngineError, match=r"0\.05 s") as error:
        await made.build_async(HELLO, GenerationOptions())
    assert error.value.kind == "timeout"


async def test_prompts_wait_for_those_of_their_own_tenant_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    made = builder(own("hermes_think"), render_seconds=0.3)
    expected, usual, may_end = made.build(HELLO, GenerationOptions()), ChatTemplate.render_prompt, threading.Event()

    def slow(*args: Any, **more: Any) -> Any:
        if current_user.get().tenant == "a":
            may_end.wait(30)
        return usual(*args, **more)

    monkeypatch.setattr(ChatTemplate, "render_prompt", slow)

    async def build(tenant: str) -> Any:
        current_user.set(User(tenant=tenant))
        return await made.build_async(HELLO, GenerationOptions())

    builds = [asyncio.create_task(build("a")) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert await asyncio.create_task(build("b")) == expected
    errors = await asyncio.gather(*builds, return_exceptions=True)
    assert [error.kind for error in errors if isinstance(error, EngineError)] == ["timeout"] + ["overloaded"] * 4
    assert "waited for 0.3 s" in str(errors[-1]) and errors[-1].retryable  # type: ignore[union-attr]
    may_end.set()


async def test_the_time_of_a_prompt_does_not_count_while_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = builder(own("hermes_think"), render_seconds=1.2)
    usual = ChatTemplate.render_prompt
    monkeypatch.setattr(ChatTemplate, "render_prompt", lambda *a, **k: (time.sleep(0.5), usual(*a, **k))[1])
    prompts = await asyncio.gather(*(made.build_async(HELLO, GenerationOptions()) for _ in range(3)))
    assert len(prompts) == 3


class AtOnce(FairThreads):
    """Work is done when it is given, and the event loop learns of it a moment later."""

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work())
        return done


async def test_a_stop_that_comes_with_the_prompt_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    made = builder(own("hermes_think"))
    monkeypatch.setattr(made, "_threads", AtOnce("test"))
    building = asyncio.create_task(made.build_async(HELLO, GenerationOptions()))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_soon(building.cancel)
    with pytest.raises(asyncio.CancelledError):
        await building


# --- thinking


@pytest.mark.parametrize(
    ("template", "options", "ending"),
    [
        ("hermes_think", {"thinking": False}, "assistant\n<think>\n\n</think>\n\n"),
        ("hermes_think", {"thinking": True}, "assistant\n"),
        ("hermes_think", {"reasoning_effort": "none"}, "assistant\n<think>\n\n</think>\n\n"),
        ("hermes_think", {"reasoning_effort": "low"}, "assistant\n"),
        ("deepseek_switch", {}, "<｜Assistant｜></think>"),
        ("deepseek_switch", {"thinking": True}, "<｜Assistant｜><think>"),
        ("deepseek_switch", {"reasoning_effort": "high"}, "<｜Assistant｜><think>"),
        ("announced_tags", {"thinking": True}, "]~b]ai\n<mm:think>"),
        ("announced_tags", {"thinking": False}, "]~b]ai\n</mm:think>"),
        ("nemotron_word", {"thinking": False}, "Assistant\n<think></think>"),
        ("nemotron_word", {"thinking": True}, "Assistant\n<think>\n"),
        ("seed_budget", {"thinking": False}, "<seed:think><seed:cot_budget_reflect>"),
        ("seed_budget", {"template_kwargs": {"thinking_budget": 0}}, "<seed:think><seed:cot_budget_reflect>"),
        ("hunyuan_tags", {"thinking": False}, "<think></think>"),
        ("command_action", {"thinking": False}, "<|START_THINKING|><|END_THINKING|>"),
        ("glm_tight", {"template_kwargs": {"enable_thinking": False}}, "<|assistant|></think>"),
        ("unthinking", {}, "assistant\n<think></think>"),
        ("unthinking", {"thinking": True}, "assistant\n<think>"),
        ("unthinking", {"thinking": False}, "assistant\n<think></think>"),
        ("unthinking", {"reasoning_effort": "none"}, "assistant\n<think></think>"),
        ("unthinking", {"reasoning_effort": "medium"}, "assistant\n<think>"),
        ("thought_required", {"reasoning_effort": "medium"}, "assistant\n<think|quick>\n"),
        ("thought_required", {"reasoning_effort": "minimal"}, "assistant\n<think|hasty>\n"),
        ("thought_required", {"reasoning_effort": "max"}, "assistant\n<think|deep>\n"),
        ("thought_required", {"thinking": False}, "assistant\n<think|hasty>\n"),
        (
            "thought_required",
            {"thinking": True, "template_kwargs": {"reasoning_effort": "low"}},
            "assistant\n<think|hasty>\n",
        ),
    ],
)
def test_thinking_by_whatever_switch(template: str, options: dict[str, Any], ending: str) -> None:
    prompt = builder(own(template)).build(HELLO, GenerationOptions(**options))
    assert prompt.text.endswith(ending)
    assert prompt.warnings == ()
    assert prompt.text.endswith(prompt.opened)
    assert ending.rpartition("\n")[2] in prompt.opened


LOOKS_INTO_CONTENT = """{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}
{%- for m in messages %}{{ '<|' ~ m.role ~ '|>' }}
{%- if m.role == 'assistant' %}
  {%- if (m.thinking or m.content[0].thinking) and not skip_thinking %}<|START_THINKING|>{{ m.thinking }}<|END_THINKING|>
  {%- endif %}
  {%- if m.tool_calls %}<|START_ACTION|>[
    {%- for c in m.tool_calls %}{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}
      {%- if not loop.last %}, {% endif %}
    {%- endfor %}]<|END_ACTION|>
  {%- else %}{{ m.content }}{% endif %}
{%- else %}{{ m.content }}{% endif %}<|end|>
{%- endfor %}
{%- if add_generation_prompt %}<|assistant|>{% if skip_thinking %}<|START_THINKING|><|END_THINKING|>{% endif %}{% endif %}"""
"""A template that indexes the content of a message with calls, whether it has any or not."""


def test_calls_of_a_template_that_looks_into_their_empty_content() -> None:
    call = ToolCall(id="c", function=FunctionCall(name="get_weather", arguments='{"city": "Brest"}'))
    given = run_input(("user", "Hello"), tools=(WEATHER,))
    given.messages += [
        AssistantMessage(id="a", content=None, tool_calls=[call]),
        ToolMessage(id="t", content="wet", tool_call_id="c"),
    ]
    prompt = builder(LOOKS_INTO_CONTENT).build(given, GenerationOptions())
    written = '<|START_ACTION|>[{"name": "get_weather", "parameters": {"city": "Brest"}}]<|END_ACTION|>'
    assert f"<|assistant|>{written}<|end|><|tool|>wet<|end|>" in prompt.text
    parser = Parser(prompt.output_format, Policy(), opened=prompt.opened)
    pieces = [*parser.feed(written), *parser.finish()]
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["get_weather"]
    assert "".join(piece.text for piece in pieces if isinstance(piece, ArgumentText)) == '{"city": "Brest"}'


@pytest.mark.parametrize("name", ["skip_thinking", "disable_thinking", "no_think", "without_reasoning"])
def test_a_switch_whose_name_negates_thinking(name: str) -> None:
    source = LOOKS_INTO_CONTENT.replace("skip_thinking", name)
    closed = "<|assistant|><|START_THINKING|><|END_THINKING|>"
    assert builder(source).build(HELLO, GenerationOptions(thinking=False)).text.endswith(closed)
    assert builder(source).build(HELLO, GenerationOptions(thinking=True)).text.endswith("<|end|><|assistant|>")


def test_effort() -> None:
    made = builder(own("harmony"))
    assert "Reasoning: high" in made.build(HELLO, GenerationOptions(reasoning_effort="high")).text
    assert "Reasoning: medium" in made.build(HELLO, GenerationOptions()).text
    assert "Reasoning: none" in made.build(HELLO, GenerationOptions(thinking=False)).text


EFFORTS_BESIDE_A_SWITCH = """{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}
{%- if thinking and reasoning_effort in ['high', 'max'] %}[effort: {{ reasoning_effort }}]{% endif %}
{%- if add_generation_prompt %}<|assistant|>{{ '<think>' if thinking else '</think>' }}{% endif %}"""
"""A template without thinking by default, whose efforts count only with it."""


@pytest.mark.parametrize(
    ("effort", "ending"),
    [
        ("low", "hello<|assistant|><think>"),
        ("medium", "hello<|assistant|><think>"),
        ("high", "hello[effort: high]<|assistant|><think>"),
        ("xhigh", "hello[effort: max]<|assistant|><think>"),
        ("none", "hello<|assistant|></think>"),
    ],
)
def test_an_effort_that_counts_only_with_thinking(effort: str, ending: str) -> None:
    """An effort below all levels leaves the variable unset, which is the usual thinking."""
    prompt = builder(EFFORTS_BESIDE_A_SWITCH).build(HELLO, GenerationOptions(reasoning_effort=effort))
    assert prompt.text.endswith(ending)


def test_an_answer_without_reasoning_where_the_template_requires_it() -> None:
    call = ToolCall(id="c", function=FunctionCall(name="get_weather", arguments='{"city": "Brest"}'))
    given = run_input(("user", "Hello"), tools=(WEATHER,))
    given.messages += [
        AssistantMessage(id="a", content="Let me look.", tool_calls=[call]),
        ToolMessage(id="t", content="wet", tool_call_id="c"),
        AssistantMessage(id="b", content="It rains."),
    ]
    prompt = builder(own("thought_required")).build(given, GenerationOptions())
    assert "<|turn|>assistant\n<think|deep>\n</think|deep>Let me look.<our|call>get_weather" in prompt.text
    assert "<|turn|>assistant\n<think|deep>\n</think|deep>It rains.<|done|>" in prompt.text


@pytest.mark.parametrize(("effort", "name"), [("high", "deep"), ("medium", "quick"), ("low", "hasty")])
def test_each_effort_opens_a_block_of_its_own(effort: str, name: str) -> None:
    prompt = builder(own("thought_required")).build(HELLO, GenerationOptions(reasoning_effort=effort))
    parser = Parser(prompt.output_format, Policy(), opened=prompt.opened)
    pieces = [*parser.feed(f"Hm.</think|{name}>High."), *parser.finish()]
    assert [(type(piece), piece.text) for piece in pieces] == [(ReasoningText, "Hm."), (ContentText, "High.")]
    thought = thought_of(prompt.output_format, prompt.opened)
    assert thought is not None
    assert thought.close == f"</think|{name}>"


def test_calls_that_the_template_only_explains() -> None:
    prompt = builder(own("explained_tags")).build(run_input(("user", "Hello"), tools=(WEATHER,)), GenerationOptions())
    parser = Parser(prompt.output_format, Policy(), opened=prompt.opened)
    written = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Brest</arg_value>\n</tool_call>"
    pieces = [*parser.feed(written), *parser.finish()]
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["get_weather"]
    assert "".join(piece.text for piece in pieces if isinstance(piece, ArgumentText)) == '{"city": "Brest"}'


def test_a_setting_without_effect_is_told() -> None:
    prompt = builder(own("jamba_list")).build(HELLO, GenerationOptions(thinking=True))
    assert "no switch" in prompt.warnings[0]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"chat_template": "{{ 1 }}"},
        {"messages": []},
        {"tools": [1]},
        {"add_generation_prompt": False},
        {"raise_exception": 1},
        {"anything": 1},
        {"documents": 10**12},
        {"documents": [[[[[[[[[[[1]]]]]]]]]]]},
    ],
)
def test_template_variables_are_on_a_list(kwargs: dict[str, Any]) -> None:
    source = own("hermes_think") + "{{ anything }}{{ documents }}"
    prompt = builder(source).build(HELLO, GenerationOptions(template_kwargs=kwargs))
    assert "ignored" in prompt.warnings[0]
    assert prompt.token_ids == builder(source).build(HELLO, GenerationOptions()).token_ids


def test_more_variables_may_be_allowed() -> None:
    source = own("hermes_think") + "{{ anything }}"
    made = builder(source, allowed_kwargs=frozenset({"anything"}))
    prompt = made.build(HELLO, GenerationOptions(template_kwargs={"anything": "words <|im_end|>"}))
    assert prompt.text.endswith("words <|im_end|>")
    usual = made.build(HELLO, GenerationOptions())
    ends = [sum(map(made.is_control, each.token_ids)) for each in (prompt, usual)]
    assert ends[0] == ends[1]


def test_a_system_message_that_comes_with_the_generation_prompt_is_no_part_of_the_answer() -> None:
    """What is said in it of calls would be read as one."""
    prompt = builder(own("prompted_head")).build(HELLO, GenerationOptions())
    assert "<tool_call>" in prompt.text
    assert prompt.opened == "<|im_start|>assistant\n"


def test_the_answer_begins_with_a_whole_marker() -> None:
    """Where the conversation ends otherwise without a generation prompt, both may begin with the same characters."""
    source = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"
        "{{ '<|assistant|>' if add_generation_prompt else '<|all|>' }}"
    )
    assert builder(source).build(HELLO, GenerationOptions()).opened == "<|assistant|>"


# --- tools


@pytest.mark.parametrize(
    ("choice", "shown"),
    [
        (ToolChoice(), ("get_weather", "get_time")),
        (ToolChoice("required"), ("get_weather", "get_time")),
        (ToolChoice("none"), ()),
        (ToolChoice("named", ("get_time",)), ("get_time",)),
        (ToolChoice("auto", ("get_weather",)), ("get_weather",)),
    ],
)
def test_tool_choice(choice: ToolChoice, shown: tuple[str, ...]) -> None:
    input = run_input(("user", "hello"), tools=(WEATHER, TIME))
    text = builder(own("hermes_think")).build(input, GenerationOptions(tool_choice=choice)).text
    assert [name for name in ("get_weather", "get_time") if name in text] == list(shown)


def test_a_template_for_tools() -> None:
    templates = {"default": own("gemma_turns"), "tool_use": own("hermes_think")}
    made = PromptBuilder(ModelFiles(tokenizer=tokenizer(), templates=templates))
    with_tools = run_input(("user", "hello"), tools=(WEATHER,))
    assert made.build(HELLO, GenerationOptions()).text.startswith("<start_of_turn>")
    assert made.build(with_tools, GenerationOptions()).text.startswith("<|im_start|>system")
    assert made.build(with_tools, GenerationOptions(tool_choice=ToolChoice("none"))).text.startswith("<start_of_turn>")


def test_a_template_for_tools_that_does_not_show_them_is_not_used() -> None:
    """As the first Command R's, which reads `tool.parameter_definitions` alone."""
    templates = {"default": own("gemma_turns"), "tool_use": own("plain_words")}
    made = PromptBuilder(ModelFiles(tokenizer=tokenizer(), templates=templates))
    prompt = made.build(run_input(("user", "hello"), tools=(WEATHER,)), GenerationOptions())
    assert prompt.text.startswith("<start_of_turn>") and '"name": "get_weather"' in prompt.text


def test_tools_without_a_place_for_them() -> None:
    input = run_input(("user", "hello"), tools=(WEATHER,))
    prompt = builder(own("plain_words")).build(input, GenerationOptions())
    assert "no place for tools" in prompt.warnings[0]
    assert '"name": "get_weather"' in prompt.text
    assert (
        '<tool_call>\n{"name": "function_name", "arguments": {"argument_name": "value"}}\n</tool_call>' in prompt.text
    )
    assert prompt.output_format.tools is not None
    assert prompt.output_format.tools.call_start.strip() == "<tool_call>"
    assert "<tool_call>" in prompt.marker_ids
    own_way = builder(own("deepseek_switch")).build(input, GenerationOptions())
    assert "<｜tool▁call▁begin｜>function_name<｜tool▁sep｜>" in own_way.text
    assert builder(own("gemma_turns")).build(HELLO, GenerationOptions()).output_format.tools is None


SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + "
    "message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "words", "call", "said"),
    [
        (
            own("gemma_turns"),
            'in the format of\n{"name": function name, "parameters": dictionary',
            '{"name": "get_weather", "parameters": {"city": "Paris"}}',
            "Result of get_weather: 7 degrees",
        ),
        (
            LLAMA3,
            'Respond in the format {"name": function name, "parameters": dictionary',
            '{"name": "get_weather", "parameters": {"city": "Paris"}}',
            "<|start_header_id|>tool<|end_header_id|>\n\n7 degrees",
        ),
        (
            SMOLLM2,
            "You have access to the following tools:\n<tools>[",
            '<tool_call>[\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n]</tool_call>',
            "<tool_response>\n7 degrees\n</tool_response>",
        ),
    ],
    ids=["Gemma 3", "Llama 3", "SmolLM2"],
)
def test_tools_are_told_as_the_family_was_trained_to_be_told(template: str, words: str, call: str, said: str) -> None:
    asked = run_input(("user", "How warm is it in Paris?"), tools=(WEATHER,))
    prompt = builder(template).build(asked, GenerationOptions())
    assert words in prompt.text
    assert '"name": "get_weather"' in prompt.text
    assert prompt.warnings == ()
    parser = Parser(prompt.output_format, Policy(tools={"get_weather": {"type": "object"}}), opened=prompt.opened)
    pieces = [*parser.feed(call), *parser.finish()]
    assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["get_weather"]
    assert json.loads("".join(piece.text for piece in pieces if isinstance(piece, ArgumentText))) == {"city": "Paris"}
    # The history shows the call as the model writes it, and the result as it was trained to get it.
    made = ToolCall(id="1", function=FunctionCall(name="get_weather", arguments='{"city": "Paris"}'))
    history = [
        *asked.messages,
        AssistantMessage(id="a", role="assistant", tool_calls=[made]),
        ToolMessage(id="t", role="tool", tool_call_id="1", content="7 degrees"),
    ]
    text = builder(template).build(asked.model_copy(update={"messages": history}), GenerationOptions()).text
    assert call in text
    assert said in text


def test_tools_that_the_template_needs_for_the_history() -> None:
    source = (
        own("hermes_think")
        + "{% for m in messages if m.tool_calls and not tools %}{{ raise_exception('tools?') }}{% endfor %}"
    )
    call = {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    asked = run_input(("user", "hello"), tools=(WEATHER,))
    answered = [
        *asked.messages,
        *READ.validate_python(
            [
                {"id": "a", "role": "assistant", "content": "", "toolCalls": [call]},
                {"id": "t", "role": "tool", "content": "sunny", "toolCallId": "1"},
            ]
        ),
    ]
    input = asked.model_copy(update={"messages": answered})
    prompt = builder(source).build(input, GenerationOptions(tool_choice=ToolChoice("none")))
    assert "The weather." in prompt.text
    assert "needs the tools" in prompt.warnings[0]


def test_a_schema_that_a_template_stumbles_over() -> None:
    source = (
        own("hermes_think")
        + "{% for t in tools %}{% for p in t.function.parameters.properties.values() %}{{ p.type + '' }}{% endfor %}{% endfor %}"
    )
    union = Tool(name="f", description="", parameters={"properties": {"city": {"type": ["string", "null"]}}})
    prompt = builder(source).build(run_input(("user", "x"), tools=(union,)), GenerationOptions())
    assert "simplified" in prompt.warnings[0]


def test_a_template_that_prints_what_a_dictionary_holds() -> None:
    """Templates that write declarations as Python print `Dict[str, TYPE]` for an object in an argument."""
    source = (
        own("hermes_think")
        + "{% for t in tools %}{% for p in t.function.parameters.properties.values() if p.type == 'object' %}"
        + "{{ 'Dict[str, ' + p.additionalProperties.type + ']' }}{% endfor %}{% endfor %}"
    )
    parameters = {"type": "object", "properties": {"options": {"type": "object", "properties": {}}}}
    declared = Tool(name="f", description="", parameters=parameters)
    prompt = builder(source).build(run_input(("user", "x"), tools=(declared,)), GenerationOptions())
    assert "Dict[str, string]" in prompt.text
    assert "simplified" in prompt.warnings[0]


# --- stages and prefills


def continued(template: str, *messages: tuple[str, str], **options: Any) -> Any:
    made = builder(template)
    prompt = made.build(run_input(*messages), GenerationOptions(continue_final_message=True, **options))
    return made, prompt


ANSWER = (("user", "hi"), ("reasoning", "I'm thinking"), ("assistant", "Hello, "))


@pytest.mark.parametrize(
    ("template", "opened"),
    [
        ("hermes_think", "<|im_start|>assistant\n<think>\nI'm thinking\n</think>\n\nHello, "),
        ("glm_tight", "<|assistant|><think>I'm thinking</think>Hello, "),
        ("mistral_args", "[THINK]I'm thinking[/THINK]Hello, "),
        ("deepseek_switch", "<｜Assistant｜><think>I'm thinking</think>Hello, "),
        ("nemotron_word", "<SPECIAL_11>Assistant\n<think>\nI'm thinking</think>Hello, "),
        ("delimiter", "<|begin_assistant|>\nI'm thinking\n[BEGIN FINAL RESPONSE]\nHello, "),
        ("recipients", "<|start_header_id|>assistant<|end_header_id|>\n\n>>>all\nHello, "),
        ("opened_answer", "<s_turn>Assistant\n<think>\nI'm thinking</think>Hello, "),
        ("unasked_prompt", "<|line_start|>assistant<|line_end|>\nHello, "),
        ("sections_unthinking", "<|im_assistant|>assistant<|im_middle|><think>I'm thinking</think>Hello, "),
        (
            "harmony",
            "<|start|>assistant<|channel|>analysis<|message|>I'm thinking<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Hello, ",
        ),
    ],
)
def test_an_answer_is_continued(template: str, opened: str) -> None:
    _, prompt = continued(own(template), *ANSWER)
    assert prompt.opened == opened
    assert prompt.text.endswith(opened)


@pytest.mark.parametrize(
    ("template", "opened"),
    [
        ("hermes_think", "<|im_start|>assistant\n<think>\nI'm"),
        ("glm_tight", "<|assistant|><think>I'm"),
        ("deepseek_switch", "<｜Assistant｜><think>I'm"),
        ("mistral_args", "[THINK]I'm"),
        ("harmony", "<|start|>assistant<|channel|>analysis<|message|>I'm"),
    ],
)
def test_reasoning_is_continued(template: str, opened: str) -> None:
    made, prompt = continued(own(template), ("user", "hi"), ("reasoning", "I'm"))
    assert prompt.opened == opened
    if template != "harmony":
        assert made.detect_output_stage(prompt.token_ids) == "REASONING_STAGE"


@pytest.mark.parametrize(
    ("template", "opened"),
    [
        ("glm_tight", "<|assistant|><think>I'm</think>"),
        ("hermes_think", "<|im_start|>assistant\n<think>\nI'm\n</think>\n\n"),
        (
            "harmony",
            "<|start|>assistant<|channel|>analysis<|message|>I'm<|end|><|start|>assistant<|channel|>final<|message|>",
        ),
    ],
)
def test_reasoning_is_closed_where_text_is_to_follow(template: str, opened: str) -> None:
    made = builder(own(template))
    prompt = made.build(
        run_input(("user", "hi"), ("reasoning", "I'm")), GenerationOptions(continue_final_message="content")
    )
    assert prompt.opened == opened
    assert prompt.text.endswith(opened)


@pytest.mark.parametrize("name", own_names())
def test_behind_a_call_and_its_result_a_prefill_holds_the_last_message_alone(name: str) -> None:
    """What is opened is read as the answer's beginning, so an old call in it would be made again."""
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Brest"}'}}
    history = [
        {"id": "1", "role": "user", "content": "hi"},
        {"id": "2", "role": "reasoning", "content": "I look"},
        {"id": "3", "role": "assistant", "toolCalls": [call]},
        {"id": "4", "role": "tool", "toolCallId": "c1", "content": "12 degrees"},
        {"id": "5", "role": "assistant", "content": "It is "},
    ]
    given = run_input(tools=(WEATHER,)).model_copy(update={"messages": READ.validate_python(history)})
    prompt = builder(own(name)).build(given, GenerationOptions(continue_final_message=True))
    assert prompt.opened.endswith("It is ")
    assert "get_weather" not in prompt.opened and "12 degrees" not in prompt.opened


def test_a_prefill_with_markup_stays_text() -> None:
    made, prompt = continued(own("hermes_think"), ("user", "hi"), ("assistant", "say <|im_end|>"))
    assert prompt.opened.endswith("say <|im_end|>")
    assert not made.is_control(prompt.token_ids[-1])


def test_without_a_prefill_the_answer_begins_as_ever() -> None:
    made = builder(own("hermes_think"))
    prompt = made.build(HELLO, GenerationOptions(continue_final_message=True))
    assert prompt.text.endswith("hello<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("name", own_names())
@pytest.mark.parametrize("thinking", [None, True, False])
def test_the_stage_agrees_with_what_is_opened(name: str, thinking: bool | None) -> None:
    """`detect_output_stage` of the whole prompt, and the markers in `opened`, tell the same."""
    made = builder(own(name))
    prompt = made.build(HELLO, GenerationOptions(thinking=thinking))
    described = prompt.output_format.reasoning
    if described is None or prompt.output_format.channels:
        return
    ends = max(prompt.opened.rfind(mark.strip()) for mark in described.end)
    starts = max((prompt.opened.rfind(mark.strip()) for mark in described.start), default=-1)
    inside = starts > ends or (described.initial == "reasoning" and ends < 0)
    assert made.detect_output_stage(prompt.token_ids) == ("REASONING_STAGE" if inside else "CONTENT_STAGE")


def test_the_tool_call_stage() -> None:
    made = builder(own("hermes_think"))
    ids = made.tokenize('<|im_start|>assistant\n<tool_call>\n{"name": "f"')
    assert made.detect_output_stage(ids) == "TOOL_CALL_STAGE"
    closed = made.tokenize("<|im_start|>assistant\n<tool_call>\n{}\n</tool_call>")
    assert made.detect_output_stage(closed) == "CONTENT_STAGE"
    earlier = made.tokenize("<|im_start|>user\n<think><tool_call><|im_end|>\n<|im_start|>assistant\n")
    assert made.detect_output_stage(earlier) == "CONTENT_STAGE"
    assert builder(None).detect_output_stage(earlier) == "CONTENT_STAGE"


# --- formats by name


def test_formats_by_name() -> None:
    whole = builder(own("jamba_list"), format="qwen3_coder").build(HELLO, GenerationOptions()).output_format
    assert whole.tools is not None
    assert whole.tools.name_prefix == "<function="
    assert whole.message_start == "<|bom|><|assistant|> "
    parts = builder(own("jamba_list"), reasoning_parser="deepseek", tool_call_parser="deepseek")
    found = parts.build(HELLO, GenerationOptions()).output_format
    assert found.reasoning is not None
    assert found.tools is not None
    assert found.reasoning.start == ("<think>",)
    assert "tool▁calls▁begin" in found.tools.section_start
    with pytest.raises(EngineError, match="nonsense"):
        builder(own("jamba_list"), format="nonsense")


def test_markers_that_also_stand_inside_an_answer_do_not_end_it() -> None:
    source = (
        own("llama_single").replace("<|eot_id|>", "<|im_end|>").replace('{"name": "\'', '<|im_end|>\\ncall{"name": "\'')
    )
    made = builder(source)
    assert made.build(HELLO, GenerationOptions()).output_format.tools.call_start.startswith("<|im_end|>")  # type: ignore[union-attr]
    assert made.build(HELLO, GenerationOptions()).stop_token_ids == (7,)


# --- files


def test_a_models_folder(tmp_path: Path) -> None:
    tokenizer().save(str(tmp_path / "tokenizer.json"))
    config = {"eos_token": {"content": "</s>"}, "bos_token": "<bos>", "chat_template": "old {{ eos_token }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}" + own("exaone_bars"), "utf-8")
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 4]}', "utf-8")
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 123, "eos_token_id": 5}', "utf-8")
    made = PromptBuilder.load(tmp_path)
    assert made.context_length == 123
    prompt = made.build(HELLO, GenerationOptions())
    assert prompt.text.startswith("<bos>[|user|]")
    assert prompt.stop_token_ids[:3] == (3, 4, 5)
    assert made.tokenizer.token_to_id("</s>") in prompt.stop_token_ids
    replaced = PromptBuilder.load(tmp_path, PromptSettings(chat_template=own("jamba_list"), context_length=50))
    assert replaced.build(HELLO, GenerationOptions()).text.startswith("<|startoftext|>")
    assert replaced.context_length == 50


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no tokenizer"):
        load_model_files(tmp_path)


# --- the shared cases' prompts


def cases() -> list[Any]:
    path = SHARED / "template-cases.jsonl"
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    return [pytest.param(case, id=case["id"]) for case in map(json.loads, lines) if len(case["messages"]) < 4]


@pytest.mark.skipif(not SHARED_TEMPLATES.is_dir(), reason=f"no templates at {SHARED_TEMPLATES}")
@pytest.mark.parametrize("case", cases())
def test_what_the_prompt_opens(case: dict[str, Any]) -> None:
    source = (SHARED_TEMPLATES / case["template"]).read_text("utf-8")
    messages = []
    for message in case["messages"]:
        if message.get("reasoning_content"):
            messages.append(("reasoning", message["reasoning_content"]))
        if message.get("content"):
            messages.append((message["role"], message["content"]))
    tools = tuple(
        Tool(name=t["function"]["name"], description="d", parameters=t["function"]["parameters"]) for t in case["tools"]
    )
    thinking = True if case["enable_thinking"] is None else case["enable_thinking"]
    options = GenerationOptions(thinking=thinking, continue_final_message=case["continue_final_message"] != "none")
    prompt = builder(source).build(run_input(*messages, tools=tools), options)
    expected = case["generation_prompt"]
    # White space aside, and with the header where the peer leaves it out.
    assert "".join(prompt.opened.split()).endswith("".join(expected.split()))


# --- on the event loop, or in a thread


async def built_in(made: PromptBuilder, input: RunAgentInput, options: GenerationOptions, **given: Any) -> str:
    """Where a prompt was built: "loop" or "thread"."""
    places: list[bool] = []
    usual = made.build

    def noted(*arguments: Any, **named: Any) -> Any:
        places.append(threading.current_thread() is threading.main_thread())
        return usual(*arguments, **named)

    made.build = noted  # type: ignore[method-assign]
    try:
        await made.build_async(input, options, **given)
    finally:
        made.build = usual  # type: ignore[method-assign]
    return "loop" if places == [True] else "thread"


class CpuTime:
    """A clock by which everything takes `step` seconds."""

    def __init__(self) -> None:
        self.step = 0.0001
        self._now = 0.0

    def __call__(self) -> float:
        self._now += self.step
        return self._now


async def used_to_be_quick() -> tuple[PromptBuilder, CpuTime]:
    made, clock = builder(own("hermes_think")), CpuTime()
    made._quick = QuickBuilds(clock)
    for _ in range(FIRST_BUILDS):
        assert await built_in(made, HELLO, GenerationOptions()) == "thread", "whether it is quick is not known yet"
    return made, clock


async def test_small_prompts_are_built_on_the_event_loop_once_that_is_known_to_be_quick() -> None:
    made, _ = await used_to_be_quick()
    assert await built_in(made, HELLO, GenerationOptions()) == "loop"
    assert await made.build_async(HELLO, GenerationOptions()) == made.build(HELLO, GenerationOptions())


@pytest.mark.parametrize(
    ("input", "options"),
    [
        (run_input(("user", "x" * (MOST_CHARACTERS + 1))), {}),
        (run_input(*[("user", "x")] * (MOST_MESSAGES + 1)), {}),
        (run_input(("user", "hello"), tools=(WEATHER,)), {}),
        (HELLO, {"template_kwargs": {"thinking_budget": 10_000_000}}),
        (HELLO, {"raw_prompt": "hello"}),
        (HELLO, {"truncate_history": True}),
        (run_input(("user", "hello"), ("assistant", "hel")), {"continue_final_message": True}),
    ],
)
async def test_other_prompts_are_built_in_threads(input: RunAgentInput, options: dict[str, Any]) -> None:
    made, _ = await used_to_be_quick()
    assert await built_in(made, input, GenerationOptions(**options)) == "thread"


async def test_a_template_that_turns_out_slow_holds_up_the_event_loop_once() -> None:
    made, clock = await used_to_be_quick()
    clock.step = 0.5
    assert await built_in(made, HELLO, GenerationOptions()) == "loop"
    assert await built_in(made, HELLO, GenerationOptions()) == "thread"
    clock.step = 0.0001
    for _ in range(2 * FIRST_BUILDS):
        assert await built_in(made, HELLO, GenerationOptions()) == "thread", "a few quick ones do not make up for it"


async def test_a_collection_of_garbage_that_falls_into_a_build_is_not_held_against_the_template() -> None:
    made, clock = await used_to_be_quick()
    for _ in range(MAX_CREDIT):
        made._quick.measure(lambda: None)
    clock.step = 0.02
    assert await built_in(made, HELLO, GenerationOptions()) == "loop"
    assert await built_in(made, HELLO, GenerationOptions()) == "loop"
    for _ in range(2):
        await built_in(made, HELLO, GenerationOptions())
    assert await built_in(made, HELLO, GenerationOptions()) == "thread", "it is the rule by now"
