"""Anthropic's Messages: a request → RunAgentInput and GenerationOptions; events → frames, or one message."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import msgspec
import pydantic_core
from ag_ui.core import (
    AssistantMessage,
    ContentPart,
    DataSource,
    DocumentPart,
    FileSource,
    FunctionCall,
    ImagePart,
    Message,
    PartSource,
    ReasoningMessage,
    RunAgentInput,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    UrlSource,
    UserMessage,
)

from adapters import sse
from adapters.answer import Answer, PromptOf, fold, raise_failure, unknown_prompt, warning_extension
from adapters.body import (
    DEFAULT_LIMITS,
    KINDS,
    Inbound,
    Lenient,
    Limits,
    convert,
    current_turn_start,
    flag,
    known_only,
    notes_of_request,
    read_object,
    unsupported_part,
    wrong,
)
from adapters.client_history import NewId, Placed, Seal, object_text, put_in_order, unwrap, wrap
from adapters.errors import payload
from adapters.mcp_request import anthropic_servers, split_tool_name
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
from adapters.request_tools import ToolList, ToolSpec, declarations_text, read_tools
from adapters.sse import json_bytes, json_string
from events.metadata import is_cut
from events.options import SEPARATOR, GenerationOptions, OptionError, SamplingParams, ToolChoice
from events.vocabulary import (
    Event,
    ReasoningEncryptedValue,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

_SAMPLING = sampling_fields("messages")
FIELDS: dict[str, Field] = {
    **_SAMPLING,
    "max_tokens": honoured("required; limited to what the prompt leaves of the context", INTEGER),
    "messages": honoured("an assistant message at the end is a prefill", OBJECTS),
    "model": honoured("a name of `/v1/models`", STRING),
    "metadata": honoured("`user_id` is kept with the run", OBJECT),
    "output_config": honoured("`effort`; `format` json_schema", OBJECT),
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
    shape = response_format("output_config.format", config.format) if config.format is not None else None
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


# ---- messages --------------------------------------------------------------------------------------------------------

DIGEST_PREFIX = "digest-1."


def digest(thinking: str) -> str:
    hashed = hashlib.sha256(thinking.encode("utf-8", "replace")).digest()
    return DIGEST_PREFIX + base64.b64encode(hashed).decode()


def is_digest(signature: str) -> bool:
    return signature.startswith(DIGEST_PREFIX)


TOOL_CHANGES = ("tool_addition", "tool_removal")
"""Types of blocks that change the tools and have no content for the model."""
SERVICE_BLOCKS = (
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
    "advisor_tool_result", "mcp_", "container_upload", "browser_state", "fallback",
)  # fmt: skip
"""Prefixes of the types of blocks that tools of Anthropic's service leave in a conversation."""


class MessageParam(msgspec.Struct):
    """One entry of `messages`."""

    role: Literal["user", "assistant", "system"]
    content: Any = None
    clear_at: Literal["next_user_message", "never"] | None = None
    output_config: Any = None


def read_turns(
    turns: Sequence[MessageParam],
    *,
    new_id: NewId,
    limits: Limits,
    media: Collection[str] = (),
    deferred: Mapping[str, Tool] = MappingProxyType({}),
) -> list[Message]:
    """Convert the messages of a request. Raises RequestError("invalid_request") with the block's position.

    deferred: the tools that are described where the conversation adds them, so that the prompt's beginning, with the
    declared tools, stays unchanged and cached.
    """
    if not turns:
        raise wrong("messages", "must not be empty")
    if len(turns) > limits.messages:
        raise wrong("messages", f"must have at most {limits.messages} items")
    turn_start = current_turn_start(turn.role for turn in turns)
    reader = _ContentReader(new_id, limits, deferred)
    placed: list[Placed] = []
    for i, turn in enumerate(turns):
        # A system message that applies to a single user turn is dropped when that turn has ended.
        if turn.clear_at == "next_user_message" and any(later.role == "user" for later in turns[i + 1 :]):
            continue
        at = f"messages.{i}"
        placed += [Placed(message, at) for message in reader.read(turn, at, media if i >= turn_start else KINDS)]
    if not placed:
        raise wrong("messages", "must contain more than changes of the tools")
    return put_in_order(placed, new_id, id_field="content.tool_use_id")


def system_text(value: object, at: str = "system") -> str:
    """Read a string, or text blocks, which become lines. Raises RequestError."""
    if value is None or isinstance(value, str):
        return value or ""
    blocks = [
        (block, f"{at}.{i}") for i, block in enumerate(_blocks(value, at)) if block.get("type") not in TOOL_CHANGES
    ]
    return "\n".join(_text(block, place) for block, place in blocks)


def _blocks(value: object, at: str, limit: int = 4096) -> list[dict[str, object]]:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        raise wrong(at, "must be a string or an array of content blocks")
    if len(value) > limit:
        raise wrong(at, f"must have at most {limit} blocks")
    return value


def _text(block: dict[str, Any], at: str) -> str:
    if block.get("type") != "text" or not isinstance(block.get("text"), str):
        raise wrong(at, "must be a text block")
    return str(block["text"])


class _ContentReader:
    def __init__(self, new_id: NewId, limits: Limits, deferred: Mapping[str, Tool]) -> None:
        self._new_id = new_id
        self._limits = limits
        self._deferred = deferred

    def read(self, turn: MessageParam, at: str, media: Collection[str]) -> Iterable[Message]:
        """Convert one turn. media: kinds of content that are accepted in a user turn."""
        changes = turn.content if isinstance(turn.content, list) else ()
        additions: list[str] = []
        for change in changes:
            tool = change.get("tool") if isinstance(change, dict) and change.get("type") == "tool_addition" else None
            named = tool.get("definition", tool) if isinstance(tool, dict) else None
            if isinstance(named, dict) and str(named.get("name")) in self._deferred:
                additions.append(self._addition(str(named["name"])))
        if turn.role == "system":
            text = system_text(turn.content, f"{at}.content")
            messages: list[Message] = []
            if text or not turn.content:
                messages.append(SystemMessage(id=self._new_id("msg"), content=text))
            if additions:  # not as a system message, since templates may have those only at the beginning
                messages.append(UserMessage(id=self._new_id("msg"), content="\n".join(additions)))
            return messages
        blocks = _blocks(turn.content, f"{at}.content", self._limits.parts)
        places = [
            (block, f"{at}.content.{i}") for i, block in enumerate(blocks) if block.get("type") not in TOOL_CHANGES
        ]
        if blocks and not places and not (additions and turn.role == "user"):
            return []
        if turn.role == "assistant":
            return self._assistant(places)
        results = [self._result(block, place) for block, place in places if block.get("type") == "tool_result"]
        parts = self._parts([each for each in places if each[0].get("type") != "tool_result"], media)
        parts += [TextPart(text=addition) for addition in additions]
        if parts or not results:
            return [*results, UserMessage(id=self._new_id("msg"), content=_simple(parts))]
        return results

    def _addition(self, name: str) -> str:
        """Return the text for a tool that can be called from here on."""
        tool = self._deferred.get(name)
        declaration = "." if tool is None else f":\n{declarations_text([tool])}"
        return f"The tool {name} can be called now{declaration}"

    def _result(self, block: dict[str, object], at: str) -> ToolMessage:
        call_id = self._name(block.get("tool_use_id"), f"{at}.tool_use_id")
        blocks = _blocks(block.get("content") or "", f"{at}.content", self._limits.parts)
        content = _simple(self._parts([(inner, f"{at}.content.{i}") for i, inner in enumerate(blocks)], KINDS))
        error = None
        if block.get("is_error") is True:
            error = content if isinstance(content, str) else "The tool failed."
        return ToolMessage(id=self._new_id("msg"), tool_call_id=call_id, content=content, error=error)

    def _assistant(self, blocks: list[tuple[dict[str, object], str]]) -> Iterable[Message]:
        texts: list[str] = []
        calls: list[ToolCall] = []
        results: list[ToolMessage] = []
        for block, at in blocks:
            if results and block.get("type") != "mcp_tool_result":  # the model wrote what follows after the results
                yield self._assistant_message(texts, calls, blocks[0][1])
                yield from results
                texts, calls, results = [], [], []
            match block.get("type"):
                case "mcp_tool_use":
                    name = f"{block.get('server_name')}{SEPARATOR}{block.get('name')}"
                    calls.append(self._call({**block, "name": name}, at))
                case "mcp_tool_result":
                    results.append(self._result(block, at))
                case "text":
                    texts.append(_text(block, at))
                case "thinking" | "redacted_thinking":
                    yield self._reasoning(block, at)
                case "tool_use":
                    calls.append(self._call(block, at))
                case "compaction":
                    texts.append(str(block.get("content") or ""))
                case str(kind) if kind.startswith(SERVICE_BLOCKS):
                    notes_of_request().warn(f"{at} is left out: this server reads no {kind} blocks.")
                case str(kind) if kind not in ("image", "document", "tool_result"):
                    notes_of_request().warn(f"{at} is left out: its type is not known here.")
                case _:
                    raise wrong(f"{at}.type", "must be text, thinking or tool_use in an assistant's message")
        yield self._assistant_message(texts, calls, blocks[0][1] if blocks else "messages")
        yield from results

    def _assistant_message(self, texts: list[str], calls: list[ToolCall], at: str) -> AssistantMessage:
        if len(calls) > self._limits.tool_calls:
            raise wrong(at, f"begins a message with more than {self._limits.tool_calls} calls")
        text = "".join(texts)
        return AssistantMessage(
            id=self._new_id("msg"), content=text if text or not calls else None, tool_calls=calls or None
        )

    def _reasoning(self, block: dict[str, object], at: str) -> ReasoningMessage:
        """Read a thinking block and its sealed value. Raises RequestError if its text was altered."""
        if block["type"] == "redacted_thinking":
            sealed = block.get("data")
            if not isinstance(sealed, str):
                raise wrong(f"{at}.data", "must be a string")
            return self._sealed_reasoning("", sealed)
        thinking, signature = block.get("thinking"), block.get("signature") or ""
        if not isinstance(thinking, str) or not isinstance(signature, str):
            raise wrong(at, "must have thinking and its signature")
        if not is_digest(signature):
            return self._sealed_reasoning(thinking, signature)
        if signature != digest(thinking):
            raise wrong(f"{at}.signature", "does not belong to this thinking: send blocks back unchanged")
        return ReasoningMessage(id=self._new_id("rsn"), content=thinking)

    def _sealed_reasoning(self, thinking: str, text: str) -> ReasoningMessage:
        """Return reasoning with its sealed value. A seal of another server cannot be opened and is dropped."""
        seal = unwrap(text)
        if seal is None:
            return ReasoningMessage(id=self._new_id("rsn"), content=thinking)
        return ReasoningMessage(id=seal.message_id, content=thinking, encrypted_value=seal.value)

    def _call(self, block: dict[str, Any], at: str) -> ToolCall:
        name = self._name(block.get("name"), f"{at}.name")
        call_id = self._name(block.get("id"), f"{at}.id")
        arguments = object_text(block.get("input"), f"{at}.input")
        return ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments))

    def _name(self, value: object, at: str) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= self._limits.name:
            raise wrong(at, f"must be a string of 1 to {self._limits.name} characters")
        return value

    def _parts(self, blocks: Iterable[tuple[dict[str, object], str]], media: Collection[str]) -> list[ContentPart]:
        parts: list[ContentPart] = []
        for block, at in blocks:
            title = block.get("title")
            match block:
                case {"type": "text"}:
                    parts.append(TextPart(text=_text(block, at)))
                case {"type": "image"}:
                    _readable("image", media, at)
                    parts.append(ImagePart(source=_source(block.get("source"), at)))
                case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                    parts.append(TextPart(text=f"{title}\n{text}" if isinstance(title, str) else text))
                case {"type": "document", "source": {"type": "content", **source}}:
                    inner = _blocks(source.get("content"), f"{at}.source.content", self._limits.parts)
                    parts += self._parts([(each, f"{at}.source.content.{i}") for i, each in enumerate(inner)], media)
                case {"type": "document"}:
                    _readable("document", media, at)
                    named = {"filename": title} if title else None
                    parts.append(DocumentPart(source=_source(block.get("source"), at), metadata=named))
                case {"type": "search_result"}:
                    text = system_text(block.get("content"), f"{at}.content")
                    parts.append(TextPart(text=f"{title} ({block.get('source')})\n{text}"))
                case {"type": "tool_reference"}:
                    parts.append(TextPart(text=self._addition(str(block.get("tool_name")))))
                case {"type": str(kind)} if kind.startswith(SERVICE_BLOCKS):
                    notes_of_request().warn(f"{at} is left out: this server reads no {kind} blocks.")
                case _:
                    raise wrong(f"{at}.type", "is not a kind of block that this server reads from users")
        return parts


def _readable(kind: str, media: Collection[str], at: str) -> None:
    if kind not in media:
        raise unsupported_part(kind, media, at)


def _simple(parts: list[ContentPart]) -> str | list[ContentPart]:
    """Return a single text part as a string, and other parts as they are."""
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return parts


def _source(source: object, at: str) -> PartSource:
    if isinstance(source, dict):
        data, mime = source.get("data"), source.get("media_type")
        if source.get("type") == "base64" and isinstance(data, str) and isinstance(mime, str):
            return DataSource(value=data, mime_type=mime)
        if source.get("type") == "url" and isinstance(source.get("url"), str):
            if not source["url"].startswith(("http://", "https://")):
                raise wrong(f"{at}.source.url", "must be a web address")
            return UrlSource(value=source["url"])
        if source.get("type") == "file" and isinstance(source.get("file_id"), str):
            return FileSource(value=source["file_id"])
    raise wrong(f"{at}.source", "must be base64 with a media_type, a url or a file")


def sealed_thread(turns: Sequence[MessageParam]) -> str | None:
    """Return the thread of the last sealed thinking block."""
    blocks = [block for turn in turns if isinstance(turn.content, list) for block in turn.content]
    texts = [block.get("signature") or block.get("data") for block in blocks if isinstance(block, dict)]
    seals = [seal for text in texts if isinstance(text, str) and (seal := unwrap(text)) is not None]
    return seals[-1].thread_id if seals else None


# ---- outbound --------------------------------------------------------------------------------------------------------


class BlockStart(NamedTuple):
    block_index: int
    block: dict[str, object]


class BlockDelta(NamedTuple):
    """kind: the key of the delta on the wire."""

    block_index: int
    kind: Literal["text", "thinking", "signature", "partial_json"]
    delta: str


class BlockStop(NamedTuple):
    block_index: int


Step = BlockStart | BlockDelta | BlockStop
BlockKind = Literal["text", "thinking", "tool_use", "mcp_tool_result"]
DELTA_KEY: dict[BlockKind, Literal["text", "thinking", "partial_json"]] = {
    "text": "text",
    "thinking": "thinking",
    "tool_use": "partial_json",
    "mcp_tool_result": "text",
}


class _WaitingBlock:
    """A block of the message. waiting: deltas that arrived while an earlier block was written. sealed: an encrypted
    value."""

    __slots__ = ("block", "deltas", "ended", "id", "kind", "opened", "sealed", "waiting")

    def __init__(self, kind: BlockKind, id: str, block: dict[str, object]) -> None:
        """block: as it is opened."""
        self.kind: BlockKind = kind
        self.id = id
        self.block = block
        self.opened = False
        self.ended = False
        self.sealed: str | None = None
        self.deltas: list[str] = []
        self.waiting: list[str] = []


class Blocks:
    """Converts events to steps of blocks. The first item of `_row` is the block being written."""

    def __init__(self, identity: MessageIdentity, flags: MessageFlags) -> None:
        self._mcp = flags.mcp  # their calls and results are shown
        self._mcp_calls: set[str] = set()
        self._thread_id = identity.thread_id
        self._hidden = identity.hidden_tools
        self._hide_thinking = flags.hide_thinking
        self._row: list[_WaitingBlock] = []
        self._index = 0

    @property
    def open_text(self) -> tuple[str, int] | None:
        """(message id, block index) while a text block is being written, so that the caller can encode its deltas
        directly."""
        head = self._row[0] if self._row else None
        return (head.id, self._index) if head is not None and head.opened and head.kind == "text" else None

    def feed(self, event: Event) -> list[Step]:
        steps: list[Step] = []
        if not isinstance(event, ReasoningEncryptedValue):
            self._advance(steps)
        match event:
            case TextMessageStart(message_id=id):
                self._row.append(_WaitingBlock("text", id, {"type": "text", "text": ""}))
            case ReasoningMessageStart(message_id=id):
                self._row.append(_WaitingBlock("thinking", id, {"type": "thinking", "thinking": "", "signature": ""}))
            case ToolCallStart(tool_call_id=id, tool_call_name=name):
                called: dict[str, object] = {"type": "tool_use", "id": id, "name": name, "input": {}}
                if (mcp_tool := split_tool_name(name, self._mcp)) is not None:
                    called |= {"type": "mcp_tool_use", "name": mcp_tool[1], "server_name": mcp_tool[0]}
                    self._mcp_calls.add(id)
                elif name in self._hidden:
                    return steps
                self._row.append(_WaitingBlock("tool_use", id, called))
                if len(self._row) == 1:
                    self._begin(steps)
            case ToolCallResult(tool_call_id=id) if id in self._mcp_calls:
                self._row.append(result := _WaitingBlock("mcp_tool_result", id, _result_block(event)))
                result.ended = True
                self._advance(steps)
            case TextMessageContent(message_id=id, delta=delta):
                self._fill("text", id, delta, steps)
            case ReasoningMessageContent(message_id=id, delta=delta):
                self._fill("thinking", id, delta, steps)
            case ToolCallArgs(tool_call_id=id, delta=delta):
                self._fill("tool_use", id, delta, steps)
            case TextMessageEnd(message_id=id):
                self._end("text", id, steps)
            case ReasoningMessageEnd(message_id=id):
                self._end("thinking", id, None)
            case ToolCallEnd(tool_call_id=id):
                self._end("tool_use", id, steps)
            case ReasoningEncryptedValue(subtype="message", entity_id=id, encrypted_value=value):
                if (item := self._find("thinking", id)) is not None:
                    item.sealed = wrap(Seal(self._thread_id, id, value))
            case _:
                pass
        return steps

    def close(self) -> list[Step]:
        """End and write all remaining blocks."""
        steps: list[Step] = []
        for item in self._row:
            item.ended = True
        self._advance(steps)
        return steps

    def _find(self, kind: BlockKind, id: str) -> _WaitingBlock | None:
        return next((item for item in self._row if item.id == id and item.kind == kind), None)

    def _fill(self, kind: BlockKind, id: str, delta: str, steps: list[Step]) -> None:
        item = self._find(kind, id)
        if item is None or not delta:
            return
        if item is self._row[0]:
            self._write(item, delta, steps)
        else:
            item.waiting.append(delta)

    def _write(self, item: _WaitingBlock, delta: str, steps: list[Step]) -> None:
        if not item.opened:
            self._begin(steps)
        if item.kind == "thinking":
            item.deltas.append(delta)
            if self._hide_thinking:
                return
        steps.append(BlockDelta(self._index, DELTA_KEY[item.kind], delta))

    def _begin(self, steps: list[Step]) -> None:
        item = self._row[0]
        item.opened = True
        steps.append(BlockStart(self._index, item.block))

    def _end(self, kind: BlockKind, id: str, steps: list[Step] | None) -> None:
        """Mark a block as ended. Reasoning (`steps` is None) is closed by the next event, since its seal may still
        follow."""
        if (item := self._find(kind, id)) is not None:
            item.ended = True
            if steps is not None:
                self._advance(steps)

    def _advance(self, steps: list[Step]) -> None:
        """Close the block being written if it has ended, and write the waiting ones after it."""
        while self._row:
            item = self._row[0]
            for delta in item.waiting:
                self._write(item, delta, steps)
            item.waiting.clear()
            if item.kind in ("tool_use", "mcp_tool_result") and not item.opened:
                self._begin(steps)
            if not item.ended:
                return
            self._row.pop(0)
            if item.opened and item.kind == "thinking":
                visible_text = "" if self._hide_thinking else "".join(item.deltas)
                steps.append(BlockDelta(self._index, "signature", item.sealed or digest(visible_text)))
            elif not item.opened and item.sealed is not None:
                steps.append(BlockStart(self._index, {"type": "redacted_thinking", "data": item.sealed}))
            elif not item.opened:
                continue
            steps.append(BlockStop(self._index))
            self._index += 1


def _result_block(event: ToolCallResult) -> dict[str, object]:
    parts = [event.content] if isinstance(event.content, str) else event.content
    texts = [
        part if isinstance(part, str) else part["text"] if part.get("type") == "text" else f"[{part.get('type')}]"
        for part in parts
    ]
    return {
        "type": "mcp_tool_result",
        "tool_use_id": event.tool_call_id,
        "is_error": bool((event.metadata or {}).get("isError")),
        "content": [{"type": "text", "text": text} for text in texts],
    }


NO_FLAGS = MessageFlags()
DELTA_TYPE = {
    "text": "text_delta",
    "thinking": "thinking_delta",
    "signature": "signature_delta",
    "partial_json": "input_json_delta",
}
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """thread_id: the run's thread, for seals. hidden_tools: names of the server's own tools."""

    id: str
    model: str
    thread_id: str = ""
    hidden_tools: Container[str] = ()


def stop_reason(answer: Answer, flags: MessageFlags) -> tuple[str | None, str | None]:
    """Return (stop_reason, stop_sequence) for a finished run; the reason is None for a cancelled one."""
    if answer.finish == "cancelled":
        return None, None
    if answer.finish == "content_filter":
        return "refusal", None
    if answer.interrupts:
        return "pause_turn", None
    if answer.finish == "stop" and isinstance(answer.stop, str):
        return "stop_sequence", answer.stop
    if answer.finish == "length":
        full = usage_object(answer.usage)["output_tokens"] < flags.max_tokens
        return "model_context_window_exceeded" if full else "max_tokens", None
    return "tool_use" if answer.finish == "tool_calls" else "end_turn", None


def usage_object(usage: Iterable[TokenUsage]) -> dict[str, int]:
    """Return Anthropic's usage, where `input_tokens` excludes the tokens that were read from the cache."""
    total = cached = output = 0
    for part in usage:
        total += part.input_tokens or 0
        cached += part.cached_input_tokens or 0
        output += part.output_tokens or 0
    return {
        "input_tokens": total - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output,
    }


def _message(identity: MessageIdentity, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
    return {
        "id": identity.id,
        "type": "message",
        "role": "assistant",
        "model": identity.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }


def _frame(kind: str, data: dict[str, object]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + json_bytes({"type": kind, **data}) + b"\n\n"


class MessageStream:
    """Encodes one run's events as the named events of a streamed message."""

    content_type = "text/event-stream"

    def __init__(
        self, identity: MessageIdentity, flags: MessageFlags = NO_FLAGS, *, prompt: PromptOf = unknown_prompt
    ) -> None:
        """prompt: returns the run's prompt, whose length is in the first frame."""
        self._prompt = prompt
        self._started = False
        self._identity = identity
        self._flags = flags
        self._blocks = Blocks(identity, flags)
        self._writing: str | None = None
        self._text_head = b""

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        if type(event) is TextMessageContent and event.message_id == self._writing:
            return self._text_head + json_string(event.delta) + b"}}\n\n" if event.delta else b""
        if choice or isinstance(event, RunStarted) or getattr(event, "subagent_run_id", None) is not None:
            return b""
        start = self._start()
        match event:
            case RunFinished():
                return start + self._steps(self._blocks.close()) + self._end(fold([event]))
            case RunError():
                return start + self._steps(self._blocks.close()) + _error_frame(event.code or "internal", event.message)
        frames = self._steps(self._blocks.feed(event))
        # While a text block is being written, its deltas need no bookkeeping.
        open_text = self._blocks.open_text
        if open_text is None:
            self._writing = None
        elif open_text[0] != self._writing:
            self._writing = open_text[0]
            self._text_head = (
                b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
                b'"delta":{"type":"text_delta","text":' % open_text[1]
            )
        return start + frames

    def _start(self) -> bytes:
        """Return `message_start` before the first other frame, and nothing afterwards."""
        if self._started:
            return b""
        self._started = True
        note = self._prompt()
        usage = usage_object([TokenUsage(input_tokens=note.tokens)] if note is not None else ())
        return _frame("message_start", {"message": _message(self._identity, [], usage)}) + PING

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        """Return a ping. While a long prompt is computed, `message_start` is sent as soon as its length is known."""
        if not self._started and self._prompt() is None:
            return sse.KEEP_ALIVE
        return self._start() or PING

    def _steps(self, steps: Iterable[Step]) -> bytes:
        frames = b""
        for step in steps:
            match step:
                case BlockStart(index, block):
                    frames += _frame("content_block_start", {"index": index, "content_block": block})
                case BlockDelta(index, kind, delta):
                    content = {"type": DELTA_TYPE[kind], kind: delta}
                    frames += _frame("content_block_delta", {"index": index, "delta": content})
                case BlockStop(index):
                    frames += _frame("content_block_stop", {"index": index})
        return frames

    def _end(self, answer: Answer) -> bytes:
        reason, sequence = stop_reason(answer, self._flags)
        if reason is None:
            return _error_frame("internal", "The run was cancelled.")
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        warnings = warning_extension(answer.warnings)
        last = _frame("message_delta", {"delta": delta, "usage": usage_object(answer.usage), **warnings})
        return last + _frame("message_stop", {})


def _error_frame(kind: str, message: str) -> bytes:
    return b"event: error\ndata: " + json_bytes(payload("anthropic", kind, message)) + b"\n\n"


def message_body(events: Sequence[Event], identity: MessageIdentity, flags: MessageFlags = NO_FLAGS) -> bytes:
    """Encode a finished run as one message. Raises RequestError for a failed run."""
    answer = fold(events, hidden_tools=identity.hidden_tools)
    raise_failure(answer, "messages")
    blocks = Blocks(identity, flags)
    own = (event for event in events if getattr(event, "subagent_run_id", None) is None)
    steps = [step for event in own for step in blocks.feed(event)] + blocks.close()
    cut = {event.tool_call_id for event in events if isinstance(event, ToolCallEnd) and is_cut(event.metadata)}
    unfinished: set[int] = set()
    content: list[dict[str, object]] = []
    filled: dict[tuple[int, str], list[str]] = {}
    for step in steps:
        if isinstance(step, BlockStart):
            content.append(dict(step.block))
            if step.block["type"] in ("tool_use", "mcp_tool_use") and str(step.block["id"]) in cut:
                unfinished.add(step.block_index)
        elif isinstance(step, BlockDelta):
            filled.setdefault((step.block_index, step.kind), []).append(step.delta)
    for (index, kind), deltas in filled.items():
        text = "".join(deltas)
        read = {"input": input_object(text, index in unfinished)} if kind == "partial_json" else {kind: text}
        content[index].update(read)
    message = _message(identity, content, usage_object(answer.usage))
    message["stop_reason"], message["stop_sequence"] = stop_reason(answer, flags)
    return json_bytes(message | warning_extension(answer.warnings))


def input_object(text: str, cut: bool = False) -> dict[str, object]:
    """Return a call's arguments as an object; malformed text is returned under the key `_raw`.

    cut: the output ended within them; the result is then their complete part, as Anthropic's SDK reads such a stream.
    """
    try:
        value = pydantic_core.from_json(text, allow_partial=True) if cut and text else msgspec.json.decode(text or "{}")
    except (ValueError, msgspec.DecodeError, RecursionError):
        return {} if cut else {"_raw": text}
    return value if isinstance(value, dict) else {"_raw": text}


def count_body(tokens: int) -> bytes:
    return json_bytes({"input_tokens": tokens})
