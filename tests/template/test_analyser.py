"""What the analyser reads from templates of many families, each written for this test in that family's style."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.formats import registry
from events.formats.family import same_markers
from events.formats.output_format import Tools, markers
from events.parsing.policy import Policy
from events.template import analyser
from events.template.analyser import TemplateAnalysis, analyse
from events.template.environment import ChatTemplate
from tests.formats.reading import read
from tests.template.folder import own, own_names

THINK = ("<think>", "</think>")

# template → (mode, (start, end)), white space aside
REASONING: dict[str, tuple[str, tuple[str, str]]] = {
    "addressed": ("tag_based", ("to=self<|message|>", "<|eom|>")),
    "joined_parameters": ("tag_based", THINK),
    "quoted_objects": ("tag_based", ("<|channel>thought", "<channel|>")),
    "spaced_header": ("tag_based", THINK),
    "announced_tags": ("tag_based", ("<mm:think>", "</mm:think>")),
    "command_action": ("tools_only", ("<|START_THINKING|>", "<|END_THINKING|>")),
    "between_messages": ("tag_based", THINK),
    "deepseek_fenced": ("forced_open", THINK),
    "deepseek_switch": ("forced_open", THINK),
    "delimiter": ("delimiter", ("", "[BEGIN FINAL RESPONSE]")),
    "dsml": ("forced_open", THINK),
    "dsml_blob": ("tag_based", THINK),
    "ernie_response": ("forced_closed", THINK),
    "exaone_bars": ("tag_based", THINK),
    "glm_tight": ("forced_open", THINK),
    "granite_explained": ("tag_based", THINK),
    "hermes_think": ("tag_based", THINK),
    "hunyuan_tags": ("forced_closed", THINK),
    "kimi_id": ("tag_based", THINK),
    "indented_header": ("forced_open", THINK),
    "modes": ("tag_based", ("<mull>", "</mull>")),
    "opened_answer": ("forced_open", THINK),
    "mistral_args": ("tag_based", ("[THINK]", "[/THINK]")),
    "name_as_key": ("tag_based", ("<|inner_prefix|>", "<|inner_suffix|>")),
    "nemotron_word": ("forced_closed", THINK),
    "phi_reasoner": ("tag_based", THINK),
    "planned_action": ("tools_only", ("<|START_THINKING|>", "<|END_THINKING|>")),
    "repeated_header": ("tag_based", ("<|think|>", "<|end|>")),
    "seed_budget": ("tag_based", ("<seed:think>", "</seed:think>")),
    "step_invoke": ("forced_open", THINK),
    "spaced_calls": ("tag_based", THINK),
    "switch_in_system": ("forced_closed", THINK),
    "thought_required": ("forced_open", ("<think|deep>", "</think|deep>")),
    "unthinking": ("forced_closed", THINK),
}

# template → (mode, the description's settings as a mapping, white space aside)
TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "action_fence": (
        "json_native",
        {
            "section_start": "Action:\n```json\n[",
            "section_end": "]\n```",
            "json.name": "tool_name",
            "json.arguments": "parameters",
            "lines": True,
            "json.array": True,
        },
    ),
    "enclosed_text": ("json_native", {"json.arguments": "parameters"}),
    "json_texts": (
        "json_native",
        {
            "section_start": "<|tool_start|>[",
            "section_end": "]<|tool_end|>",
            "json.array": True,
            "json.wrapper": "function",
            "json.id": "id",
            "json.id_first": True,
            "id.position": "key",
            "lines": True,
        },
    ),
    "role_of_functions": ("json_native", {"call_start": "<functioncall>"}),
    "closing_instruction": (
        "json_native",
        {
            "section_start": "Action:\n```json\n[",
            "section_end": "]\n```",
            "json.name": "tool_name",
            "json.array": True,
            "lines": True,
        },
    ),
    "indented_header": (
        "tag_with_json",
        {
            "section_start": "<|calls|>",
            "section_end": "<|/calls|>",
            "call_start": "<|call|>",
            "call_end": "<|/call|>",
            "name_suffix": "<|args|>",
        },
    ),
    "bare_list": ("json_native", {"section_start": "[", "section_end": "]", "call_separator": ",", "json.array": True}),
    "between_messages": (
        "tag_with_tagged",
        {
            "section_start": "<｜GCML｜tool_calls>",
            "section_end": "</｜GCML｜tool_calls>",
            "name_prefix": '<｜GCML｜invoke name="',
            "name_suffix": '">',
            "arguments.end": "</｜GCML｜invoke>",
            "arguments.name_prefix": '<｜GCML｜parameter name="',
            "arguments.name_suffix": '"',
            "arguments.type_prefix": 'string="',
            "arguments.type_suffix": '"',
            "arguments.value_prefix": ">",
            "arguments.value_suffix": "</｜GCML｜parameter>",
        },
    ),
    "switch_in_system": (
        "json_native",
        {"section_start": "<TOOLCALL>[", "section_end": "]</TOOLCALL>", "json.array": True},
    ),
    "coder_tags": (
        "tag_with_tagged",
        {
            "call_start": "<tool_call>",
            "call_end": "</tool_call>",
            "name_prefix": "<function=",
            "name_suffix": ">",
            "arguments.end": "</function>",
            "arguments.name_prefix": "<parameter=",
            "arguments.name_suffix": ">",
            "arguments.value_suffix": "</parameter>",
            "arguments.untyped": "string",
        },
    ),
    "command_action": (
        "json_native",
        {
            "section_start": "<|START_ACTION|>[",
            "section_end": "]<|END_ACTION|>",
            "json.name": "tool_name",
            "json.arguments": "parameters",
            "json.id": "tool_call_id",
            "json.array": True,
            "id.position": "key",
        },
    ),
    "deepseek_fenced": (
        "tag_with_json",
        {
            "section_start": "<｜tool▁calls▁begin｜>",
            "section_end": "<｜tool▁calls▁end｜>",
            "call_start": "<｜tool▁call▁begin｜>",
            "call_end": "<｜tool▁call▁end｜>",
            "name_prefix": "function<｜tool▁sep｜>",
            "name_suffix": "```json",
            "arguments.end": "```",
            "failed": "drop",
        },
    ),
    "deepseek_switch": (
        "tag_with_json",
        {
            "section_start": "<｜tool▁calls▁begin｜>",
            "section_end": "<｜tool▁calls▁end｜>",
            "call_start": "<｜tool▁call▁begin｜>",
            "call_end": "<｜tool▁call▁end｜>",
            "name_suffix": "<｜tool▁sep｜>",
            "failed": "drop",
        },
    ),
    "delimiter": (
        "json_native",
        {"section_start": "<tool_calls>[", "section_end": "]</tool_calls>", "json.array": True},
    ),
    "dsml": (
        "tag_with_tagged",
        {
            "section_start": "<｜DSML｜tool_calls>",
            "section_end": "</｜DSML｜tool_calls>",
            "name_prefix": '<｜DSML｜invoke name="',
            "name_suffix": '">',
            "arguments.end": "</｜DSML｜invoke>",
            "arguments.name_prefix": '<｜DSML｜parameter name="',
            "arguments.name_suffix": '"',
            "arguments.type_prefix": 'string="',
            "arguments.type_suffix": '"',
            "arguments.value_prefix": ">",
            "arguments.value_suffix": "</｜DSML｜parameter>",
            "bare": "always",
        },
    ),
    "ernie_response": ("json_native", {"call_start": "<tool_call>", "call_end": "</tool_call>"}),
    "exaone_bars": ("json_native", {"call_start": "<tool_call>", "call_end": "</tool_call>"}),
    "function_object": (
        "object",
        {
            "call_start": "<start_function_call>",
            "call_end": "<end_function_call>",
            "name_prefix": "call:",
            "name_suffix": "{",
            "arguments.end": "}",
            "arguments.quote": "<escape>",
            "arguments.separator": ",",
        },
    ),
    "glm_tight": (
        "tag_with_tagged",
        {
            "call_start": "<tool_call>",
            "call_end": "</tool_call>",
            "arguments.name_prefix": "<arg_key>",
            "arguments.name_suffix": "</arg_key>",
            "arguments.value_prefix": "<arg_value>",
            "arguments.value_suffix": "</arg_value>",
        },
    ),
    "hermes_think": ("json_native", {"call_start": "<tool_call>", "call_end": "</tool_call>"}),
    "hunyuan_tags": (
        "tag_with_tagged",
        {
            "section_start": "<tool_calls>",
            "section_end": "</tool_calls>",
            "call_start": "<tool_call>",
            "call_end": "</tool_call>",
            "name_suffix": "<tool_sep>",
            "arguments.name_prefix": "<arg_key>",
            "arguments.name_suffix": "</arg_key>",
            "arguments.value_prefix": "<arg_value>",
            "arguments.value_suffix": "</arg_value>",
        },
    ),
    "internlm_plugin": (
        "json_native",
        {"call_start": "<|action_start|><|plugin|>", "call_end": "<|action_end|>", "json.arguments": "parameters"},
    ),
    "jamba_list": (
        "json_native",
        {"section_start": "<tool_calls>[", "section_end": "]</tool_calls>", "json.array": True},
    ),
    "kimi_id": (
        "tag_with_json",
        {
            "section_start": "<|tool_calls_section_begin|>",
            "section_end": "<|tool_calls_section_end|>",
            "call_start": "<|tool_call_begin|>",
            "call_end": "<|tool_call_end|>",
            "name_prefix": "functions.",
            "name_suffix": ":{index}<|tool_call_argument_begin|>",
            "id.position": "in_name",
        },
    ),
    "llama_pythonic": (
        "python",
        {
            "section_start": "<|python_start|>[",
            "section_end": "]<|python_end|>",
            "call_separator": ",",
            "name_suffix": "(",
            "arguments.end": ")",
        },
    ),
    "llama_single": ("json_native", {"json.arguments": "parameters", "call_separator": ";"}),
    "mistral_args": (
        "tag_with_json",
        {
            "call_start": "[TOOL_CALLS]",
            "name_suffix": "[ARGS]",
            "id.position": "between",
            "id.prefix": "[CALL_ID]",
        },
    ),
    "mistral_list": (
        "json_native",
        {
            "section_start": "[TOOL_CALLS][",
            "section_end": "]",
            "json.id": "id",
            "json.array": True,
            "id.position": "key",
        },
    ),
    "name_as_key": (
        "json_native",
        {
            "section_start": "<|tools_prefix|>[",
            "section_end": "]<|tools_suffix|>",
            "json.array": True,
            "json.name_is_key": True,
        },
    ),
    "nemotron_word": (
        "json_native",
        {"section_start": "<TOOLCALL>[", "section_end": "]</TOOLCALL>", "json.array": True},
    ),
    "nested_keys": (
        "nested",
        {"call_start": "<call><name>", "call_end": "</args></call>", "name_suffix": "</name><args>"},
    ),
    "olmo_lines": (
        "python",
        {
            "section_start": "<function_calls>",
            "section_end": "</function_calls>",
            "name_suffix": "(",
            "arguments.end": ")",
        },
    ),
    "python_dicts": (
        "tag_with_json",
        {"name_prefix": "<function=", "name_suffix": ">", "arguments.end": "</function>"},
    ),
    "repeated_header": (
        "tag_with_json",
        {
            "section_start": "<|tool_calls|>",
            "section_end": "<|calls|>",
            "call_start": "<|tool_call:begin|>",
            "call_end": "<|tool_call:end|>",
            "name_suffix": "<|tool_call:args|>",
            "id.position": "before_name",
            "id.suffix": "<|tool_call:name|>",
        },
    ),
    "seed_budget": (
        "tag_with_tagged",
        {
            "call_start": "<seed:tool_call>",
            "call_end": "</seed:tool_call>",
            "name_prefix": "<function=",
            "name_suffix": ">",
            "arguments.end": "</function>",
            "arguments.name_prefix": "<parameter=",
            "arguments.name_suffix": ">",
            "arguments.value_suffix": "</parameter>",
        },
    ),
    "step_invoke": (
        "tag_with_tagged",
        {
            "section_start": "<｜tool_calls_begin｜>",
            "section_end": "<｜tool_calls_end｜>",
            "call_start": "<｜tool_call_begin｜>",
            "call_end": "<｜tool_call_end｜>",
            "name_prefix": 'function<｜tool_sep｜><steptml:invoke name="',
            "name_suffix": '">',
            "arguments.end": "</steptml:invoke>",
            "arguments.name_prefix": '<steptml:parameter name="',
            "arguments.name_suffix": '">',
            "arguments.value_suffix": "</steptml:parameter>",
        },
    ),
    "wrapped_function": (
        "json_native",
        {
            "call_start": "<|function_call|>",
            "call_end": "<|/function_call|>",
            "json.wrapper": "function",
            "json.id": "id",
            "id.position": "key",
        },
    ),
}

FAMILIES = {
    "addressed": "muse",
    "explained_tags": "glm45",
    "prompted_head": "hermes",
    "quoted_objects": "gemma4",
    "spaced_header": "hermes",
    "announced_tags": "minimax_m3",
    "coder_tags": "qwen3_coder",
    "deepseek_fenced": "deepseek_v3",
    "deepseek_switch": "deepseek_v31",
    "dsml": "deepseek_v4",
    "ernie_response": "hermes",
    "exaone_bars": "hermes",
    "hermes_think": "hermes",
    "dsml_blob": "deepseek_v4",
    "harmony": "openai",
    "lfm_listed": "lfm2",
    "open_sep_close": "kimi_k3",
    "phi_system_tools": "phi4_mini_json",
    "recipients": "functionary_v3_2",
    "sections_unthinking": "kimi_k2",
}

# template → (message_start, what ends a turn)
TURNS = {
    "unasked_prompt": ("<|line_start|>assistant<|line_end|>\n", ("<|over|>",)),
    "hermes_think": ("<|im_start|>assistant\n", ("<|im_end|>",)),
    "command_action": ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", ("<|END_OF_TURN_TOKEN|>",)),
    "exaone_bars": ("[|assistant|]\n", ("[|endofturn|]",)),
    "glm_tight": ("<|assistant|>", ("<|user|>", "<|observation|>")),
    "indented_header": ("<|assistant|>    ", ("<|over|>",)),
    "loose_header": ("<|head|>assistant<|/head|>\n\n", ("<|over|>",)),
    "delimiter": ("<|begin_assistant|>\n", ("<|end|>",)),
    "phi_system_tools": ("<|assistant|>", ("<|end|>",)),
    "plain_words": ("Assistant:", ()),
    "mistral_args": ("", ()),
    "between_messages": ("assistant<|role_sep|>\n", ("<|message_sep|>",)),
    "announced_tags": ("]~b]ai\n", ("[e~[",)),
    "llama_pythonic": ("<|header_start|>assistant<|header_end|>\n\n", ("<|eot|>", "<|eom|>")),
    "name_as_key": ("<|assistant_start|>", ("<|assistant_end|>",)),
}


def settings_of(tools: Tools) -> dict[str, Any]:
    """The description's settings that are not the defaults, without outer white space, nested ones as a.b."""
    flat: dict[str, Any] = {}
    for key, value in msgspec.to_builtins(tools).items():
        if isinstance(value, dict):
            flat.update({f"{key}.{inner}": part for inner, part in value.items()})
        else:
            flat[key] = value
    stripped = {key: value.strip() if isinstance(value, str) else value for key, value in flat.items()}
    return {key: value for key, value in stripped.items() if value not in ("", [])}


@pytest.mark.parametrize("name", sorted(REASONING))
def test_reasoning(name: str) -> None:
    found = analyse(own(name))
    mode, (start, end) = REASONING[name]
    assert found.reasoning_mode == mode
    described = found.output_format.reasoning
    assert described is not None
    assert ([mark.strip() for mark in described.start] or [""])[0] == start
    assert described.end[0].strip() == end


def test_only_those_templates_reason() -> None:
    told = ("openai", "kimi_k2", "kimi_k3", "functionary_v3_2")
    derived = {name for name in own_names() if analyse(own(name)).family not in told}
    assert {name for name in derived if analyse(own(name)).output_format.reasoning} == set(REASONING)


@pytest.mark.parametrize("name", sorted(TOOLS))
def test_tools(name: str) -> None:
    found = analyse(own(name))
    mode, expected = TOOLS[name]
    assert found.tool_mode == mode
    assert found.output_format.tools is not None
    settings = settings_of(found.output_format.tools)
    ignored = ("style", "arguments.style", "arguments.value_prefix", "arguments.separator", "call_separator")
    kept = {key: value for key, value in settings.items() if key in expected or key not in ignored}
    assert {key: value for key, value in kept.items() if not key.startswith("json.") or key in expected} == expected
    assert found.python_dicts == (name == "python_dicts")


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_families_are_recognised_by_their_signs(name: str) -> None:
    found = analyse(own(name))
    assert found.family == FAMILIES[name]
    assert any(FAMILIES[name] in line for line in found.findings)


@pytest.mark.parametrize(
    ("template", "name"), [("coder_tags", "qwen3_coder"), ("hermes_think", "hermes"), ("dsml", "deepseek_v4")]
)
def test_a_served_model_is_read_as_its_family(template: str, name: str) -> None:
    """So a mend in the family's module reaches the models that are served with their own template. The markers stay the
    template's, which may have other line breaks."""
    served, own_format = analyse(own(template)).output_format, registry.named(name)
    assert served.tools is not None and own_format.tools is not None
    assert same_markers(served.tools, own_format.tools)
    assert set(markers(served, "calls")) == set(markers(own_format, "calls"))
    for sample in registry.SAMPLES[name]:
        if "<think>" not in sample.text and "</think>" not in sample.text:
            policy = Policy(tools=sample.tools, extract_reasoning=False)
            assert read(served, [sample.text], policy).calls == read(own_format, [sample.text], policy).calls
    for setting in ("bare", "commit", "undeclared", "failed", "truncated"):
        assert getattr(served.tools, setting) == getattr(own_format.tools, setting)
    assert served.tools.arguments.untyped == own_format.tools.arguments.untyped


def test_no_two_families_claim_the_same_markers() -> None:
    claims = [sign.name for sign in registry.SIGNS if sign.used_for == "what a template does not show of its calls"]
    for name in claims:
        tools = registry.named(name).tools
        assert [other for other in claims if same_markers(tools, registry.named(other).tools)] == [name]


def test_no_other_template_is_taken_for_a_family() -> None:
    assert {name: analyse(own(name)).family for name in own_names() if analyse(own(name)).family} == FAMILIES


def test_what_ends_reasoning_early() -> None:
    """The tags that open calls, where reasoning ends with a tag too; what a family's own description says; else
    nothing."""
    ends = {name: described.ended_by for name in REASONING if (described := analyse(own(name)).output_format.reasoning)}
    assert ends["kimi_id"] == ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")
    assert ends["hermes_think"] == ("<tool_call>",)
    assert ends["deepseek_fenced"] == ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    assert ends["dsml_blob"] == ("<｜DSML｜tool_calls>\n",)
    assert ends["mistral_args"] == ("[TOOL_CALLS]",)
    assert ends["announced_tags"] == ()


def test_thinking_that_is_on_by_default_is_left_alone() -> None:
    found = analyse(own("modes"))
    assert found.prompts["default"] == found.prompts["on"] == "<|start|>assistant\n"
    assert found.prompts["off"] == "<|start|>assistant\n</mull>"


def test_an_opener_in_front_of_old_answers_wraps_no_content() -> None:
    assert analyse(own("opened_answer")).output_format.content.start == ()


@pytest.mark.parametrize("name", ["harmony", "open_sep_close"])
def test_a_family_brings_its_own_description(name: str) -> None:
    found = analyse(own(name))
    named = registry.named(FAMILIES[name])
    assert found.output_format.channels == named.channels
    assert found.output_format.tools == named.tools
    assert found.output_format.message_start.strip() == found.message_start.strip() != ""


@pytest.mark.parametrize("name", sorted(TURNS))
def test_turns(name: str) -> None:
    found = analyse(own(name))
    start, stops = TURNS[name]
    assert found.message_start == start
    assert found.stops == stops
    assert found.ends_with_eos == (name in ("mistral_args", "mistral_list", "between_messages"))


def test_wrapped_content() -> None:
    wrapped = {name: analyse(own(name)).output_format.content for name in own_names()}
    found = {
        name: (c.start[0].strip(), c.end[0].strip(), c.wrapped) for name, c in wrapped.items() if c.start and c.end
    }
    assert found.pop("open_sep_close")[0] == "<|open|>response<|sep|>"
    assert found == {
        "addressed": ("to=user<|message|>", "<|eom|>", "always"),
        "command_action": ("<|START_TEXT|>", "<|END_TEXT|>", "always"),
        "planned_action": ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "always"),
        "enclosed_text": ("<|python_start|>", "<|python_end|>", "with_calls"),
        "ernie_response": ("<response>", "</response>", "always"),
        "granite_explained": ("<response>", "</response>", "with_reasoning"),
    }


SWITCHES: dict[str, tuple[str, str, Any]] = {
    "announced_tags": ("thinking_mode", "level", None),
    "between_messages": ("reasoning", "boolean", False),
    "dsml_blob": ("thinking", "boolean", False),
    "switch_in_system": ("/no_think", "text", True),
    "command_action": ("reasoning", "boolean", True),
    "deepseek_switch": ("thinking", "boolean", False),
    "indented_header": ("thinking", "boolean", False),
    "ernie_response": ("enable_thinking", "boolean", True),
    "exaone_bars": ("enable_thinking", "boolean", False),
    "glm_tight": ("enable_thinking", "boolean", True),
    "granite_explained": ("thinking", "boolean", False),
    "harmony": ("reasoning_effort", "level", "medium"),
    "hermes_think": ("enable_thinking", "boolean", True),
    "hunyuan_tags": ("reasoning_effort", "level", "minimal"),
    "modes": ("mode_of_thought", "level", "adaptive"),
    "name_as_key": ("enable_thinking", "boolean", False),
    "nemotron_word": ("/no_think", "text", True),
    "open_sep_close": ("thinking", "boolean", True),
    "seed_budget": ("thinking_budget", "budget", True),
    "thought_required": ("reasoning_effort", "level", "high"),
    "unthinking": ("reasoning_effort", "level", "no_think"),
}


def test_switches_by_whatever_name() -> None:
    found = {name: analyse(own(name)).switches for name in own_names()}
    assert {name: (s[0].name, s[0].kind, s[0].default) for name, s in found.items() if s} == SWITCHES
    assert all(len(switches) <= 1 for switches in found.values())


def test_prompts_by_switch() -> None:
    assert analyse(own("hermes_think")).prompts == {
        "default": "<|im_start|>assistant\n",
        "on": "<|im_start|>assistant\n",
        "off": "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    }
    assert analyse(own("switch_in_system")).prompts["off"].endswith("<think>\n\n</think>\n\n")
    assert analyse(own("announced_tags")).prompts["off"] == "]~b]ai\n</mm:think>"
    assert analyse(own("seed_budget")).prompts["off"].endswith("<seed:think><seed:cot_budget_reflect>")


# template → capabilities that differ from those of a template that can do everything in the usual way
CAPABILITIES: dict[str, dict[str, Any]] = {
    "hermes_think": {},
    "deepseek_fenced": {"arguments": "string", "call_content": "null", "text_with_calls": False, "tools": False},
    "gemma_turns": {
        "system_role": False,
        "alternation": True,
        "tools": False,
        "tool_calls": False,
        "parallel_calls": False,
        "tool_role": None,
    },
    "kimi_id": {"id_is_name": True},
    "llama_single": {"parallel_calls": False, "text_with_calls": False},
    "mistral_list": {"alternation": True, "short_ids": True, "text_with_calls": False},
    "name_as_key": {"arguments": "string"},
    "parts_only": {"string_content": False, "tools": False, "tool_calls": False, "parallel_calls": False},
    "phi_system_tools": {"tools_in_system": True, "tool_calls": False, "parallel_calls": False},
    "lfm_listed": {"tool_calls": False, "parallel_calls": False},
    "json_texts": {},
    "role_of_functions": {"tools_role": "functions", "arguments": "string"},
}


@pytest.mark.parametrize("name", sorted(CAPABILITIES))
def test_capabilities(name: str) -> None:
    usual = {"system_role": True, "tools": True, "tool_calls": True, "parallel_calls": True, "tool_role": "tool"}
    ignored = ("system_anywhere", "reasoning_field")
    found = analyse(own(name)).capabilities
    expected = {**msgspec.structs.asdict(analyser.Capabilities()), **usual, **CAPABILITIES[name]}
    differing = {key: value for key, value in msgspec.structs.asdict(found).items() if value != expected[key]}
    assert {key: value for key, value in differing.items() if key not in ignored} == {}


REASONING_FIELDS = {"harmony": "thinking", "mistral_args": "thinking_part", "hermes_think": "reasoning_content"}


@pytest.mark.parametrize("name", sorted(REASONING_FIELDS))
def test_where_reasoning_goes(name: str) -> None:
    assert analyse(own(name)).capabilities.reasoning_field == REASONING_FIELDS[name]


@pytest.mark.parametrize(
    "source", ["", "{% if %}", "{{ raise_exception('never') }}", "{{ messages[99].x.y }}", "hello", "{{ 1 / 0 }}"]
)
def test_a_hopeless_template_is_plain_text(source: str) -> None:
    found = analyse(source)
    assert found.output_format.tools is None
    assert found.output_format.reasoning is None
    assert found.findings


def test_a_misreading_never_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise LookupError("a mistake")

    monkeypatch.setattr(analyser, "analyse_content", broken)
    found = analyse(own("hermes_think") + "{# another text, so that it is not in the cache #}")
    assert "a mistake" in found.warnings[0]
    assert found.output_format.tools is None


def test_an_analysis_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    source = own("jamba_list") + "{# once #}"
    first = analyse(source)
    monkeypatch.setattr(ChatTemplate, "render", lambda *_, **__: pytest.fail("rendered again"))
    assert analyse(source) is first


def test_the_cache_is_bounded() -> None:
    for number in range(analyser.CACHE_SIZE + 5):
        analyse(f"{{{{ messages[0].content }}}} {number}")
    assert analyse.cache_info().currsize == analyser.CACHE_SIZE


@pytest.mark.parametrize("name", own_names())
def test_findings_explain(name: str) -> None:
    found: TemplateAnalysis = analyse(own(name))
    assert not found.warnings
    assert len(found.findings) >= 2
    assert all(isinstance(line, str) and line for line in found.findings)


def test_the_templates_own_indentation_is_no_part_of_a_call() -> None:
    tools = analyse(own("indented_header")).output_format.tools
    assert tools is not None
    assert (tools.section_start, tools.call_start, tools.call_end) == ("<|calls|>", "<|call|>", "<|/call|>")
    assert (tools.call_separator, tools.section_end) == ("", "<|/calls|>")


def test_what_a_template_adds_in_front_with_its_prompt_is_no_header() -> None:
    found = analyse(own("prompted_head"))
    assert found.message_start == found.prompts["default"] == "<|im_start|>assistant\n"


@pytest.mark.parametrize(("name", "lines"), [("prompted_head", True), ("action_fence", True), ("jamba_list", False)])
def test_json_over_several_lines(name: str, lines: bool) -> None:
    tools = analyse(own(name)).output_format.tools
    assert tools is not None and tools.lines == lines
