"""Formats by name: the 58 names of tool-call formats and those of reasoning, as users of other servers know them.

The chat template's own analysis comes first; a name selects by hand, reasoning and tools apart.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import msgspec

from events.formats import families
from events.formats.detection import detected_format
from events.formats.json_calls import JSON_CALLS
from events.formats.output_format import Content, OutputFormat, Reasoning
from events.formats.python_calls import PYTHON_CALLS
from events.formats.reasoning import REASONING
from events.formats.tagged_calls import TAGGED_CALLS


def _families() -> dict[str, ModuleType]:
    """The modules of events.formats.families by their format's name."""
    modules = [import_module(f"{families.__name__}.{found.name}") for found in iter_modules(families.__path__)]
    return {module.FORMAT.name: module for module in modules}


FAMILIES = _families()
FORMATS: dict[str, OutputFormat] = {
    **JSON_CALLS,
    **TAGGED_CALLS,
    **PYTHON_CALLS,
    **{name: module.FORMAT for name, module in FAMILIES.items()},
    "generic": detected_format("reasoning"),
}

ALIASES = {
    "cohere_command4": "cohere_command3",
    "deepseek_v3_0324": "deepseek_v3",
    "deepseek_v3_1": "deepseek_v31",
    "ernie_45": "ernie45",
    "gigachat35": "gigachat3",
    "granite_thinking": "qwen3_coder",
    "hf": "generic",
    "hunyuan": "hy_v3",
    "interns1": "internlm",
    "kimi": "kimi_k2",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "minicpmv": "qwen3_coder",
    "muse_glimmer": "muse",
    "musespark1x": "muse",
    "nemotron_3": "qwen3_coder",
    "nemotron_v3": "qwen3_coder",
    **{alias: name for name, module in FAMILIES.items() for alias in getattr(module, "NAMES", ())},
    "qwen25_json": "hermes",
    "qwen3": "hermes",
    "qwen3_json": "hermes",
    "qwen3_xml": "qwen3_coder",
    "step5": "step3p5",
}
"""Other name → tool-call format, after `_normal`."""

REASONING_ALIASES = {
    "apertus": "apertus2509",
    "cohere_command3": "cohere_command4",
    "deepseek_v3.1": "deepseek-v3",
    "deepseek_v3-0324": "deepseek-v3",
    "deepseek_v31": "deepseek-v3",
    "deepseek_v32": "deepseek-v4",
    "deepseek_v41": "deepseek-v4",
    "dots": "glm45",
    "glm47": "glm45",
    "granite_thinking_parser": "qwen3",
    "hunyuan_a13b": "hunyuan",
    "interns1": "qwen3",
    "iquest_q1": "deepseek-r1",
    "kimi": "kimi_k2",
    "mimo": "qwen3",
    "minimax": "qwen3",
    "minimax_m2": "qwen3",
    "nanbeige": "qwen3",
    "nemotron_v3": "nemotron_3",
    "openai": "gpt-oss",
    "poolside_v1": "qwen3",
    "qwen3_thinking": "qwen3",
    "qwen3_coder": "qwen3",
    "step3p5": "step3",
    "step5": "step3",
}


def _normal(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(".", "_")


_BY_NAME = {_normal(name): output_format for name, output_format in FORMATS.items()} | {
    _normal(alias): FORMATS[target] for alias, target in ALIASES.items()
}
_REASONING_BY_NAME = {_normal(name): reasoning for name, reasoning in REASONING.items()} | {
    _normal(alias): REASONING[target] for alias, target in REASONING_ALIASES.items()
}

_OWN_REASONING = frozenset({"nemotron_v3", "nemotron_3"})


def named(name: str) -> OutputFormat:
    """The format of this name. KeyError with the known names if there is none."""
    normal = _normal(name)
    if normal in _OWN_REASONING:
        return msgspec.structs.replace(_BY_NAME[normal], reasoning=_REASONING_BY_NAME[normal])
    if normal in _BY_NAME:
        return _BY_NAME[normal]
    if normal == "minimax_append_think":
        return OutputFormat(name=name, content=Content(prefix="<think>"), tools=FORMATS["minimax_m2"].tools)
    if normal in _REASONING_BY_NAME:
        return OutputFormat(name=name, reasoning=_REASONING_BY_NAME[normal], tools=FORMATS["hermes"].tools)
    raise KeyError(f"no format is called {name!r}; known: {', '.join(sorted(_BY_NAME))}")


def reasoning_named(name: str) -> Reasoning | None:
    """The reasoning of this name, among reasoning's own names or those of whole formats."""
    normal = _normal(name)
    return _REASONING_BY_NAME[normal] if normal in _REASONING_BY_NAME else named(name).reasoning


def select(
    base: OutputFormat, *, reasoning_parser: str | None = None, tool_call_parser: str | None = None
) -> OutputFormat:
    """`base` with reasoning and tool calls replaced by those of the names given."""
    if tool_call_parser:
        chosen = named(tool_call_parser)
        keep = base.reasoning if base.reasoning and not reasoning_parser else chosen.reasoning
        base = msgspec.structs.replace(chosen, reasoning=keep, message_start=base.message_start)
    if reasoning_parser:
        base = msgspec.structs.replace(base, reasoning=reasoning_named(reasoning_parser))
    return base
