"""A Responses request → RunAgentInput and GenerationOptions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from ag_ui.core import AssistantMessage, Message, ResumeEntry, RunAgentInput, SystemMessage, ToolMessage

from adapters.body import DEFAULT_LIMITS, Inbound, Lenient, Limits, convert, flag, notes_of_request, read_object, wrong
from adapters.client_history import NewId, PlacedMessage, put_in_order
from adapters.openai_responses.client_tools import ClientTools, ToolForm, found_tools, read_client_tools, tools_in_items
from adapters.openai_responses.input_items import (
    APPROVAL_PREFIX,
    TRIGGER,
    Items,
    OpenSeal,
    no_seals,
    read_input,
    sealed_thread,
)
from adapters.request_fields import (
    BOOLEAN,
    OBJECT,
    OBJECTS,
    SCHEDULING,
    STRING,
    STRINGS,
    Field,
    accepted,
    honoured,
    ignored,
    read_fields,
    refused,
    sampling_fields,
)
from adapters.request_options import check_tool_choice, read_options, response_format
from adapters.request_tools import ToolList, read_tools
from events.options import Compact, GenerationOptions, ResponseFormat

FIELDS: dict[str, Field] = {
    **sampling_fields("responses"),
    "background": honoured("needs `store`; resume with `starting_after`", BOOLEAN),
    "background_options": ignored("background responses start at once"),
    "include": honoured("`reasoning.encrypted_content`, `message.output_text.logprobs`", STRINGS),
    "input": honoured(
        "text, messages, calls and their outputs, reasoning, compaction, `configuration_update`; "
        "`compaction_trigger` as the last",
        {"anyOf": [STRING, OBJECTS]},
    ),
    "instructions": honoured("for this response alone, as in the protocol", STRING),
    "metadata": honoured("returned with the response", OBJECT),
    "model": honoured("a name of `/v1/models`", STRING),
    "parallel_tool_calls": honoured("false allows one call", BOOLEAN),
    "previous_response_id": honoured("of a stored response", STRING),
    "reasoning": honoured("`effort`; `summary` shows reasoning as a summary", OBJECT),
    "safety_identifier": honoured("as `user`, where that is absent", STRING),
    "store": honoured("true if absent", BOOLEAN),
    "stream": honoured("", BOOLEAN),
    "stream_options": honoured("`include_obfuscation: true` changes nothing", OBJECT),
    "text": honoured("`format`: text, json_object, json_schema", OBJECT),
    "tool_choice": honoured(
        "auto, none, required, a function, a custom tool, allowed_tools", {"type": ["string", "object"]}
    ),
    "tools": honoured(
        "functions, custom tools, namespaces, the client's `tool_search`, `local_shell`, `shell` and `apply_patch`; "
        "`mcp` and `web_search` where the operator allows such servers; other tools that OpenAI's service runs are "
        "left out with a warning",
        OBJECTS,
    ),
    "top_logprobs": honoured("with `include`", {"type": "integer", "minimum": 0, "maximum": 20}),
    "user": honoured("kept with the run", STRING),
    "client_metadata": accepted("not used by this server", OBJECT),
    "prompt_cache_key": accepted("prefixes are cached by content; the key is not used"),
    "prompt_cache_retention": accepted("prefixes stay cached while there is room"),
    "prompt_cache_options": accepted("prefixes are cached by content; breakpoints are not used"),
    "service_tier": ignored("there is one tier", neutral=("auto", "default"), schema=STRING),
    "truncation": honoured('"auto" leaves out the oldest turns of a conversation that does not fit', STRING),
    "context_management": honoured("`compaction` with `compact_threshold`, in tokens of the prompt", OBJECTS),
    "access_programs": ignored("there are no such programs"),
    "conversation": honoured(
        "its items come before the input, and the answer is added to it; needs `store`", {"type": ["string", "object"]}
    ),
    "image": ignored("there is no image compression"),
    "max_tool_calls": ignored("it limits built-in tools, and there are none"),
    "moderation": refused("nothing is moderated"),
    "prompt": refused("there are no stored prompts"),
    # this server's own, as on Chat Completions
    "chat_template_kwargs": honoured("variables for the chat template; never the template itself", OBJECT),
    "enable_thinking": honoured("", BOOLEAN),
    **SCHEDULING,
}


ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"


class ResponseFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the outbound side and the store need of the request (`Inbound.extra`).

    echo: the request's fields that the response object repeats. items: the original `input`, for the list of input
    items. summary: show reasoning as a summary. instructions: whether the first message is the instructions, which are
    not part of the conversation. forms: those of tools that are not plain functions. updates: the settings of the
    conversation's `configuration_update` items, for the responses that continue it. mcp: labels of the MCP servers that
    the request names. approved_calls: name and arguments of the calls that wait for this request's approvals, by id.
    found_tools: the tools that the conversation's searches found, by the id of the search's call.
    """

    echo: dict[str, Any] = {}
    items: list[dict[str, Any]] = []
    previous: str | None = None
    conversation: str | None = None
    background: bool = False
    store: bool = True
    summary: bool = False
    encrypted: bool = False
    logprobs: int | None = None
    instructions: bool = False
    forms: dict[str, ToolForm] = {}
    updates: dict[str, Any] = {}
    mcp: tuple[str, ...] = ()
    approved_calls: dict[str, tuple[str, str]] = {}
    found_tools: dict[str, list[Any]] = {}


class _ResponsesHead(msgspec.Struct):
    """The fields that every body must have."""

    input: str | list[Any]


def parse(
    body: bytes,
    *,
    new_id: NewId,
    limits: Limits = DEFAULT_LIMITS,
    media: Collection[str] = (),
    items: Items = MappingProxyType({}),
    before: Sequence[Mapping[str, object]] = (),
    answered_until: int = 0,
    open_seal: OpenSeal = no_seals,
) -> Inbound:
    """Read a Responses body. `with_history` then adds the messages of a previous response. Raises RequestError.

    items: the items that the input refers to, see `referenced`. before: the items of the conversation that it names.
    answered_until: the number of those items up to the end of the response that waits for approvals, if one does.
    open_seal: reads the content of a compaction item.
    """
    values = read_fields(read_object(body, limits, shape=_ResponsesHead), FIELDS)
    return read_values(
        values, new_id=new_id, limits=limits, media=media, items=items, before=before,
        answered_until=answered_until, open_seal=open_seal,
    )  # fmt: skip


def read_values(
    values: dict[str, Any],
    *,
    new_id: NewId,
    limits: Limits,
    media: Collection[str],
    items: Items,
    before: Sequence[Mapping[str, object]] = (),
    answered_until: int = 0,
    open_seal: OpenSeal = no_seals,
) -> Inbound:
    """As `parse`, for fields that are checked already. An `input` of None adds no messages."""
    items_of_input = values["input"] if isinstance(values["input"], list) else []
    approvals = _approvals(items_of_input)
    if values.get("conversation") and approvals:
        if not answered_until:
            raise wrong("input", "answers no approval request of the conversation's last response")
        before = before[answered_until:]
    declared = _all_tools(values.get("tools"), [*before, *items_of_input])
    tools = read_tools(declared.specs, limits)
    options, flags = _options(values, tools)
    updates = _updates([*before, *items_of_input])
    options = _apply_updates(options, updates)
    labels = tuple(server.label for server in declared.servers)
    if len(set(labels)) < len(labels):
        raise wrong("tools", "must have MCP servers with unique labels")
    options = msgspec.structs.replace(options, mcp_servers=tuple(declared.servers))
    flags = msgspec.structs.replace(
        flags, forms=declared.forms, updates=updates, mcp=labels, found_tools=found_tools([*before, *items_of_input])
    )
    if flags.background and not flags.store:
        raise wrong("background", "needs store: the answer could not be fetched")
    continues = bool(flags.previous or (flags.conversation and approvals))
    placed: list[PlacedMessage] = []
    if values["input"] is not None:
        placed = read_input(
            values["input"], new_id=new_id, limits=limits, media=media, items=items, before=before,
            open_seal=open_seal, deferred=tools.deferred,
        )  # fmt: skip
        if not (placed or continues or options.compact):
            raise wrong("input", "has no message, call or result that this server reads")
    instructions = values.get("instructions")
    if instructions is not None and not isinstance(instructions, str):
        raise wrong("instructions", "must be a string")
    run = RunAgentInput(
        thread_id=sealed_thread(values["input"]) or new_id("thread"),
        run_id=new_id("run"),
        messages=[] if continues else put_in_order(placed, new_id, id_field="call_id"),
        tools=tools.tools,
        context=[],
        state={},
        forwarded_props={},
        resume=approvals,
    )
    pending = PendingMessages(inbound_messages=placed, instructions=instructions)
    inbound = Inbound(input=run, options=options, stream=flag(values, "stream"), extra=flags)
    if continues:
        return msgspec.structs.replace(inbound, extra=Continuation(flags=flags, pending=pending))
    return _with_instructions(inbound, pending, new_id)


class ApprovalResponse(Lenient, frozen=True):
    """An item that answers an `mcp_approval_request`."""

    type: str
    approval_request_id: str
    approve: bool
    id: str | None = None
    reason: str | None = None
    status: str | None = None


def _approvals(items: Sequence[Mapping[str, object]]) -> list[ResumeEntry] | None:
    """Return the input's answers to approval requests of the previous response, as resume entries."""
    entries: list[ResumeEntry] = []
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "mcp_approval_response":
            response: ApprovalResponse = convert(item, ApprovalResponse, f"input.{index}")
            payload = {"approved": response.approve, **({"reason": response.reason} if response.reason else {})}
            interrupt = response.approval_request_id.removeprefix(APPROVAL_PREFIX)
            entries.append(ResumeEntry(interrupt_id=interrupt, status="resolved", payload=payload))
    return entries or None


class PendingMessages(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a request that continues a stored response, until that response is fetched."""

    inbound_messages: list[PlacedMessage]
    instructions: str | None


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """`Inbound.extra` of a request with `previous_response_id`, or with approvals in a conversation; `with_history`
    turns it into ResponseFlags."""

    flags: ResponseFlags
    pending: PendingMessages


def _with_instructions(inbound: Inbound, pending: PendingMessages, new_id: NewId) -> Inbound:
    if not pending.instructions:
        return inbound
    message = SystemMessage(id=new_id("msg"), content=pending.instructions)
    messages = [message, *inbound.input.messages]
    options = inbound.options
    if options.compact is not None:
        options = msgspec.structs.replace(options, compact=msgspec.structs.replace(options.compact, apart=1))
    return msgspec.structs.replace(
        inbound,
        options=options,
        input=inbound.input.model_copy(update={"messages": messages}),
        extra=msgspec.structs.replace(inbound.extra, instructions=True),
    )


def with_history(
    inbound: Inbound,
    thread_id: str,
    history: Sequence[Message],
    new_id: NewId,
    earlier_flags: ResponseFlags,
) -> Inbound:
    """Add the conversation of the continued response before the request's own messages.

    earlier_flags: those of that response. Raises RequestError for a result whose
    call is in neither.
    """
    waiting: Continuation = inbound.extra
    earlier = [PlacedMessage(message, "previous_response_id") for message in history]
    used_ids = {message.id for message in history}
    own: list[PlacedMessage] = []
    for placed in waiting.pending.inbound_messages:
        if placed.message.id in used_ids:  # a client may repeat an item of the history
            placed = PlacedMessage(placed.message.model_copy(update={"id": new_id("msg")}), placed.at)
        used_ids.add(placed.message.id)
        own.append(placed)
    messages = put_in_order([*earlier, *own], new_id, id_field="call_id")
    run = inbound.input.model_copy(update={"messages": messages, "thread_id": thread_id})
    approved_calls: dict[str, tuple[str, str]] = {}
    if run.resume:  # with answers to the approval requests of the history's calls that have no result
        calls = [call for each in history if isinstance(each, AssistantMessage) for call in each.tool_calls or ()]
        answered = {message.tool_call_id for message in history if isinstance(message, ToolMessage)}
        approved_calls = {
            call.id: (call.function.name, call.function.arguments) for call in calls if call.id not in answered
        }
    # A search's result that a compaction left out no longer describes its tools.
    results = {message.tool_call_id for message in history if isinstance(message, ToolMessage)}
    searches = {id: tools for id, tools in earlier_flags.found_tools.items() if id in results}
    client_tools = read_client_tools([entry for entries in searches.values() for entry in entries])
    declared_names = {tool.name for tool in run.tools or ()}
    specs = {spec.name: spec._replace(deferred=True) for spec in client_tools.specs if spec.name not in declared_names}
    tools = read_tools(list(specs.values()), DEFAULT_LIMITS)
    run = run.model_copy(update={"tools": [*(run.tools or ()), *tools.tools]})
    options = msgspec.structs.replace(
        inbound.options,
        strict_tools=inbound.options.strict_tools | tools.strict,
        tool_grammars={**inbound.options.tool_grammars, **tools.grammars},
    )
    updates = {**earlier_flags.updates, **waiting.flags.updates}
    flags = msgspec.structs.replace(
        waiting.flags,
        updates=updates,
        approved_calls=approved_calls,
        forms=client_tools.forms | waiting.flags.forms,
        found_tools=searches | waiting.flags.found_tools,
    )
    whole = msgspec.structs.replace(inbound, input=run, options=_apply_updates(options, updates), extra=flags)
    return _with_instructions(whole, waiting.pending, new_id)


class ContextManagement(Lenient, frozen=True):
    type: str
    compact_threshold: int | None = None


def _compact(values: Mapping[str, object]) -> Compact | None:
    """Return when to compact the conversation, by `context_management` or a `compaction_trigger` item."""
    items = values["input"]
    last = items[-1] if isinstance(items, list) and items else None
    if isinstance(last, dict) and last.get("type") == TRIGGER:
        return Compact(now=True)
    value = values.get("context_management") or []
    entries: list[ContextManagement] = convert(value, list[ContextManagement], "context_management")
    if not entries:
        return None
    if len(entries) > 1 or entries[0].type != "compaction":
        raise wrong("context_management", 'must have one entry, of the type "compaction"')
    at = entries[0].compact_threshold
    if at is not None and at < 1:
        raise wrong("context_management.0.compact_threshold", "must be at least 1")
    return Compact(at=at)


class TextConfig(Lenient, frozen=True):
    format: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Lenient, frozen=True):
    effort: object = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: str | None = None
    mode: str | None = None


class ConfigurationUpdate(Lenient, frozen=True):
    """An item that sets the effort and the format of later answers, until the next such item."""

    type: str
    id: str | None = None
    reasoning: ReasoningConfig | None = None
    text: TextConfig | None = None


def _updates(items: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Merge the `configuration_update` items into `reasoning.effort` and `text.format`."""
    merged: dict[str, object] = {}
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get("type") == "configuration_update":
            update: ConfigurationUpdate = convert(item, ConfigurationUpdate, f"input.{index}")
            if update.reasoning is not None and update.reasoning.effort is not None:
                merged["reasoning.effort"] = update.reasoning.effort
            if update.text is not None and update.text.format is not None:
                merged["text.format"] = update.text.format
    return merged


def _apply_updates(options: GenerationOptions, updates: Mapping[str, object]) -> GenerationOptions:
    if (effort := updates.get("reasoning.effort")) is not None:
        read, _ = read_options({"reasoning_effort": effort}, wire="responses")
        options = msgspec.structs.replace(options, reasoning_effort=read.reasoning_effort, thinking=read.thinking)
    if (shape := updates.get("text.format")) is not None:
        options = msgspec.structs.replace(options, response_format=response_format("text.format", shape))
    return options


class ResponsesStreamOptions(Lenient, frozen=True):
    include_obfuscation: bool | None = None


def _options(values: dict[str, object], tools: ToolList) -> tuple[GenerationOptions, ResponseFlags]:
    text: TextConfig = convert(values.get("text") or {}, TextConfig, "text")
    reasoning: ReasoningConfig = convert(values.get("reasoning") or {}, ReasoningConfig, "reasoning")
    stream: ResponsesStreamOptions = convert(
        values.get("stream_options") or {}, ResponsesStreamOptions, "stream_options"
    )
    if stream.include_obfuscation:
        notes_of_request().warn("stream_options.include_obfuscation changes nothing: frames are not padded.")
    if text.verbosity in ("low", "high"):
        notes_of_request().warn("text.verbosity changes nothing: models have no such switch.")
    if reasoning.context not in (None, "auto"):
        notes_of_request().warn("reasoning.context changes nothing: the chat template decides which reasoning is kept.")
    if reasoning.mode not in (None, "standard"):
        notes_of_request().warn("reasoning.mode changes nothing: there is one mode.")
    include = [] if values.get("include") is None else values["include"]
    if not isinstance(include, list) or not all(isinstance(item, str) for item in include):
        raise wrong("include", "must be an array of strings")
    for index, item in enumerate(include):
        if item not in (ENCRYPTED, LOGPROBS):
            notes_of_request().warn(f"include.{index} changes nothing: no such part is made here.")
    source = {name: value for name, value in values.items() if name != "top_logprobs"}
    source |= {
        "reasoning_effort": reasoning.effort,
        "user": values.get("user") or values.get("safety_identifier"),
        "truncate_history": _truncation(values) == "auto",
    }
    if LOGPROBS in include:
        source |= {"logprobs": True, "top_logprobs": values.get("top_logprobs")}
    elif values.get("top_logprobs"):
        raise wrong("top_logprobs", f'needs "{LOGPROBS}" in include')
    options, _ = read_options(source, wire="responses")
    check_tool_choice(options.tool_choice, tools.names)
    store = flag(values, "store", True)
    shape = response_format("text.format", text.format) if text.format is not None else None
    options = msgspec.structs.replace(options, response_format=shape, strict_tools=tools.strict, store=store)
    options = msgspec.structs.replace(options, tool_grammars=dict(tools.grammars), compact=_compact(values))
    return options, _flags(values, options, include, reasoning, shape)


def _all_tools(tools: object, items: Sequence[Mapping[str, object]]) -> ClientTools:
    """Return the request's tools, and those that the conversation's items add."""
    entries, names = tools_in_items(items)
    declared = read_client_tools(tools, loaded=names)
    declared_names = {str(spec.name) for spec in declared.specs}
    for index, spec in enumerate((added := read_client_tools(entries, at="input.tools")).specs):
        if str(spec.name) not in declared_names:
            declared_names.add(str(spec.name))
            declared.specs.append(spec._replace(at=f"input.tools.{index}", deferred=names.get(str(spec.name), False)))
    return ClientTools(declared.specs, added.forms | declared.forms, declared.servers)


def _truncation(values: dict[str, object]) -> str:
    value = values.get("truncation") or "disabled"
    if value not in ("auto", "disabled"):
        raise wrong("truncation", 'must be "auto" or "disabled"')
    return str(value)


def _flags(
    values: dict[str, Any],
    options: GenerationOptions,
    include: list[str],
    reasoning: ReasoningConfig,
    shape: ResponseFormat | None,
) -> ResponseFlags:
    previous = values.get("previous_response_id")
    if previous is not None and not isinstance(previous, str):
        raise wrong("previous_response_id", "must be a string")
    conversation = values.get("conversation")
    if conversation is not None:
        conversation = conversation.get("id") if isinstance(conversation, dict) else conversation
        if not isinstance(conversation, str) or not conversation:
            raise wrong("conversation", "must be the id of a conversation")
        if previous is not None:
            raise wrong("conversation", "cannot be combined with previous_response_id")
        if not options.store:
            raise wrong("conversation", "needs store: the answer is added to it")
    items = values["input"]
    if isinstance(items, str):
        items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": items}]}]
    # The fields of a response object that repeat its request, including all that Open Responses requires. A
    # temperature or top_p that is not set is 1, as in the protocol, even if the model's own default differs.
    sampling = options.sampling
    echo = {
        "background": bool(values.get("background")),
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        "metadata": options.metadata,
        "parallel_tool_calls": options.parallel_tool_calls,
        "previous_response_id": values.get("previous_response_id"),
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary or reasoning.generate_summary},
        "service_tier": "default",
        "store": options.store,
        "temperature": 1.0 if sampling.temperature is None else sampling.temperature,
        "text": values.get("text") or {"format": {"type": "text"}},
        "tool_choice": values.get("tool_choice") or "auto",
        "tools": _shown_tools(values.get("tools")),
        "top_logprobs": sampling.logprobs or 0,
        "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tool_calls": values.get("max_tool_calls"),
        "prompt_cache_key": values.get("prompt_cache_key"),
        "safety_identifier": values.get("safety_identifier"),
        "truncation": _truncation(values),
        "user": values.get("user"),
        **({"conversation": {"id": conversation}} if conversation is not None else {}),
    }
    return ResponseFlags(
        echo=echo,
        items=items or [],
        previous=previous,
        conversation=conversation,
        background=flag(values, "background"),
        store=options.store,
        summary=(reasoning.summary or reasoning.generate_summary) is not None,
        encrypted=ENCRYPTED in include,
        logprobs=options.sampling.logprobs,
    )


def _shown_tools(tools: object) -> list[object]:
    """Return the tools without the secrets of MCP servers, and functions with all of their fields."""
    visible: list[object] = []
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "mcp":
            tool = {name: value for name, value in tool.items() if name not in ("authorization", "headers")}
        elif kind == "function":
            tool = {"description": None, "parameters": None, "strict": None, **tool}
        visible.append(tool)
    return visible
