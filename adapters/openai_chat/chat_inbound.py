"""A Chat Completions request → RunAgentInput and GenerationOptions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from ag_ui.core import Message, RunAgentInput, Tool

from adapters.body import DEFAULT_LIMITS, Inbound, Lenient, Limits, convert, flag, notes_of_request, read_object, wrong
from adapters.client_history import NewId
from adapters.openai_chat.chat_messages import ChatMessage, read_messages
from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OBJECTS,
    OTHER_SERVERS,
    STRING,
    STRINGS,
    Field,
    accepted,
    honoured,
    ignored,
    one_of,
    read_fields,
    refused,
    sampling_fields,
)
from adapters.request_options import EFFORTS, check_tool_choice, llama_shape, read_options
from adapters.request_tools import ToolList, ToolSpec, custom_spec, read_tools
from events.options import GenerationOptions

FIELDS: dict[str, Field] = {
    **sampling_fields("chat"),
    # the protocol's own
    "messages": honoured("text and, where the model reads it, images, audio, video and files", OBJECTS),
    "model": honoured("a name of `/v1/models`", STRING),
    "logprobs": honoured("reports each token's log probability", BOOLEAN),
    "max_completion_tokens": honoured("wins over `max_tokens`", INTEGER),
    "metadata": honoured("kept with the run", OBJECT),
    "n": honoured("answers to the same messages", INTEGER),
    "parallel_tool_calls": honoured("false allows one call", BOOLEAN),
    "reasoning_effort": honoured('"none" switches thinking off', one_of(*EFFORTS)),
    "response_format": honoured("text, json_object (a `schema` beside it counts), json_schema, structural_tag", OBJECT),
    "store": honoured("true keeps the exchange as a thread", BOOLEAN),
    "stream": honoured("", BOOLEAN),
    "stream_options": honoured(
        "`include_usage`, `continuous_usage_stats`; `include_obfuscation: true` changes nothing", OBJECT
    ),
    "tool_choice": honoured(
        "auto, none, required, a function, a custom tool, allowed_tools", {"type": ["string", "object"]}
    ),
    "tools": honoured("functions, and custom tools with text, a Lark grammar or a regular expression", OBJECTS),
    "user": honoured("kept with the run", STRING),
    "safety_identifier": honoured("as `user`, where that is absent", STRING),
    "prompt_cache_key": accepted("prefixes are cached by their content, whatever the key"),
    "prompt_cache_retention": accepted("prefixes stay cached while there is room"),
    "prompt_cache_options": accepted("prefixes are cached by their content, whatever the breakpoints"),
    "service_tier": ignored("there is one tier", neutral=("auto", "default"), schema=STRING),
    "modalities": refused("answers are text", neutral=(["text"],), schema=STRINGS),
    "verbosity": ignored("models have no such switch", neutral=("medium",), schema=STRING),
    "audio": refused("answers are text"),
    "function_call": honoured("`tool_choice` as it was before; with `functions`", {"type": ["string", "object"]}),
    "functions": honoured("`tools` as they were before; answered by `function_call`", OBJECTS),
    "moderation": refused("nothing is moderated"),
    "prediction": ignored("there is no speculative decoding from a given text"),
    "web_search_options": ignored("nothing is searched"),
    # what other open servers accept
    "structured_outputs": honoured("json, json_object, regex, choice, grammar, structural_tag", OBJECT),
    "chat_template_kwargs": honoured("variables for the chat template; never the template itself", OBJECT),
    "continue_final_message": honoured("the last assistant message is a prefill", BOOLEAN),
    "add_generation_prompt": honoured("false ends the prompt with the last message", BOOLEAN),
    "return_token_ids": honoured("`token_ids` on each choice, `prompt_token_ids` where known", BOOLEAN),
    "enable_thinking": honoured("", BOOLEAN),
    "thinking": honoured('true or false, or an object whose `type` is "enabled" or "disabled"'),
    "reasoning": honoured("`effort`, `enabled`, `exclude`", OBJECT),
    "include_reasoning": honoured("false leaves reasoning out of the answer", BOOLEAN),
    "echo": refused("use `continue_final_message`", neutral=(False,)),
    "include_stop_str_in_output": honoured("the stop string that matched ends the answer's text", BOOLEAN),
    **OTHER_SERVERS,
    # this server's own
    "delivery": honoured('"immediate" or "adaptive" pieces', one_of("immediate", "adaptive")),
    "boundaries": honoured('"strict" makes a broken tool call an error', one_of("lenient", "strict")),
    "constrain_tools": honoured("false lets tool calls be generated without a grammar", BOOLEAN),
}


class ChatFlags(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the outbound side needs of the request (`Inbound.extra`).

    logprobs: alternatives per token, None without log probabilities. named_tool: tool_choice names one function.
    functions: the request declares `functions`, which `tools` replaced. include_stop: a stop string that matched is
    part of the text. continuous_usage: every chunk has the usage so far. prompt_logprobs: alternatives for each token
    of the prompt, None without them. timings: report durations in llama.cpp's form. progress: report the prompt's
    progress. as_ids: log probabilities name tokens by their ids. custom: names of custom tools.
    """

    include_usage: bool = False
    logprobs: int | None = None
    token_ids: bool = False
    reasoning: bool = True
    named_tool: bool = False
    functions: bool = False
    include_stop: bool = False
    continuous_usage: bool = False
    prompt_logprobs: int | None = None
    timings: bool = False
    progress: bool = False
    as_ids: bool = False
    custom: frozenset[str] = frozenset()


class _ChatMessageHead(msgspec.Struct):
    role: str


class _ChatHead(msgspec.Struct):
    """The fields that every body must have; a list of empty messages is refused at its first item."""

    messages: list[_ChatMessageHead]


class ChatStreamOptions(Lenient, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def continuous(self) -> bool:
        """Whether every chunk has the usage so far; as in vLLM, only together with `include_usage`."""
        return bool(self.include_usage and self.continuous_usage_stats)


def parse(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """Read a Chat Completions body. media: kinds of content besides text that the model reads. Raises RequestError."""
    values = read_fields(read_object(body, limits, shape=_ChatHead), FIELDS)
    values = _modern(values)
    tools = _tools(values.get("tools"), limits)
    options, flags = _options(values, tools)
    run = RunAgentInput(
        thread_id=new_id("thread"),
        run_id=new_id("run"),
        messages=_messages(values["messages"], new_id=new_id, limits=limits, media=media),
        tools=tools.tools,
        context=[],
        state={},
        forwarded_props={},
    )
    return Inbound(input=run, options=options, stream=flag(values, "stream"), extra=flags)


def read_conversation(
    values: dict[str, object], *, new_id: NewId, limits: Limits, media: Collection[str] = ()
) -> tuple[list[Message], list[Tool]]:
    """Read the messages and tools of a request of another endpoint. Raises RequestError."""
    tools = _tools(values.get("tools"), limits).tools
    return _messages(values.get("messages"), new_id=new_id, limits=limits, media=media), tools


def _messages(value: object, *, new_id: NewId, limits: Limits, media: Collection[str]) -> list[Message]:
    messages: list[ChatMessage] = convert(value, list[ChatMessage], "messages")
    return read_messages(messages, new_id=new_id, limits=limits, media=media)


def _modern(values: dict[str, object]) -> dict[str, object]:
    """Convert the deprecated `functions` and `function_call` to `tools` and `tool_choice`."""
    functions, choice = values.get("functions"), values.get("function_call")
    if functions is None:
        if choice is not None:
            raise wrong("function_call", "needs functions")
        return values
    if values.get("tools") is not None or values.get("tool_choice") is not None:
        raise wrong("functions", "cannot be combined with tools; leave functions out")
    if functions == []:
        raise wrong("functions", "must not be empty")
    declared: list[FunctionSpec] = convert(functions, list[FunctionSpec], "functions")
    tools = [{"type": "function", "function": msgspec.to_builtins(function)} for function in declared]
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return {**values, "tools": tools, "tool_choice": choice, "parallel_tool_calls": False}


def _options(values: dict[str, object], tools: ToolList) -> tuple[GenerationOptions, ChatFlags]:
    values = dict(values)
    reasoning = _reasoning(values)
    if values.get("user") is None:
        values["user"] = values.get("safety_identifier")
    if isinstance(values.get("logprobs"), int) and not isinstance(values["logprobs"], bool):
        raise wrong("logprobs", "must be true or false")
    options, _ = read_options(values, wire="chat")
    check_tool_choice(options.tool_choice, tools.names)
    stream_options = read_stream_options(values)
    if options.sampling.prompt_logprobs is not None and values.get("stream") is True:
        raise wrong("prompt_logprobs", "cannot be streamed")
    if options.special_tokens and tools.tools and options.tool_choice.mode != "none":
        raise wrong("skip_special_tokens", "must be true if there are tools: otherwise calls are not parsed")
    changes: dict[str, object] = {
        "strict_tools": tools.strict,
        "tool_grammars": dict(tools.grammars),
        "store": values.get("store") is True,
    }
    if (shape := llama_shape(values)) is not None:
        changes["response_format"] = shape
    flags = ChatFlags(
        include_usage=bool(stream_options.include_usage),
        logprobs=options.sampling.logprobs,
        token_ids=values.get("return_token_ids") is True,
        reasoning=reasoning,
        named_tool=options.tool_choice.mode == "named",
        functions=values.get("functions") is not None,
        include_stop=flag(values, "include_stop_str_in_output"),
        continuous_usage=stream_options.continuous,
        prompt_logprobs=options.sampling.prompt_logprobs,
        timings=flag(values, "timings_per_token"),
        progress=options.prompt_progress,
        as_ids=flag(values, "return_tokens_as_token_ids"),
        custom=tools.custom,
    )
    if flags.continuous_usage or flags.prompt_logprobs is not None:
        changes["token_details"] = True
    return msgspec.structs.replace(options, **changes), flags


def _reasoning(values: dict[str, object]) -> bool:
    """Convert `thinking` and `reasoning` to the options' own names in `values`; return whether to show reasoning."""
    thinking = values.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "disabled"):
        thinking = thinking["type"] == "enabled"
    if thinking is not None and not isinstance(thinking, bool):
        raise wrong("thinking", "must be true or false")
    config: ReasoningOptions = convert(values.get("reasoning") or {}, ReasoningOptions, "reasoning")
    enabled = config.enabled if thinking is None else thinking
    if enabled is not None and values.get("enable_thinking") is None:
        values["enable_thinking"] = enabled
    if config.effort is not None and values.get("reasoning_effort") is None:
        values["reasoning_effort"] = config.effort
    return flag(values, "include_reasoning", True) and not config.exclude


class ReasoningOptions(Lenient, frozen=True):
    effort: object = None
    enabled: bool | None = None
    exclude: bool | None = None


def read_stream_options(values: Mapping[str, object]) -> ChatStreamOptions:
    value = values.get("stream_options")
    if value is None:
        return ChatStreamOptions()
    if values.get("stream") is not True:
        raise wrong("stream_options", "needs stream to be true")
    options: ChatStreamOptions = convert(value, ChatStreamOptions, "stream_options")
    if options.include_obfuscation:
        notes_of_request().warn("stream_options.include_obfuscation changes nothing: frames are not padded.")
    return options


class FunctionSpec(Lenient, frozen=True):
    name: Any = None
    description: object = None
    parameters: Any = None
    strict: Any = None


class ChatTool(Lenient, frozen=True):
    function: FunctionSpec | None = None
    type: Any = "function"
    custom: dict[str, object] | None = None


def _tools(value: object, limits: Limits) -> ToolList:
    declared: list[ChatTool] = convert(value, list[ChatTool], "tools") if value is not None else []
    return read_tools([_spec(tool, f"tools.{i}") for i, tool in enumerate(declared)], limits)


def _spec(tool: ChatTool, at: str) -> ToolSpec:
    if tool.type == "custom" and tool.custom is not None:
        return custom_spec(tool.custom, f"{at}.custom")
    if tool.type != "function" or tool.function is None:
        raise wrong(f"{at}.type", 'must be "function", with a function, or "custom", with a custom tool')
    spec = tool.function
    return ToolSpec(spec.name, spec.description, spec.parameters, spec.strict, f"{at}.function")
