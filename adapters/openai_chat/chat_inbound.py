"""A Chat Completions request → RunAgentInput and GenerationOptions.

Messages are read with repairs of common and harmless mistakes of clients: null and missing content, parts where text is
expected, roles in capitals, missing or repeated call ids, arguments that are an object, empty or cut off, results out
of order, the deprecated `function` role. Anything else that is invalid raises a RequestError that names the message.
Unknown fields of a message are ignored without a warning, since clients send back whole answers with the fields that
another server added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from ag_ui.core import (
    AssistantMessage,
    AudioPart,
    ContentPart,
    DataSource,
    DeveloperMessage,
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
    VideoPart,
)

from adapters.body import (
    DEFAULT_LIMITS,
    KINDS,
    Inbound,
    Lenient,
    Limits,
    check_media,
    convert,
    current_turn_start,
    flag,
    notes_of_request,
    read_object,
    wrong,
)
from adapters.client_history import NewId, PlacedMessage, object_text, put_in_order
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
from adapters.request_options import EFFORTS, check_tool_choice, read_options, top_level_format
from adapters.request_tools import ToolList, ToolSpec, arguments_of, custom_spec, read_tools
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
    "response_format": honoured(
        "text, json_object (a `schema` with it is enforced), json_schema, structural_tag", OBJECT
    ),
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
    "prompt_cache_key": accepted("prefixes are cached by content; the key is not used"),
    "prompt_cache_retention": accepted("prefixes stay cached while there is room"),
    "prompt_cache_options": accepted("prefixes are cached by content; breakpoints are not used"),
    "service_tier": ignored("there is one tier", neutral=("auto", "default"), schema=STRING),
    "modalities": refused("answers are text", neutral=(["text"],), schema=STRINGS),
    "verbosity": ignored("models have no such switch", neutral=("medium",), schema=STRING),
    "audio": refused("answers are text"),
    "function_call": honoured("the older form of `tool_choice`, for `functions`", {"type": ["string", "object"]}),
    "functions": honoured("the older form of `tools`; answered with `function_call`", OBJECTS),
    "moderation": refused("nothing is moderated"),
    "prediction": honoured("draft tokens are taken from its text, where the engine speculates", OBJECT),
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
    functions, choice = values.get("functions"), values.get("function_call")
    if functions is None and choice is not None:
        raise wrong("function_call", "needs functions")
    if functions is not None:  # `functions` and `function_call` are deprecated names of `tools` and `tool_choice`
        if values.get("tools") is not None or values.get("tool_choice") is not None:
            raise wrong("functions", "cannot be combined with tools; leave functions out")
        if functions == []:
            raise wrong("functions", "must not be empty")
        declared: list[FunctionSpec] = convert(functions, list[FunctionSpec], "functions")
        values = {
            **values,
            "tools": [{"type": "function", "function": msgspec.to_builtins(function)} for function in declared],
            "tool_choice": {"type": "function", "function": choice} if isinstance(choice, dict) else choice,
            "parallel_tool_calls": False,
        }
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


class ReasoningOptions(Lenient, frozen=True):
    effort: object = None
    enabled: bool | None = None
    exclude: bool | None = None


def _options(values: dict[str, object], tools: ToolList) -> tuple[GenerationOptions, ChatFlags]:
    values = dict(values)
    # `thinking` and `reasoning`, as other servers name `enable_thinking` and `reasoning_effort`.
    thinking = values.get("thinking")
    if isinstance(thinking, dict) and thinking.get("type") in ("enabled", "disabled"):
        thinking = thinking["type"] == "enabled"
    if thinking is not None and not isinstance(thinking, bool):
        raise wrong("thinking", "must be true or false")
    reasoning: ReasoningOptions = convert(values.get("reasoning") or {}, ReasoningOptions, "reasoning")
    enabled = reasoning.enabled if thinking is None else thinking
    if enabled is not None and values.get("enable_thinking") is None:
        values["enable_thinking"] = enabled
    if reasoning.effort is not None and values.get("reasoning_effort") is None:
        values["reasoning_effort"] = reasoning.effort
    shows_reasoning = flag(values, "include_reasoning", True) and not reasoning.exclude
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
    if (shape := top_level_format(values)) is not None:
        changes["response_format"] = shape
    flags = ChatFlags(
        include_usage=bool(stream_options.include_usage),
        logprobs=options.sampling.logprobs,
        token_ids=values.get("return_token_ids") is True,
        reasoning=shows_reasoning,
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
    specs: list[ToolSpec] = []
    for i, tool in enumerate(declared):
        if tool.type == "custom" and tool.custom is not None:
            specs.append(custom_spec(tool.custom, f"tools.{i}.custom"))
        elif tool.type == "function" and (spec := tool.function) is not None:
            at = f"tools.{i}.function"
            specs.append(ToolSpec(spec.name, spec.description, spec.parameters, spec.strict, at))
        else:
            what = 'must be "function", with a function, or "custom", with a custom tool'
            raise wrong(f"tools.{i}.type", what)
    return read_tools(specs, limits)


# ---- messages --------------------------------------------------------------------------------------------------------


class ChatMessage(msgspec.Struct):
    """One message of the request; only `role` is required."""

    role: str
    content: Any = None
    name: Any = None
    tool_calls: object = None
    tool_call_id: Any = None
    function_call: object = None
    reasoning: Any = None
    reasoning_content: object = None
    refusal: object = None
    audio: object = None


def read_messages(
    messages: Sequence[ChatMessage], *, new_id: NewId, limits: Limits, media: Collection[str] = ()
) -> list[Message]:
    """Convert the messages of a request. Raises RequestError("invalid_request") with the message's position.

    media: kinds of content besides text that the model reads: "image", "audio", "video", "document".
    """
    if not messages:
        raise wrong("messages", "must not be empty")
    if len(messages) > limits.messages:
        raise wrong("messages", f"must have at most {limits.messages} items")
    turn_start = current_turn_start(message.role.strip().lower() for message in messages)
    reader = _ChatMessagesReader(new_id, limits)
    placed = [
        PlacedMessage(result, f"messages.{i}")
        for i, message in enumerate(messages)
        for result in reader.read(message, f"messages.{i}", media if i >= turn_start else KINDS)
    ]
    return put_in_order(placed, new_id)


class _ChatMessagesReader:
    """Keeps the calls that have no result yet, to assign one to a result without a call id."""

    def __init__(self, new_id: NewId, limits: Limits) -> None:
        self._new_id = new_id
        self._limits = limits
        self._waiting: list[tuple[str, str]] = []

    def read(self, message: ChatMessage, at: str, media: Collection[str]) -> Iterable[Message]:
        """Convert one message. media: kinds of content that are accepted in a user message."""
        match message.role.strip().lower():
            case "system" | "developer" as role:
                kind = SystemMessage if role == "system" else DeveloperMessage
                text = self._text(message.content, at)
                return [kind(id=self._new_id("msg"), content=text, name=self._name(message, at))]
            case "user":
                content = self._content(message.content, at, media)
                return [UserMessage(id=self._new_id("msg"), content=content, name=self._name(message, at))]
            case "assistant":
                return self._assistant(message, at)
            case "tool":
                call_id = self._id(message.tool_call_id, f"{at}.tool_call_id")
                if not call_id:
                    if len(self._waiting) != 1:
                        raise wrong(f"{at}.tool_call_id", "must name the call that this result answers")
                    call_id = self._waiting[0][0]
                return [self._result(message, call_id, at)]
            case "function":
                named_call = next((call for call, name in self._waiting if name == message.name), None)
                if named_call is None:
                    raise wrong(at, "answers a function that no message called")
                return [self._result(message, named_call, at)]
        raise wrong(f"{at}.role", "must be one of system, developer, user, assistant, tool, function")

    def _assistant(self, message: ChatMessage, at: str) -> Iterable[Message]:
        if message.audio is not None:
            raise wrong(f"{at}.audio", "is not supported: this server stores no audio answers")
        for name in ("reasoning", "reasoning_content"):
            reasoning = getattr(message, name)
            if reasoning is not None and not isinstance(reasoning, str):
                raise wrong(f"{at}.{name}", "must be a string")
            if reasoning:
                yield ReasoningMessage(id=self._new_id("rsn"), content=reasoning)
                break
        entries = message.tool_calls or []
        if not isinstance(entries, list) or len(entries) > self._limits.tool_calls:
            raise wrong(f"{at}.tool_calls", f"must be an array of at most {self._limits.tool_calls} items")
        if message.function_call:
            entries = [*entries, {"function": message.function_call}]
        calls: list[ToolCall] = []
        for i, entry in enumerate(entries):
            place = f"{at}.tool_calls.{i}"
            kind = "custom" if isinstance(entry, dict) and "custom" in entry else "function"
            function = entry.get(kind) if isinstance(entry, dict) else None
            if not isinstance(function, dict):
                raise wrong(place, "must have a function")
            called = function.get("name")
            if not isinstance(called, str) or not 0 < len(called) <= self._limits.name:
                raise wrong(f"{place}.{kind}.name", "must be a name")
            if kind == "custom":
                arguments = arguments_of(function.get("input"), f"{place}.custom.input")
            else:
                arguments = object_text(function.get("arguments"), f"{place}.function.arguments")
            call_id = self._id(entry.get("id"), f"{place}.id") or self._new_id("call")
            calls.append(ToolCall(id=call_id, function=FunctionCall(name=called, arguments=arguments)))
        self._waiting.extend((call.id, call.function.name) for call in calls)
        text = self._text(message.content, at) or self._text(message.refusal, f"{at}.refusal")
        yield AssistantMessage(
            id=self._new_id("msg"),
            content=text if text or not calls else None,
            tool_calls=calls or None,
            name=self._name(message, at),
        )

    def _result(self, message: ChatMessage, call_id: str, at: str) -> ToolMessage:
        self._waiting = [entry for entry in self._waiting if entry[0] != call_id]
        return ToolMessage(
            id=self._new_id("msg"), tool_call_id=call_id, content=self._content(message.content, at, KINDS)
        )

    def _id(self, value: object, at: str) -> str:
        if value is None:
            return ""
        if not isinstance(value, str) or len(value) > self._limits.name:
            raise wrong(at, f"must be a string of at most {self._limits.name} characters")
        return value

    def _name(self, message: ChatMessage, at: str) -> str | None:
        return self._id(message.name, f"{at}.name") or None

    def _text(self, content: object, at: str) -> str:
        """Read the content of a role that allows only text; several parts become lines."""
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, at, media=())
        return "\n".join(part.text for part in parts if isinstance(part, TextPart))

    def _content(self, content: object, at: str, media: Collection[str]) -> str | list[ContentPart]:
        if content is None or isinstance(content, str):
            return content or ""
        parts = self._parts(content, at, media=media)
        if len(parts) == 1 and isinstance(parts[0], TextPart):
            return parts[0].text
        return parts

    def _parts(self, content: object, at: str, *, media: Collection[str]) -> list[ContentPart]:
        if isinstance(content, dict):
            content = [content]
        if not isinstance(content, list) or len(content) > self._limits.parts:
            raise wrong(f"{at}.content", f"must be a string or an array of at most {self._limits.parts} parts")
        return [read_part(part, f"{at}.content.{i}", media) for i, part in enumerate(content)]


def read_part(part: Any, at: str, media: Collection[str]) -> ContentPart:
    """Convert a content part of Chat Completions or Responses. Raises RequestError, also for a kind not in `media`."""
    if isinstance(part, str):
        return TextPart(text=part)
    kind = part.get("type") if isinstance(part, dict) else None
    match kind:
        case "text" | "input_text" | "output_text" | "refusal":
            text = part.get("refusal" if kind == "refusal" else "text")
            if not isinstance(text, str):
                raise wrong(f"{at}.text", "must be a string")
            return TextPart(text=text)
        case "image_url" | "input_image":
            check_media("image", media, at)
            return ImagePart(source=_source(part.get("image_url"), part.get("file_id"), "image/png", at))
        case "video_url":
            check_media("video", media, at)
            return VideoPart(source=_source(part.get("video_url"), None, "video/mp4", at))
        case "audio_url":
            check_media("audio", media, at)
            return AudioPart(source=_source(part.get("audio_url"), None, "audio/wav", at))
        case "input_audio":
            check_media("audio", media, at)
            audio = part.get("input_audio")
            if not isinstance(audio, dict) or not isinstance(audio.get("data"), str):
                raise wrong(f"{at}.input_audio", "must have base64 data")
            form = audio.get("format")
            mime = f"audio/{form if form in ('wav', 'mp3', 'flac') else 'wav'}"
            return AudioPart(source=DataSource(value=audio["data"], mime_type=mime))
        case "file" | "input_file":
            check_media("document", media, at)
            file = part.get("file") if kind == "file" else part
            file = file if isinstance(file, dict) else {}
            address = file.get("file_data") or file.get("file_url")
            source = _source(address, file.get("file_id"), "application/pdf", at)
            filename = file.get("filename")  # in the metadata field that AG-UI's clients use
            metadata = {"filename": filename} if isinstance(filename, str) and filename else None
            return DocumentPart(source=source, metadata=metadata)
    raise wrong(f"{at}.type", "is not a kind of content that this server knows")


def _source(address: object, file_id: object, mime: str, at: str) -> PartSource:
    """Read a data URL, a web address, bare base64 or the id of an uploaded file."""
    url = address.get("url") if isinstance(address, dict) else address
    if isinstance(url, str) and url.startswith(("http://", "https://")):
        return UrlSource(value=url)
    if isinstance(url, str) and url.startswith("data:"):
        head, comma, data = url[5:].partition(",")
        if comma and head.endswith(";base64"):
            return DataSource(value=data, mime_type=head.removesuffix(";base64").partition(";")[0] or mime)
    elif isinstance(url, str) and url:
        return DataSource(value=url, mime_type=mime)
    elif isinstance(file_id, str) and file_id:
        return FileSource(value=file_id)
    raise wrong(at, "must have a base64 data URL, a web address or a file id")
