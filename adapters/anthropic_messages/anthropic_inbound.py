"""A Messages request → RunAgentInput and GenerationOptions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
from ag_ui.core import Message, RunAgentInput, SystemMessage

from adapters.anthropic_messages.anthropic_content import MessageParam, read_turns, sealed_thread, system_text
from adapters.anthropic_messages.anthropic_fields import COUNTED, FIELDS
from adapters.anthropic_messages.anthropic_tools import anthropic_tools
from adapters.body import Lenient, convert, flag, read_object, wrong
from adapters.client_history import NewId
from adapters.inbound import DEFAULT_LIMITS, Inbound, Limits
from adapters.leniency import known_only, notes_of_request
from adapters.request_fields import SCHEDULING, read_fields
from adapters.request_options import SAMPLING, read_options
from adapters.response_shape import response_format
from adapters.tool_choice import check_tool_choice
from adapters.tool_list import ToolList
from events.options import GenerationOptions, OptionError, SamplingParams, ToolChoice

OPTIONS = ("model", *SCHEDULING, *SAMPLING["messages"])


class MessageFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the outbound side must know of the request (`Inbound.extra`).

    max_tokens: of the answer; one that ends for its length with fewer has filled the context.
    """

    hide_thinking: bool = False
    max_tokens: int = 0
    stop_sequences: tuple[str, ...] = ()


class _TurnHead(msgspec.Struct):
    role: Literal["user", "assistant", "system"]


class _AnthropicHead(msgspec.Struct):
    messages: list[_TurnHead]


def parse(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """`media`: kinds of content besides text that the model reads. Raises RequestError."""
    values = _values(body, limits)
    if values.get("max_tokens") is None:
        raise wrong("max_tokens", "is required")
    return _inbound(values, new_id, limits, media)


def parse_count(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """A count_tokens request: the same, without what only matters to generation."""
    values = known_only(_values(body, limits), COUNTED)
    return _inbound(values, new_id, limits, media)


def _values(body: bytes, limits: Limits) -> dict[str, object]:
    values = read_fields(read_object(body, limits, shape=_AnthropicHead), FIELDS)
    return values


def _inbound(values: dict[str, object], new_id: NewId, limits: Limits, media: Collection[str]) -> Inbound:
    turns: list[MessageParam] = convert(values["messages"], list[MessageParam], "messages")
    tools = anthropic_tools(values.get("tools"), turns, limits)
    messages = read_turns(turns, new_id=new_id, limits=limits, media=media)
    if system := system_text(values.get("system")):
        messages.insert(0, SystemMessage(id=new_id("msg"), content=system))
    options, flags = _options(values, tools, messages, turns)
    run = RunAgentInput(
        thread_id=sealed_thread(turns) or new_id("thread"),
        run_id=new_id("run"),
        messages=messages,
        tools=tools.tools,
        context=[],
        state={},
        forwarded_props={},
    )
    return Inbound(input=run, options=options, stream=flag(values, "stream"), extra=flags)


def _options(
    values: dict[str, object], tools: ToolList, messages: list[Message], turns: Sequence[MessageParam]
) -> tuple[GenerationOptions, MessageFlags]:
    given = {name: values[name] for name in OPTIONS if name in values}
    _check_stop_sequences(values.get("stop_sequences"))
    given["user"] = _user(values.get("metadata"))
    config: OutputConfig = convert(values.get("output_config") or {}, OutputConfig, "output_config")
    later: list[OutputConfig] = [
        convert(turn.output_config, OutputConfig, f"messages.{i}.output_config")
        for i, turn in enumerate(turns)
        if turn.output_config is not None
    ]  # of system messages, which set the effort from there on
    given["reasoning_effort"] = next((each.effort for each in reversed(later) if each.effort), config.effort)
    options, _ = read_options(given, wire="messages")
    choice: Choice = convert(values.get("tool_choice") or {}, Choice, "tool_choice")
    wanted = _tool_choice(choice)
    check_tool_choice(wanted, tools.names)
    thinking: Thinking = convert(values.get("thinking") or {}, Thinking, "thinking")
    if thinking.display not in (None, "summarized", "omitted", "full"):
        notes_of_request().warn("thinking.display changes nothing: thinking is shown as it is written.")
    shape = response_format("output_config.format", config.format) if config.format is not None else None
    sampling = options.sampling
    if thinking.type != "disabled" and sampling.thinking_token_budget is None:
        sampling = with_budget(sampling, thinking.budget_tokens)
    changes = {
        "sampling": sampling,
        "response_format": shape,
        "strict_tools": tools.strict,
        "tool_choice": wanted,
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
        "thinking": {"enabled": True, "disabled": False}.get(thinking.type),
        "continue_final_message": _is_prefill(messages[-1]),
        "store": False,
    }
    flags = MessageFlags(hide_thinking=thinking.display == "omitted", stop_sequences=options.sampling.stop)
    return msgspec.structs.replace(options, **changes), flags


def with_budget(sampling: SamplingParams, budget: int | None) -> SamplingParams:
    """`thinking.budget_tokens`, which every request for thinking has to have, is not `stated`: it is dropped with a
    warning where no engine can keep it."""
    found = msgspec.structs.replace(sampling, thinking_token_budget=budget)
    try:
        found.validate()
    except OptionError as error:
        raise wrong("thinking.budget_tokens", error.message.removesuffix(".")) from None
    return found


def _is_prefill(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content) and not message.tool_calls


def _check_stop_sequences(value: object) -> None:
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise wrong("stop_sequences", "must be an array of strings")


def _user(metadata: object) -> object:
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("user_id", ""), str | None):
        raise wrong("metadata", "must be an object, its user_id a string")
    return metadata.get("user_id")


class OutputConfig(Lenient, frozen=True):
    effort: object = None
    format: Any = None


class Thinking(Lenient, frozen=True):
    """Absent means off on this wire; "adaptive" and "between_tools" leave it to the model."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = "disabled"
    budget_tokens: int | None = None
    display: str | None = None


class Choice(Lenient, frozen=True):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


def _tool_choice(choice: Choice) -> ToolChoice:
    if choice.type == "tool":
        if not choice.name:
            raise wrong("tool_choice.name", "is required")
        return ToolChoice(mode="named", names=(choice.name,))
    mode: Literal["auto", "required", "none"] = "required" if choice.type == "any" else choice.type
    return ToolChoice(mode=mode)
