"""A request's settings for thinking: the template's switches and variables, and the reasoning budget for the engine."""

from __future__ import annotations

import msgspec

from agent_server.engine_protocol.protocol import EngineInfo, Thought
from agent_server.models.prompting.prefill import open_marker, written_stage
from events.formats.output_format import OutputFormat
from events.options import GenerationOptions
from events.template.analyser import TemplateAnalysis
from events.template.environment import variables
from events.template.reasoning import MODES_OFF, Switch, nearest_level, switch_value
from events.template.writer import write

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
EFFORT_BUDGETS = {"minimal": 512, "low": 2048, "medium": 8192}
"""Reasoning tokens for an effort that the chat template has no level for; higher efforts are not limited."""


def template_variables(
    analysis: TemplateAnalysis, source: str, options: GenerationOptions, allowed: frozenset[str]
) -> tuple[dict[str, object], list[str]]:
    """Return (variables for the template, warnings). The request's own kwargs are used if they are allowed and plain
    data. `thinking` and `reasoning_effort` set the template's own switches and override the kwargs."""
    settable = HARMLESS | allowed | {switch.name for switch in analysis.switches}
    used = variables(source)
    template_variables: dict[str, object] = {}
    warnings: list[str] = []
    for name, value in options.template_kwargs.items():
        if name in _OURS or name not in settable or not _is_plain(value):
            warnings.append(f"the template variable {name!r} may not be set by a request and was ignored")
        elif name in used:
            template_variables[name] = value
    thinking, effort = options.thinking, options.reasoning_effort
    if thinking is None and effort is None:
        return template_variables, warnings
    nothing_to_turn_off = _off(thinking, effort) and analysis.reasoning_mode == "none"
    if not analysis.switches and not nothing_to_turn_off:
        warnings.append("the chat template has no switch for thinking; the setting has no effect")
    for switch in analysis.switches:
        given = template_variables.get(switch.name)
        if thinking and effort is None and given in switch.levels and given not in MODES_OFF:
            continue  # the request's own level, which is one of thinking
        setting = _value(switch, thinking, effort)
        if setting is not None and switch.kind != "text":
            template_variables[switch.name] = setting
    return template_variables, warnings


def switch_words(analysis: TemplateAnalysis, options: GenerationOptions) -> str:
    """Return the words that turn thinking off in the system message, for templates that look for them there; else
    ""."""
    words = [switch.name for switch in analysis.switches if switch.kind == "text"]
    return "\n".join(words) if _off(options.thinking, options.reasoning_effort) else ""


def _off(thinking: bool | None, effort: str | None) -> bool:
    return thinking is False or (thinking is None and effort == "none")


def _value(switch: Switch, thinking: bool | None, effort: str | None) -> bool | str | int | None:
    """Return the value for a switch, or None to leave it unset. If both options are set, `thinking` decides between on
    and off."""
    enabled = thinking if thinking is not None else effort != "none"
    if switch.kind != "level":
        return switch_value(switch, enabled)
    if not enabled:
        lowest = next((word for word in ("minimal", "low") if word in switch.levels), None)
        return switch_value(switch, False) or lowest
    level = nearest_level(switch, effort) if effort and effort != "none" else None
    return level or switch_value(switch, True)


def _is_plain(value: object, depth: int = 0) -> bool:
    """Return whether a value is JSON data of moderate size. Large numbers are refused because a template may loop up to
    them."""
    if isinstance(value, (bool, str)) or value is None:
        return True
    if isinstance(value, (int, float)):
        return abs(value) <= _MAX_NUMBER
    if depth > 8:
        return False
    if isinstance(value, dict):
        return all(_is_plain(item, depth + 1) for item in value.values())
    return isinstance(value, list) and all(_is_plain(item, depth + 1) for item in value)


class Budget(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The reasoning budget of one turn. options: the request's, with the budget for the engine. thought: how the model
    writes reasoning, for the engine; None if there is no budget. warnings: what was ignored."""

    options: GenerationOptions
    thought: Thought | None = None
    warnings: tuple[str, ...] = ()


def thinking_budget(
    output_format: OutputFormat,
    opened: str,
    analysis: TemplateAnalysis | None,
    options: GenerationOptions,
    info: EngineInfo,
) -> Budget:
    """Return the reasoning budget of one turn: the request's own, else that of its effort if the template has no such
    level.

    opened: the part of the answer that the prompt already contains. A budget that was not requested as
    `thinking_token_budget` (Anthropic's `budget_tokens`, an effort) is ignored if the engine does not support budgets.
    """
    budget = options.sampling.thinking_token_budget
    stated = "thinking_token_budget" in options.stated
    effort = options.reasoning_effort
    if budget is None and effort is not None and analysis is not None and options.thinking is not False:
        has_level = any(switch.kind == "level" and effort in switch.levels for switch in analysis.switches)
        budget = None if has_level else EFFORT_BUDGETS.get(effort)
    if budget is None or (not stated and "thinking_token_budget" not in info.sampling):
        warnings = (
            () if budget is None else ("this engine does not support reasoning budgets; reasoning is not limited",)
        )
        return Budget(options=_with_budget(options, None), warnings=warnings)
    return Budget(options=_with_budget(options, budget), thought=thought_of(output_format, opened))


def _with_budget(options: GenerationOptions, budget: int | None) -> GenerationOptions:
    sampling = msgspec.structs.replace(options.sampling, thinking_token_budget=budget)
    return msgspec.structs.replace(options, sampling=sampling)


def thought_of(output_format: OutputFormat, opened: str) -> Thought | None:
    """Return how the model opens and closes its reasoning; None if its format has no reasoning."""
    message = write(output_format, reasoning="\0", content="\1")
    _, separator, rest = message.partition("\0")
    close = rest.partition("\1")[0]
    if not separator or not close:
        return None
    if (channels := output_format.channels) is not None:
        # The ends of the headers that reasoning follows.
        headers = [route.header for route in channels.routes if route.to == "reasoning"]
        whole = [header for header in headers if header in channels.header_end]
        reasoning_headers = whole + [
            header + end for header in headers if header not in whole for end in channels.header_end
        ]
        starts = tuple(reasoning_headers)
        message_start = output_format.message_start.strip()
        if message_start and message_start not in close:
            # The answer is a message of its own, so reasoning is closed by its end and the answer's whole header.
            end = next((mark for mark in channels.end if close.startswith(mark)), "")
            close = end + message_start + close[len(end) :]
        return Thought(opened=open_marker(opened, starts, channels.end), start=starts, end=channels.end, close=close)
    reasoning_format = output_format.reasoning
    assert reasoning_format is not None
    starts = tuple(mark.strip() for mark in reasoning_format.start)
    ends = tuple(mark.strip() for mark in reasoning_format.end)
    pair = next((index for index, mark in enumerate(starts) if mark and opened.rstrip().endswith(mark)), 0)
    if pair < len(ends):  # the prompt may open another block than the canonical one (K2 Horizon)
        close = close.replace(ends[0], ends[pair])
    return Thought(
        opened=written_stage(output_format, opened) == "REASONING_STAGE", start=starts, end=ends, close=close
    )
