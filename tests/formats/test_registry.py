"""Formats by name, reasoning and tools apart; detection where there is only a model's name."""

import msgspec
import pytest

from events.formats.detection import detected_format, is_reasoning_model
from events.formats.output_format import OutputFormat, Reasoning, markers
from events.formats.registry import FORMATS, named, reasoning_named, select
from events.parsing.policy import Policy
from tests.formats.reading import read

TOOL_NAMES = [
    "dots",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "cohere_command3",
    "cohere_command4",
    "ernie45",
    "glm45",
    "glm47",
    "ling3",
    "granite-20b-fc",
    "granite",
    "granite4",
    "hermes",
    "hf",
    "beam",
    "poolside_v1",
    "hunyuan_a13b",
    "hy_v3",
    "hy_v4",
    "internlm",
    "jamba",
    "lfm2",
    "kimi_k2",
    "kimi_k3",
    "k2_horizon",
    "llama3_json",
    "llama4_json",
    "llama4_pythonic",
    "longcat",
    "mimo",
    "minimax_m2",
    "minimax_m3",
    "minicpm5",
    "mistral",
    "olmo3",
    "plamo3",
    "muse",
    "muse_glimmer",
    "musespark1x",
    "openai",
    "phi4_mini_json",
    "pythonic",
    "qwen3_coder",
    "qwen3_json",
    "qwen3_xml",
    "seed_oss",
    "step3",
    "step3p5",
    "step5",
    "inkling",
    "xlam",
    "gigachat3",
    "functiongemma",
    "gemma4",
    "apertus",
]
REASONING_NAMES = [
    "apertus2509",
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "deepseek-v41",
    "dots",
    "glm45",
    "ling3",
    "hunyuan",
    "gpt-oss",
    "k2_horizon",
    "kimi_k2",
    "kimi_k3",
    "mimo",
    "muse",
    "poolside_v1",
    "qwen3",
    "qwen3-thinking",
    "minimax",
    "minimax-append-think",
    "minimax-m3",
    "nanbeige",
    "step3",
    "step3p5",
    "nemotron_3",
    "granite_thinking_parser",
    "interns1",
    "gemma4",
    "gigachat35",
    "inkling",
    "iquest_q1",
    "cohere_command4",
    "openai_gptoss",
    "holo2",
    "minimax_m2_append_think",
]
SGLANG_TOOL_NAMES = ["deepseekv3", "deepseekv31", "deepseekv32", "glm", "llama3", "qwen", "qwen25", "trinity"]
DEEPSEEK = ("deepseek", "deepseek-r1", "deepseek-v3.1", "deepseek-v3-0324")


@pytest.mark.parametrize("name", [*TOOL_NAMES, *SGLANG_TOOL_NAMES, *DEEPSEEK])
def test_every_tool_name_selects_calls(name: str):
    assert named(name).tools is not None
    assert select(OutputFormat(), tool_call_parser=name).tools == named(name).tools


@pytest.mark.parametrize("name", [*REASONING_NAMES, *DEEPSEEK])
def test_every_reasoning_name_selects_reasoning(name: str):
    found = reasoning_named(name)
    assert isinstance(found, Reasoning) or named(name).content.prefix or named(name).channels


def test_reasoning_and_tools_are_chosen_apart():
    chosen = select(named("hermes"), reasoning_parser="mistral", tool_call_parser="glm45")
    text = "[THINK]Hm.[/THINK]<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    found = read(chosen, [text], Policy(tools={"f": {}}))
    assert found.reasoning == "Hm."
    assert found.calls == [("f", "", '{"a": 1}')]


def test_an_unknown_name_names_the_known_ones():
    with pytest.raises(KeyError, match="hermes"):
        named("nonsense")


@pytest.mark.parametrize("output_format", FORMATS.values(), ids=list(FORMATS))
def test_a_format_is_plain_data(output_format: OutputFormat):
    assert msgspec.json.decode(msgspec.json.encode(output_format), type=OutputFormat) == output_format
    assert all(marker == marker.strip() for marker in markers(output_format))


def test_minimax_append_think_shows_the_opener():
    assert read(named("minimax-append-think"), ["Hm.</think>Yes."], Policy()).content == "<think>Hm.</think>Yes."


@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        ("deepseek-r1", True),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", True),
        ("QwQ-32B", True),
        ("Ministral-3-14B-Reasoning-2512", True),
        ("Kimi-K2-Thinking", True),
        ("deepseek-v3", False),
        ("llama-3.1-8b", False),
    ],
)
def test_reasoning_models_by_name(model: str, reasons: bool):
    assert is_reasoning_model(model) is reasons


@pytest.mark.parametrize("tag", ["think", "reasoning", "thought"])
def test_undetected_reasoning_is_content(tag: str):
    text = f"<{tag}>Hm.</{tag}>Yes."
    assert read(detected_format("qwq-32b"), [text], Policy())[:2] == ("Hm.", "Yes.")
    assert read(detected_format("qwq-32b", thinking=False), [text], Policy())[:2] == ("", text)
    assert read(detected_format("llama-3"), [text], Policy())[:2] == ("", text)
