"""The format of a model of which only the name is known (an upstream engine without a chat template).

The rules are those of the streaming specification (docs/reading-output.md, "Sources"), section "Detection Logic": a
list of reasoning models, the request's thinking flag, three families of reasoning markers, four forms of tool calls.
If no reasoning is detected, text is content.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

from events.formats.output_format import Arguments, OutputFormat, Reasoning, Tools

REASONING_MODELS = ("deepseek-r1", "deepseek-r1-*", "qwq-*", "ministral-*-reasoning*", "*reasoning*", "*thinking*")
REASONING_MARKERS = (("<think>", "</think>"), ("<reasoning>", "</reasoning>"), ("<thought>", "</thought>"))

GENERIC_TOOLS = Tools(
    style="tag",
    section_start="[TOOL_CALLS]",
    call_start="<tool_call>\n",
    call_end="\n</tool_call>",
    name_prefix="<function=",
    name_suffix=">",
    arguments=Arguments(end="</function>"),
)
"""Mistral's list, Llama's function tag, Qwen's tag, and bare JSON with the name of a declared tool: a call that begins
with `{` is read as JSON in every format."""


def is_reasoning_model(model: str) -> bool:
    """Return whether a model's name, with or without its organisation, is in the specification's list."""
    name = model.lower().rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in REASONING_MODELS)


def detected_format(model: str, *, thinking: bool = True) -> OutputFormat:
    """Return the format of a model by its name. thinking: the request's flag."""
    starts, ends = zip(*REASONING_MARKERS, strict=True)
    reasoning = Reasoning(start=starts, end=ends) if thinking and is_reasoning_model(model) else None
    return OutputFormat(name="generic", reasoning=reasoning, tools=GENERIC_TOOLS)
