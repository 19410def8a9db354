"""A Chat Completions request → RunAgentInput and GenerationOptions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from adapters.body import check_depth, convert, decode, read_fields
from adapters.errors import RequestError
from adapters.history import NewId
from adapters.inbound import DEFAULT_LIMITS, Inbound, Limits
from adapters.openai_chat.fields import FIELDS
from adapters.openai_chat.messages import ChatMessage, read_messages
from adapters.request_fields import check_names, check_values
from adapters.sampling import KNOWN, check_tool_choice, read_options
from adapters.tool_list import Tools, ToolSpec, read_tools
from events.options import GenerationOptions


class ChatFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the outbound side must know of the request (`Inbound.extra`).

    logprobs: alternatives per token, None without log probabilities. named_tool: tool_choice named one function.
    """

    include_usage: bool = False
    logprobs: int | None = None
    token_ids: bool = False
    reasoning: bool = True
    named_tool: bool = False


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


def parse(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """`media`: kinds of content part that the model reads besides text. Raises RequestError."""
    raw = read_fields(body, limits)
    check_names(raw, FIELDS)
    values: dict[str, Any] = {
        name: decode(value, Any, name) for name, value in raw.items() if name not in ("messages", "tools")
    }
    check_values(values, FIELDS)
    for name, value in values.items():
        check_depth(value, limits.depth, name)
    tools = _tools(raw.get("tools"), limits)
    options, flags = _options(values, tools)
    if "messages" not in raw:
        raise RequestError("invalid_request", "messages is missing.", param="messages")
    messages: list[ChatMessage] = decode(raw["messages"], list[ChatMessage], "messages")
    run = RunAgentInput(
        thread_id=new_id("thread"),
        run_id=new_id("run"),
        messages=read_messages(messages, new_id=new_id, limits=limits, media=media),
        tools=tools.tools,
        context=[],
        state={},
        forwarded_props={},
    )
    return Inbound(input=run, options=options, stream=_stream(values), extra=flags)


def _stream(values: Mapping[str, Any]) -> bool:
    stream = values.get("stream") or False
    if not isinstance(stream, bool):
        raise RequestError("invalid_request", "stream must be true or false.", param="stream")
    return stream


def _options(values: dict[str, Any], tools: Tools) -> tuple[GenerationOptions, ChatFlags]:
    values = dict(values)
    reasoning = _reasoning(values)
    if values.get("user") is None:
        values["user"] = values.get("safety_identifier")
    if isinstance(values.get("logprobs"), int) and not isinstance(values["logprobs"], bool):
        raise RequestError("invalid_request", "logprobs must be true or false.", param="logprobs")
    options, _ = read_options({name: value for name, value in values.items() if name in KNOWN})
    check_tool_choice(options.tool_choice, tools.names)
    stream_options = _stream_options(values)
    changes = {"strict_tools": tools.strict, "store": values.get("store") is True}
    flags = ChatFlags(
        include_usage=bool(stream_options.include_usage),
        logprobs=options.sampling.logprobs,
        token_ids=values.get("return_token_ids") is True,
        reasoning=reasoning,
        named_tool=options.tool_choice.mode == "named",
    )
    return msgspec.structs.replace(options, **changes), flags


def _reasoning(values: dict[str, Any]) -> bool:
    """Reads `thinking`, `reasoning` and `include_reasoning` into the options' own names; whether to show reasoning."""
    thinking = values.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "disabled"):
        thinking = thinking["type"] == "enabled"
    if thinking is not None and not isinstance(thinking, bool):
        raise RequestError("invalid_request", "thinking must be true or false.", param="thinking")
    shown = values.get("include_reasoning")
    if shown is not None and not isinstance(shown, bool):
        raise RequestError("invalid_request", "include_reasoning must be true or false.", param="include_reasoning")
    given = _reasoning_options(values.get("reasoning"))
    enabled = given.enabled if thinking is None else thinking
    if enabled is not None and values.get("enable_thinking") is None:
        values["enable_thinking"] = enabled
    if given.effort is not None and values.get("reasoning_effort") is None:
        values["reasoning_effort"] = given.effort
    return shown is not False and not given.exclude


class ReasoningOptions(msgspec.Struct, forbid_unknown_fields=True):
    effort: Any = None
    enabled: bool | None = None
    exclude: bool | None = None


def _reasoning_options(value: Any) -> ReasoningOptions:
    return ReasoningOptions() if value is None else convert(value, ReasoningOptions, "reasoning")


def _stream_options(values: Mapping[str, Any]) -> StreamOptions:
    value = values.get("stream_options")
    if value is None:
        return StreamOptions()
    if values.get("stream") is not True:
        raise RequestError("invalid_request", "stream_options needs stream to be true.", param="stream_options")
    options: StreamOptions = convert(value, StreamOptions, "stream_options")
    for name in ("include_obfuscation", "continuous_usage_stats"):
        if getattr(options, name):
            at = f"stream_options.{name}"
            raise RequestError("invalid_request", f"{at} is not supported.", param=at)
    return options


class FunctionSpec(msgspec.Struct, forbid_unknown_fields=True):
    name: Any = None
    description: Any = None
    parameters: Any = None
    strict: Any = None


class ChatTool(msgspec.Struct):
    function: FunctionSpec | None = None
    type: Any = "function"


def _tools(raw: msgspec.Raw | None, limits: Limits) -> Tools:
    declared: list[ChatTool] | None = decode(raw, list[ChatTool] | None, "tools") if raw is not None else None
    return read_tools([_spec(tool, f"tools.{i}") for i, tool in enumerate(declared or ())], limits)


def _spec(tool: ChatTool, at: str) -> ToolSpec:
    if tool.type != "function" or tool.function is None:
        raise RequestError("invalid_request", f'{at}.type must be "function", with a function.', param=f"{at}.type")
    spec = tool.function
    return ToolSpec(spec.name, spec.description, spec.parameters, spec.strict, f"{at}.function")
