"""Template variables from a request: the thinking switches and the variables that a client may set."""

from __future__ import annotations

from typing import Any

from events.options import GenerationOptions
from events.template.analyser import TemplateAnalysis
from events.template.environment import variables
from events.template.reasoning import Switch, switch_value

# Variables of published templates that only choose between texts of the template, or add plain data.
HARMLESS = frozenset(
    {
        "add_vision_id",
        "builtin_tools",
        "citations",
        "clear_thinking",
        "date_string",
        "documents",
        "enable_citations",
        "enable_thinking",
        "keep_past_thinking",
        "model_identity",
        "preserve_thinking",
        "reasoning_effort",
        "thinking",
        "thinking_budget",
        "tools_in_user_message",
        "truncate_history_thinking",
        "user_system_prompt",
    }
)
_OURS = frozenset({"messages", "tools", "add_generation_prompt", "chat_template", "bos_token", "eos_token"})
_MAX_NUMBER = 10_000_000
_ON_LEVELS = ("medium", "high", "low", "max", "minimal", "xhigh")


def template_variables(
    analysis: TemplateAnalysis, source: str, options: GenerationOptions, allowed: frozenset[str]
) -> tuple[dict[str, Any], list[str]]:
    """(variables for the template, warnings). The request's own kwargs are used if they are on the list and plain data.
    `thinking` and `reasoning_effort` set the template's own switches and override the kwargs."""
    chosen, warnings = _kwargs(analysis, source, options.template_kwargs, allowed)
    thinking, effort = options.thinking, options.reasoning_effort
    if thinking is None and effort is None:
        return chosen, warnings
    if not analysis.switches:
        warnings.append("the chat template has no switch for thinking; the setting has no effect")
    for switch in analysis.switches:
        value = _value(switch, thinking, effort)
        if value is not None and switch.kind != "text":
            chosen[switch.name] = value
    return chosen, warnings


def switch_words(analysis: TemplateAnalysis, options: GenerationOptions) -> str:
    """The words that turn thinking off in the system message, for templates that look for them there; else ""."""
    off = options.thinking is False or (options.thinking is None and options.reasoning_effort == "none")
    words = [switch.name for switch in analysis.switches if switch.kind == "text"]
    return "\n".join(words) if off else ""


def _value(switch: Switch, thinking: bool | None, effort: str | None) -> bool | str | int | None:
    """The value for a switch; None to leave it unset. If both options are given, `thinking` decides between on and
    off."""
    wanted = thinking if thinking is not None else effort != "none"
    if switch.kind != "effort":
        return switch_value(switch, wanted)
    if not wanted:
        return "none" if "none" in switch.levels else next((e for e in ("minimal", "low") if e in switch.levels), None)
    if effort and effort != "none":
        return effort if effort in switch.levels else None
    return next((level for level in _ON_LEVELS if level in switch.levels), None) if switch.default == "none" else None


def _kwargs(
    analysis: TemplateAnalysis, source: str, given: dict[str, Any], allowed: frozenset[str]
) -> tuple[dict[str, Any], list[str]]:
    known = HARMLESS | allowed | {switch.name for switch in analysis.switches}
    read = variables(source)
    chosen: dict[str, Any] = {}
    warnings: list[str] = []
    for name, value in given.items():
        if name in _OURS or name not in known or not _is_plain(value):
            warnings.append(f"the template variable {name!r} may not be set by a request and was ignored")
        elif name in read:
            chosen[name] = value
    return chosen, warnings


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is JSON data of moderate size. Large numbers are refused because a template may loop up to
    one."""
    if isinstance(value, (bool, str)) or value is None:
        return True
    if isinstance(value, (int, float)):
        return abs(value) <= _MAX_NUMBER
    if depth > 8:
        return False
    if isinstance(value, dict):
        return all(_is_plain(item, depth + 1) for item in value.values())
    return isinstance(value, list) and all(_is_plain(item, depth + 1) for item in value)
