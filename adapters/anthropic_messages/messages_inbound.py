"""A request of Anthropic's Messages → RunAgentInput and GenerationOptions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

import msgspec
from ag_ui.core import Message, RunAgentInput, SystemMessage

from adapters.anthropic_messages.content_blocks import MessageParam, read_turns, sealed_thread, system_text
from adapters.body import (
    DEFAULT_LIMITS,
    Inbound,
    Lenient,
    Limits,
    convert,
    flag,
    known_only,
    notes_of_request,
    read_object,
    wrong,
)
from adapters.client_history import NewId
from adapters.mcp_request import anthropic_servers
from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OBJECTS,
    SCHEDULING,
    STRING,
    Field,
    accepted,
    honoured,
    ignored,
    read_fields,
    refused,
    sampling_fields,
)
from adapters.request_options import SAMPLING, check_tool_choice, read_options, response_format
from adapters.request_tools import ToolList, ToolSpec, read_tools
from events.options import GenerationOptions, OptionError, SamplingParams, ToolChoice

_SAMPLING = sampling_fields("messages")
FIELDS: dict[str, Field] = {
    **_SAMPLING,
    "max_tokens": honoured("required; limited to what the prompt leaves of the context", INTEGER),
    "messages": honoured("an assistant message at the end is a prefill", OBJECTS),
    "model": honoured("a name of `/v1/models`", STRING),
    "metadata": honoured("`user_id` is kept with the run", OBJECT),
    "output_config": honoured("`effort`; `format` json_schema", OBJECT),
    "output_format": honoured("the beta's name of `output_config.format`", OBJECT),
    "stream": honoured("", BOOLEAN),
    "system": honoured("text, or text blocks", {"anyOf": [STRING, OBJECTS]}),
    "thinking": honoured("off if absent; `budget_tokens` bounds it where the engine can", OBJECT),
    "tool_choice": honoured("auto, any, tool, none; `disable_parallel_tool_use`", OBJECT),
    "tools": honoured(
        "the client's own, deferred ones too, `bash`, `text_editor`, `memory`; what Anthropic's service runs is left "
        "out with a warning",
        OBJECTS,
    ),
    "cache_control": accepted("prefixes are cached by content; the marks are not used"),
    "context_management": accepted("the history is used as it is sent"),
    "service_tier": ignored("there is one tier", neutral=("auto", "standard_only")),
    "speed": ignored("there is one speed", neutral=("standard",)),
    "container": ignored("there are no containers"),
    "diagnostics": ignored("nothing is compared with earlier requests"),
    "inference_geo": refused("there is one place"),
    "mcp_servers": honoured("those that the operator allows; `mcp_toolset` chooses their tools", OBJECTS),
    "thread": refused("conversations are sent whole", code="thread_unsupported_request"),
    "user_profile_id": ignored("there are no profiles"),
    "workspace_id": ignored("the API key identifies the caller"),
    **SCHEDULING,
}
COUNTED = frozenset(FIELDS) - frozenset(_SAMPLING) - {"stream", "metadata", *SCHEDULING}
"""The fields that count_tokens accepts."""


OPTIONS = ("model", *SCHEDULING, *SAMPLING["messages"])


class MessageFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the outbound side needs of the request (`Inbound.extra`).

    max_tokens: the limit of the answer. An answer that ends for its length with fewer tokens has filled the context.
    mcp: names of the MCP servers that the request names.
    """

    hide_thinking: bool = False
    max_tokens: int = 0
    stop_sequences: tuple[str, ...] = ()
    mcp: tuple[str, ...] = ()


class _TurnHead(msgspec.Struct):
    role: Literal["user", "assistant", "system"]


class _AnthropicHead(msgspec.Struct):
    messages: list[_TurnHead]


def parse(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """Read a Messages body. media: kinds of content besides text that the model reads. Raises RequestError."""
    values = read_fields(read_object(body, limits, shape=_AnthropicHead), FIELDS)
    if values.get("max_tokens") is None:
        raise wrong("max_tokens", "is required")
    return _inbound(values, new_id, limits, media)


def parse_count(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """Read a count_tokens body: a Messages body without the fields that only affect generation."""
    values = known_only(read_fields(read_object(body, limits, shape=_AnthropicHead), FIELDS), COUNTED)
    return _inbound(values, new_id, limits, media)


def _inbound(values: dict[str, object], new_id: NewId, limits: Limits, media: Collection[str]) -> Inbound:
    turns: list[MessageParam] = convert(values["messages"], list[MessageParam], "messages")
    tools = anthropic_tools(values.get("tools"), turns, limits)
    messages = read_turns(turns, new_id=new_id, limits=limits, media=media, deferred=tools.deferred)
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
    servers = anthropic_servers(values.get("mcp_servers"), values.get("tools"))
    options = msgspec.structs.replace(options, mcp_servers=servers)
    flags = msgspec.structs.replace(flags, mcp=tuple(server.label for server in servers))
    return Inbound(input=run, options=options, stream=flag(values, "stream"), extra=flags)


def _options(
    values: dict[str, object], tools: ToolList, messages: list[Message], turns: Sequence[MessageParam]
) -> tuple[GenerationOptions, MessageFlags]:
    source = {name: values[name] for name in OPTIONS if name in values}
    value = values.get("stop_sequences")
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise wrong("stop_sequences", "must be an array of strings")
    if (metadata := values.get("metadata")) is not None:
        if not isinstance(metadata, dict) or not isinstance(metadata.get("user_id", ""), str | None):
            raise wrong("metadata", "must be an object, its user_id a string")
        source["user"] = metadata.get("user_id")
    config: OutputConfig = convert(values.get("output_config") or {}, OutputConfig, "output_config")
    later: list[OutputConfig] = [
        convert(turn.output_config, OutputConfig, f"messages.{i}.output_config")
        for i, turn in enumerate(turns)
        if turn.output_config is not None
    ]  # system messages, which set the effort from there on
    source["reasoning_effort"] = next((each.effort for each in reversed(later) if each.effort), config.effort)
    options, _ = read_options(source, wire="messages")
    choice: Choice = convert(values.get("tool_choice") or {}, Choice, "tool_choice")
    if choice.type == "tool":
        if not choice.name:
            raise wrong("tool_choice.name", "is required")
        tool_choice = ToolChoice(mode="named", names=(choice.name,))
    else:
        tool_choice = ToolChoice(mode="required" if choice.type == "any" else choice.type)
    check_tool_choice(tool_choice, tools.names)
    thinking: Thinking = convert(values.get("thinking") or {}, Thinking, "thinking")
    if thinking.display not in (None, "summarized", "omitted", "full"):
        notes_of_request().warn("thinking.display changes nothing: thinking is shown as it is written.")
    place = "output_config.format" if config.format is not None else "output_format"  # the latter in the beta
    wanted = config.format if config.format is not None else values.get("output_format")
    shape = response_format(place, wanted) if wanted is not None else None
    sampling = options.sampling
    if thinking.type != "disabled" and sampling.thinking_token_budget is None:
        sampling = with_budget(sampling, thinking.budget_tokens)
    last = messages[-1]
    changes = {
        "sampling": sampling,
        "response_format": shape,
        "strict_tools": tools.strict,
        "tool_choice": tool_choice,
        "parallel_tool_calls": not choice.disable_parallel_tool_use,
        "thinking": {"enabled": True, "disabled": False}.get(thinking.type),
        "continue_final_message": last.role == "assistant" and bool(last.content) and not last.tool_calls,
        "store": False,
    }
    flags = MessageFlags(hide_thinking=thinking.display == "omitted", stop_sequences=options.sampling.stop)
    return msgspec.structs.replace(options, **changes), flags


def with_budget(sampling: SamplingParams, budget: int | None) -> SamplingParams:
    """Set `thinking.budget_tokens`. Since every request for thinking must have it, it does not count as `stated`: an
    engine that cannot enforce it drops it with a warning."""
    bounded = msgspec.structs.replace(sampling, thinking_token_budget=budget)
    try:
        bounded.validate()
    except OptionError as error:
        raise wrong("thinking.budget_tokens", error.message.removesuffix(".")) from None
    return bounded


class OutputConfig(Lenient, frozen=True):
    effort: object = None
    format: Any = None


class Thinking(Lenient, frozen=True):
    """If absent, thinking is off on this wire; "adaptive" and "between_tools" leave it to the model."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = "disabled"
    budget_tokens: int | None = None
    display: str | None = None


class Choice(Lenient, frozen=True):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


# ---- tools -----------------------------------------------------------------------------------------------------------

HOSTED_SEARCH = "tool_search_tool_"
HOSTED = (HOSTED_SEARCH, "advisor_", "code_execution_", "web_fetch_", "web_search_")
"""Prefixes of the types of tools that Anthropic's service runs."""


class AnthropicTool(msgspec.Struct):
    """A tool. type: absent or "custom" for the client's own tools; any other value is one of Anthropic's types."""

    name: Any = None
    type: Any = None
    description: object = None
    input_schema: object = None
    strict: Any = None
    defer_loading: Any = None


def anthropic_tools(value: object, turns: Sequence[MessageParam], limits: Limits) -> ToolList:
    """Return the tools that are available after the last of these turns. Raises RequestError."""
    declared: list[AnthropicTool] = convert(value, list[AnthropicTool], "tools") if value is not None else []
    searched = any(isinstance(tool.type, str) and tool.type.startswith(HOSTED_SEARCH) for tool in declared)
    added, removed, described = _changes(turns)
    specs: list[ToolSpec] = []
    for index, tool in enumerate(declared):
        if tool.type == "mcp_toolset":  # read with the servers
            continue
        name = str(tool.name)
        deferred = tool.defer_loading is True and not searched
        unloaded = deferred and name not in added
        spec = None if unloaded or name in removed else _spec(tool, f"tools.{index}")
        if spec is not None:
            specs.append(spec._replace(deferred=deferred and name in described))
    names = {str(spec.name) for spec in specs}
    for name, tool in added.items():
        defined = tool.input_schema is not None or tool.type is not None
        spec = _spec(tool, "messages.tool_addition") if defined and name not in names else None
        if spec is not None:
            specs.append(spec._replace(deferred=name in described))
    return read_tools(specs, limits)


def _spec(tool: AnthropicTool, at: str) -> ToolSpec | None:
    match tool.type:
        case None | "custom":
            return ToolSpec(tool.name, tool.description, tool.input_schema, tool.strict, at)
        case str(kind) if kind.startswith("bash_"):
            return ToolSpec(tool.name, "Run a command in a persistent bash shell.", _BASH, None, at)
        case str(kind) if kind.startswith("text_editor_"):
            return ToolSpec(tool.name, "View, create and edit text files.", _EDITOR, None, at)
        case str(kind) if kind.startswith("memory_"):
            return ToolSpec(tool.name, "Read and write files under /memories.", _MEMORY, None, at)
        case str(kind) if kind.startswith(("computer_", "browser_toolset_")):
            notes_of_request().warn(f"{at} is left out: {kind} needs a model that is trained for a screen.")
            return None
        case str(kind) if kind.startswith(HOSTED):
            notes_of_request().warn(f"{at} is left out: {kind} runs at Anthropic, not here; declare a tool instead.")
            return None
        case str():
            notes_of_request().warn(f"{at} is left out: its type is not known here; declare a tool instead.")
            return None
    raise wrong(f"{at}.type", "must be a string")


def _changes(turns: Sequence[MessageParam]) -> tuple[dict[str, AnthropicTool], set[str], set[str]]:
    """Return the tools that the conversation has added, by reference or by definition, the names it has removed, and
    those that the prompt describes where the conversation adds them."""
    added: dict[str, AnthropicTool] = {}
    removed: set[str] = set()
    described: set[str] = set()
    for block, is_described in _change_blocks(turns):
        change = block.get("tool")
        match block.get("type"):
            case "tool_reference":
                tool = AnthropicTool(name=block.get("tool_name"))
            case "tool_addition" if isinstance(change, dict) and change.get("type") == "tool_definition":
                tool = convert(change.get("definition"), AnthropicTool, "messages.tool_addition")
            case "tool_addition" if isinstance(change, dict):
                tool = AnthropicTool(name=change.get("name"))
            case "tool_removal" if isinstance(change, dict):
                removed.add(str(change.get("name")))
                added.pop(str(change.get("name")), None)
                continue
            case _:
                continue
        added[str(tool.name)] = tool
        removed.discard(str(tool.name))
        if is_described:
            described.add(str(tool.name))
    return added, removed, described


def _change_blocks(turns: Sequence[MessageParam]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Return the blocks of these turns, including those in tool results, and whether the prompt describes a tool where
    the block is. It does not in an assistant's message, nor in one that is dropped later."""
    for turn in turns:
        stays = turn.role != "assistant" and turn.clear_at != "next_user_message"
        for block in turn.content if isinstance(turn.content, list) else ():
            if not isinstance(block, dict):
                continue
            yield block, stays
            inner = block.get("content")
            if isinstance(inner, dict):  # a result of the service's own tool search
                inner = inner.get("tool_references")
            is_described = stays and block.get("type") == "tool_result"
            for each in inner if isinstance(inner, list) else ():
                if isinstance(each, dict):
                    yield each, is_described


_STRING: dict[str, object] = {"type": "string"}
_NUMBER: dict[str, object] = {"type": "integer"}
_RANGE = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _commands(commands: list[str], properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"command": {"type": "string", "enum": commands}, **properties},
        "required": ["command"],
    }


_BASH: dict[str, object] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command to run. Required unless restart is true."},
        "restart": {"type": "boolean", "description": "Start the shell anew."},
    },
}
_EDITOR = _commands(
    ["view", "create", "str_replace", "insert"],
    {
        "path": {"type": "string", "description": "Of the file or folder."},
        "view_range": {**_RANGE, "description": "First and last line for view; -1 for the end."},
        "file_text": {"type": "string", "description": "What create writes."},
        "old_str": {"type": "string", "description": "What str_replace replaces; it must occur once."},
        "new_str": _STRING,
        "insert_line": {"type": "integer", "description": "The line behind which insert puts insert_text."},
        "insert_text": _STRING,
    },
)
_MEMORY = _commands(
    ["view", "create", "str_replace", "insert", "delete", "rename"],
    {
        "path": {"type": "string", "description": "Below /memories."},
        "view_range": _RANGE,
        "file_text": _STRING,
        "old_str": _STRING,
        "new_str": _STRING,
        "insert_line": _NUMBER,
        "insert_text": _STRING,
        "old_path": _STRING,
        "new_path": _STRING,
    },
)
