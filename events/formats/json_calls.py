"""Formats whose calls are JSON objects: `{"name": ..., "arguments": ...}` and its variants."""

from __future__ import annotations

from events.formats.output_format import Content, JsonKeys, OutputFormat, Tools
from events.formats.reasoning import REASONING

_PARAMETERS = JsonKeys(arguments="parameters")
_LIST = JsonKeys(array=True)


def _tagged_json(name: str, start: str, end: str, reasoning: str = "qwen3") -> OutputFormat:
    """Each call in its own tag."""
    tools = Tools(call_start=start, call_end=end)
    return OutputFormat(name=name, reasoning=REASONING[reasoning], tools=tools)


def _listed_json(name: str, start: str, end: str, keys: JsonKeys = _LIST, reasoning: str = "think") -> OutputFormat:
    """All calls in one JSON list."""
    tools = Tools(section_start=start, section_end=end, json=keys, call_separator=", ")
    return OutputFormat(name=name, reasoning=REASONING[reasoning], tools=tools)


_COHERE = OutputFormat(
    name="cohere_command3",
    reasoning=REASONING["cohere_command4"],
    content=Content(start=("<|START_RESPONSE|>", "<|START_TEXT|>"), end=("<|END_RESPONSE|>", "<|END_TEXT|>")),
    tools=Tools(
        section_start="<|START_ACTION|>[\n    ",
        section_end="\n]<|END_ACTION|>",
        call_separator=",\n    ",
        json=JsonKeys(name="tool_name", arguments="parameters", id="tool_call_id", array=True),
    ),
    drop=("<|END_OF_TURN_TOKEN|>",),
)
_LLAMA3 = OutputFormat(
    name="llama3_json",
    tools=Tools(section_start="<|python_tag|>", call_separator="; ", json=_PARAMETERS, bare="always"),
    drop=("<|eom_id|>", "<|eot_id|>"),
)
_GIGACHAT = OutputFormat(
    name="gigachat3",
    reasoning=REASONING["think"],
    tools=Tools(
        section_start="<|message_sep|>\n\nfunction call<|role_sep|>\n",
        json=JsonKeys(arguments_required=True),
        bare="never",
    ),
    spellings=(("<|function_call|>", "<|message_sep|>\n\nfunction call<|role_sep|>"),),
    drop=("</s>", "<|message_sep|>"),
)

JSON_CALLS: dict[str, OutputFormat] = {
    "hermes": OutputFormat(
        name="hermes",
        reasoning=REASONING["qwen3"],
        tools=Tools(call_start="<tool_call>\n", call_end="\n</tool_call>"),
        drop=("<|im_end|>",),
        spellings=(("<longcat_tool_call>", "<tool_call>"), ("</longcat_tool_call>", "</tool_call>")),
    ),
    "ernie45": OutputFormat(
        name="ernie45",
        reasoning=REASONING["ernie45"],
        content=Content(start=("<response>\n",), end=("\n</response>",)),
        tools=Tools(call_start="<tool_call>\n", call_end="\n</tool_call>"),
    ),
    "granite4": _tagged_json("granite4", "<tool_call>\n", "\n</tool_call>"),
    "longcat": OutputFormat(
        name="longcat",
        reasoning=REASONING["think"],
        tools=Tools(call_start="<longcat_tool_call>\n", call_end="\n</longcat_tool_call>"),
    ),
    "granite-20b-fc": _tagged_json("granite-20b-fc", "<function_call> ", "", reasoning="think"),
    "granite": OutputFormat(
        name="granite",
        reasoning=REASONING["granite"],
        tools=Tools(
            section_start="<|tool_call|> [", section_end="]", json=JsonKeys(array=True, array_only=True), failed="text"
        ),
        spellings=(("<tool_call>", "<|tool_call|>"),),
    ),
    "hunyuan_a13b": OutputFormat(
        name="hunyuan_a13b",
        reasoning=REASONING["hunyuan"],
        content=Content(start=("<answer>\n",), end=("\n</answer>",)),
        tools=Tools(section_start="<tool_calls>[", section_end="]</tool_calls>", json=_LIST, call_separator=", "),
    ),
    "jamba": _listed_json("jamba", "<tool_calls>[", "]</tool_calls>"),
    "internlm": OutputFormat(
        name="internlm",
        reasoning=REASONING["think"],
        tools=Tools(call_start="<|action_start|><|plugin|>\n", call_end="\n<|action_end|>", json=_PARAMETERS),
        drop=("<|im_end|>",),
    ),
    "phi4_mini_json": OutputFormat(
        name="phi4_mini_json",
        tools=Tools(section_start="functools[", section_end="]", json=_LIST, call_separator=", "),
    ),
    "xlam": OutputFormat(
        name="xlam",
        reasoning=REASONING["think"],
        tools=Tools(section_start="```json\n[", section_end="]\n```", json=_LIST, call_separator=", ", bare="always"),
        spellings=tuple((opener, "```json\n[") for opener in ("[TOOL_CALLS]", "<tool_call>", "```\n[", "```json[")),
        drop=("</tool_call>",),
    ),
    "apertus": _listed_json(
        "apertus", "<|tools_prefix|>[", "]<|tools_suffix|>", JsonKeys(array=True, name_is_key=True), "apertus2509"
    ),
    "cohere_command3": _COHERE,
    "llama3_json": _LLAMA3,
    "gigachat3": _GIGACHAT,
}
