"""OpenAI's Chat Completions: a request → RunAgentInput and GenerationOptions; events → chunks, or one completion.

Messages are read with repairs of common and harmless mistakes of clients: null and missing content, parts where text is
expected, roles in capitals, missing or repeated call ids, arguments that are an object, empty or cut off, results out
of order, the deprecated `function` role. Anything else that is invalid raises a RequestError that names the message.
Unknown fields of a message are ignored without a warning, since clients send back whole answers with the fields that
another server added.

The constant parts of a frame are encoded once, so that a delta only costs the encoding of one JSON string.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
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

from adapters.answer import Answer, PromptOf, field_on, finish_reason, fold, raise_failure, unknown_prompt
from adapters.body import (
    DEFAULT_LIMITS,
    KINDS,
    Inbound,
    Lenient,
    Limits,
    convert,
    current_turn_start,
    flag,
    notes_of_request,
    read_object,
    unsupported_part,
    wrong,
)
from adapters.client_history import NewId, Placed, object_text, put_in_order
from adapters.errors import payload
from adapters.openai_tokens import (
    chat_logprobs,
    combined_usage,
    progress_object,
    prompt_logprobs,
    timings_object,
    usage_so_far,
)
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
from adapters.request_tools import InputText, ToolList, ToolSpec, arguments_of, custom_spec, input_of, read_tools
from adapters.sse import json_bytes, json_string
from events.metadata import Scored, error_metadata, finished_metadata, tokens_of
from events.options import GenerationOptions
from events.sampling import Wire
from events.vocabulary import (
    PROGRESS_EVENT,
    Custom,
    Event,
    ReasoningMessageContent,
    RunError,
    RunFinished,
    TextMessageContent,
    TokenUsage,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)

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
    if (shape := llama_shape(values)) is not None:
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
        Placed(result, f"messages.{i}")
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
            _readable("image", media, at)
            return ImagePart(source=_source(part.get("image_url"), part.get("file_id"), "image/png", at))
        case "video_url":
            _readable("video", media, at)
            return VideoPart(source=_source(part.get("video_url"), None, "video/mp4", at))
        case "audio_url":
            _readable("audio", media, at)
            return AudioPart(source=_source(part.get("audio_url"), None, "audio/wav", at))
        case "input_audio":
            _readable("audio", media, at)
            audio = part.get("input_audio")
            if not isinstance(audio, dict) or not isinstance(audio.get("data"), str):
                raise wrong(f"{at}.input_audio", "must have base64 data")
            form = audio.get("format")
            mime = f"audio/{form if form in ('wav', 'mp3', 'flac') else 'wav'}"
            return AudioPart(source=DataSource(value=audio["data"], mime_type=mime))
        case "file" | "input_file":
            _readable("document", media, at)
            file = part.get("file") if kind == "file" else part
            file = file if isinstance(file, dict) else {}
            address = file.get("file_data") or file.get("file_url")
            source = _source(address, file.get("file_id"), "application/pdf", at)
            filename = file.get("filename")  # in the metadata field that AG-UI's clients use
            metadata = {"filename": filename} if isinstance(filename, str) and filename else None
            return DocumentPart(source=source, metadata=metadata)
    raise wrong(f"{at}.type", "is not a kind of content that this server knows")


def _readable(kind: str, media: Collection[str], at: str) -> None:
    if kind not in media:
        raise unsupported_part(kind, media, at)


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


# ---- outbound --------------------------------------------------------------------------------------------------------

DONE = b"data: [DONE]\n\n"
ANSWER_FAILURES = ("tool_call_parse_error", "cancelled")
"""Failures that are reported within an answer, with finish_reason "error": a malformed call and a cancelled run."""
NO_FLAGS = ChatFlags()


class ChatIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every chunk repeats. created: seconds since the epoch. hidden_tools: names of the server's own
    tools."""

    id: str
    model: str
    created: int
    reasoning_content: bool = True
    hidden_tools: Container[str] = ()


def wire_finish(finish: str, named_tool: bool, functions: bool = False) -> str:
    """Return OpenAI's `finish_reason`. As at OpenAI, it is "stop" after a call that tool_choice named. It is "error"
    for a cancelled run."""
    if finish == "tool_calls":
        return "stop" if named_tool else "function_call" if functions else "tool_calls"
    return finish if finish in ("stop", "length", "error", "content_filter") else "error"


def stop_text(stop: str | int | None, include: bool) -> str:
    """Return the stop string that ended an answer, if its text has to include it."""
    return stop if include and isinstance(stop, str) else ""


def error_object(error: RunError | None, wire: Wire = "chat") -> dict[str, Any]:
    """Return the `error` of a chunk or body. error: None for a cancelled run."""
    if error is None:
        return {"message": "The run was cancelled.", "type": "server_error", "param": None, "code": "cancelled"}
    param = field_on(wire, error_metadata(error).param)
    fields: dict[str, Any] = payload("openai", error.code or "internal", error.message, param=param)["error"]
    if error.code in ANSWER_FAILURES:
        fields["type"] = fields["code"] = error.code
    return fields


class _ChatChoice:
    """The state of one of `n` answers, with the constant beginnings of its frames."""

    __slots__ = (
        "calls", "content_head", "ended", "first", "head", "index", "inputs", "reasoning_head", "tokens", "usage",
    )  # fmt: skip

    def __init__(self, head: bytes, index: int) -> None:
        self.index = index
        self.head = head + b'"choices":[{"index":%d,"delta":{' % index
        self.content_head = self.head + b'"content":'
        self.reasoning_head = self.head + b'"reasoning":'
        self.calls: dict[str, tuple[bytes, int]] = {}
        self.inputs: dict[str, InputText] = {}
        self.first = True
        self.ended = False
        self.tokens = 0
        self.usage: Sequence[TokenUsage] = ()


class ChatStream:
    """Encodes the events of one run, or of `n` runs distinguished by `choice`, as server-sent chunks."""

    content_type = "text/event-stream"

    def __init__(
        self, identity: ChatIdentity, flags: ChatFlags = NO_FLAGS, *, n: int = 1, prompts: Sequence[PromptOf] = ()
    ) -> None:
        """prompts: one for each of the `n` runs, or none."""
        self._flags = flags
        self._prompts = prompts or [unknown_prompt] * n
        self._hidden = identity.hidden_tools
        self._both_names = identity.reasoning_content
        self._details = flags.logprobs is not None or flags.token_ids or flags.continuous_usage
        self._head = b'data: {"id":%b,"object":"chat.completion.chunk","created":%d,"model":%b,' % (
            json_string(identity.id),
            identity.created,
            json_string(identity.model),
        )
        self._close = b',"usage":null}\n\n' if flags.include_usage else b"}\n\n"
        self._tail = b'},"logprobs":null,"finish_reason":null}]' + self._close
        self._choices = [_ChatChoice(self._head, index) for index in range(n)]
        self._skip = len(self._head)

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        handler = _HANDLERS.get(type(event))
        if handler is None or getattr(event, "subagent_run_id", None) is not None:
            return b""
        return handler(self, event, self._choices[choice])

    def finish(self) -> bytes:
        """Return the end mark, after the usage chunk if it was requested and no answer failed."""
        if not self._flags.include_usage or not all(choice.ended for choice in self._choices):
            return DONE
        usage = combined_usage([choice.usage for choice in self._choices])
        return self._head + b'"choices":[],"usage":' + json_bytes(usage) + b"}\n\n" + DONE

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def _text(self, event: TextMessageContent, choice: _ChatChoice) -> bytes:
        if event.metadata is not None and self._details:
            return self._with_details(b'"content":' + json_string(event.delta), event.metadata, choice, "content")
        if not event.delta:
            return b""
        if choice.first or self._flags.continuous_usage:
            return self._delta(b'"content":' + json_string(event.delta), choice)
        return choice.content_head + json_string(event.delta) + self._tail

    def _reasoning(self, event: ReasoningMessageContent, choice: _ChatChoice) -> bytes:
        if not self._flags.reasoning:
            return b""
        text = json_string(event.delta)
        if event.metadata is not None and self._details:
            return self._with_details(self._named_reasoning(text), event.metadata, choice, "reasoning")
        if not event.delta:
            return b""
        if choice.first or self._flags.continuous_usage:
            return self._delta(self._named_reasoning(text), choice)
        if self._both_names:
            return choice.reasoning_head + text + b',"reasoning_content":' + text + self._tail
        return choice.reasoning_head + text + self._tail

    def _named_reasoning(self, text: bytes) -> bytes:
        named = b'"reasoning":' + text
        return named + b',"reasoning_content":' + text if self._both_names else named

    def _call_start(self, event: ToolCallStart, choice: _ChatChoice) -> bytes:
        if event.tool_call_name in self._hidden:
            return b""
        index, id, name = len(choice.calls), json_string(event.tool_call_id), json_string(event.tool_call_name)
        entry = b'"tool_calls":[{"index":%d,' % index
        if self._flags.functions:  # the deprecated form: a single call without an id
            index, arguments_head = 0, b'"function_call":{"arguments":'
            delta = b'"function_call":{"name":%b,"arguments":""}' % name
        elif event.tool_call_name in self._flags.custom:  # it has text instead of arguments
            choice.inputs[event.tool_call_id] = InputText()
            arguments_head = entry + b'"custom":{"input":'
            delta = entry + b'"id":%b,"type":"custom","custom":{"name":%b,"input":""}}]' % (id, name)
        else:
            arguments_head = entry + b'"function":{"arguments":'
            delta = entry + b'"id":%b,"type":"function","function":{"name":%b,"arguments":""}}]' % (id, name)
        choice.calls[event.tool_call_id] = (choice.head + arguments_head, index)
        if event.metadata is not None and self._details:
            return self._with_details(delta, event.metadata, choice, "tool_calls")
        return self._delta(delta, choice)

    def _call_end(self, event: ToolCallEnd, choice: _ChatChoice) -> bytes:
        reader = choice.inputs.pop(event.tool_call_id, None)
        remaining = reader.finish() if reader is not None else ""
        head, _ = choice.calls.get(event.tool_call_id, (b"", -1))
        return head + json_string(remaining) + b"}}]" + self._tail_of(choice) if remaining else b""

    def _arguments(self, event: ToolCallArgs, choice: _ChatChoice) -> bytes:
        head, index = choice.calls.get(event.tool_call_id, (b"", -1))
        if index < 0:
            return b""
        piece, key = event.delta, b'"function":{"arguments"'
        if (reader := choice.inputs.get(event.tool_call_id)) is not None:
            piece, key = reader.feed(piece), b'"custom":{"input"'
        text = json_string(piece)
        if event.metadata is not None and self._details:
            delta = b'"tool_calls":[{"index":%d,%b:%b}}]' % (index, key, text)
            if self._flags.functions:
                delta = b'"function_call":{"arguments":%b}' % text
            return self._with_details(delta, event.metadata, choice, "tool_calls")
        closing = b"}" if self._flags.functions else b"}}]"
        return head + text + closing + self._tail_of(choice) if piece else b""

    def _tail_of(self, choice: _ChatChoice) -> bytes:
        """Return the end of a frame without token details."""
        if not self._flags.continuous_usage:
            return self._tail
        return b'},"logprobs":null,"finish_reason":null}]' + self._close_of(choice)

    def _close_of(self, choice: _ChatChoice) -> bytes:
        """Return what follows a frame's choices: no usage, or this answer's usage so far."""
        if not self._flags.continuous_usage:
            return self._close
        return usage_so_far(self._prompts[choice.index](), choice.tokens)

    def _delta(self, delta: bytes, choice: _ChatChoice, tail: bytes | None = None) -> bytes:
        """Encode a frame with `delta`. A choice's first frame has the role, and the prompt's ids if requested."""
        end = self._tail_of(choice) if tail is None else tail
        if not choice.first:
            return choice.head + delta + end
        choice.first = False
        note = self._prompts[choice.index]() if self._flags.token_ids else None
        prompt_ids = (
            b'"prompt_token_ids":%b,' % json_bytes(note.ids) if note is not None and note.ids is not None else b""
        )
        return self._head + prompt_ids + choice.head[self._skip :] + b'"role":"assistant",' + delta + end

    def _with_details(self, delta: bytes, metadata: dict[str, object], choice: _ChatChoice, kind: str) -> bytes:
        tokens = tokens_of(metadata)
        choice.tokens += len(tokens)
        logprobs = b"null"
        if self._flags.logprobs is not None:
            logprobs = json_bytes(logprobs_object({kind: tokens}, self._flags.logprobs, self._flags.as_ids))
        ids = b',"token_ids":' + json_bytes([token[0] for token in tokens]) if self._flags.token_ids else b""
        tail = b'},"logprobs":' + logprobs + b',"finish_reason":null' + ids + b"}]" + self._close_of(choice)
        return self._delta(delta, choice, tail)

    def _finish_chunk(self, event: RunFinished, choice: _ChatChoice) -> bytes:
        reason = wire_finish(finish_reason(event), self._flags.named_tool, self._flags.functions)
        if reason == "error":
            return self._failure(None, choice)
        choice.ended = True
        choice.usage = event.usage or ()
        metadata = finished_metadata(event)
        tokens = metadata.tokens or ()
        last: dict[str, object] = {"finish_reason": reason}
        if metadata.stop is not None:
            last["stop_reason"] = metadata.stop
        if self._flags.token_ids:
            last["token_ids"] = [token[0] for token in tokens]
        extensions = extensions_of(metadata.warnings, ())
        extra = b',"extensions":' + json_bytes(extensions) if extensions else b""
        if self._flags.timings:
            extra += b',"timings":' + json_bytes(timings_object(metadata.timings, choice.usage))
        choice.tokens += len(tokens)
        close = b"}]" + extra + self._close_of(choice)
        text = stop_text(metadata.stop, self._flags.include_stop)
        opening = b'"content":' + json_string(text) if choice.first or text else b""
        return self._delta(opening, choice, b'},"logprobs":null,' + json_bytes(last)[1:-1] + close)

    def _progress(self, event: Custom, choice: _ChatChoice) -> bytes:
        """Encode the prompt's progress: a frame before the answer's first one, without the role."""
        if event.name != PROGRESS_EVENT or not self._flags.progress:
            return b""
        extra = b',"prompt_progress":' + json_bytes(progress_object(event.value))
        return choice.head + b'},"logprobs":null,"finish_reason":null}]' + extra + self._close_of(choice)

    def _failure(self, event: RunError | None, choice: _ChatChoice) -> bytes:
        """Encode a failure as a frame that clients can read as a chunk that finished with "error" or as an object with
        an `error`. event: None for a cancelled run."""
        error = json_bytes(error_object(event))
        return choice.head + b'},"finish_reason":"error"}],"error":' + error + b"}\n\n"


_HANDLERS: dict[type, Callable[[ChatStream, Any, _ChatChoice], bytes]] = {
    TextMessageContent: ChatStream._text,
    ReasoningMessageContent: ChatStream._reasoning,
    ToolCallStart: ChatStream._call_start,
    ToolCallArgs: ChatStream._arguments,
    ToolCallEnd: ChatStream._call_end,
    Custom: ChatStream._progress,
    RunFinished: ChatStream._finish_chunk,
    RunError: ChatStream._failure,
}


def logprobs_object(kinds: Mapping[str, Sequence[Scored]], top: int, as_ids: bool = False) -> dict[str, object]:
    """Return the `logprobs` of a choice: OpenAI's `content` and `refusal`, and the tokens of reasoning and calls under
    names of our own, since OpenAI has no fields for them."""
    by_kind = {kind: chat_logprobs(tokens, top, as_ids) for kind, tokens in kinds.items() if tokens}
    return {"content": by_kind.pop("content", None), "refusal": None, **by_kind}


def extensions_of(warnings: Sequence[str] | None, interrupts: Sequence[object]) -> dict[str, object]:
    extensions: dict[str, object] = {"warnings": list(warnings)} if warnings else {}
    if interrupts:
        extensions["interrupts"] = list(interrupts)
    return extensions


def chat_body(runs: Sequence[Sequence[Event]], identity: ChatIdentity, flags: ChatFlags = NO_FLAGS) -> bytes:
    """Encode the finished runs of all `n` choices as one `chat.completion`.

    Raises RequestError, with the run's error kind, for a run that ended with RUN_ERROR.
    """
    answers = [fold(events, hidden_tools=identity.hidden_tools) for events in runs]
    for answer in answers:
        raise_failure(answer, "chat", ANSWER_FAILURES)
    broken = next((answer for answer in answers if answer.finish in ("error", "cancelled")), None)
    warnings = list(dict.fromkeys(warning for answer in answers for warning in answer.warnings))
    interrupts = [interrupt for answer in answers for interrupt in answer.interrupts]
    body: dict[str, Any] = {
        "id": identity.id,
        "object": "chat.completion",
        "created": identity.created,
        "model": identity.model,
        "choices": [_choice(answer, index, identity, flags) for index, answer in enumerate(answers)],
        "usage": combined_usage([answer.usage for answer in answers]),
        "extensions": {  # the chunks of all choices in order
            "reasoning_chunks": [chunk for answer in answers for chunk in answer.pieces.reasoning if flags.reasoning],
            "tool_call_chunks": [chunk for answer in answers for chunk in answer.pieces.calls],
            **extensions_of(warnings, interrupts),
        },
    }
    if broken is not None:
        body["error"] = error_object(broken.error)
    if flags.timings and answers:
        body["timings"] = timings_object(answers[0].metadata.timings, answers[0].usage)
    if flags.prompt_logprobs is not None and answers:
        body["prompt_logprobs"] = prompt_logprobs(answers[0].metadata.prompt_logprobs or (), flags.prompt_logprobs)
    if flags.token_ids and answers and (ids := answers[0].metadata.prompt_token_ids) is not None:
        body["prompt_token_ids"] = ids
    return json_bytes(body)


def _choice(answer: Answer, index: int, identity: ChatIdentity, flags: ChatFlags) -> dict[str, object]:
    text = answer.text + stop_text(answer.stop, flags.include_stop)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text or (None if answer.calls else ""),
        "refusal": None,
    }
    if answer.reasoning and flags.reasoning:
        message["reasoning"] = answer.reasoning
        if identity.reasoning_content:
            message["reasoning_content"] = answer.reasoning
    if answer.calls and flags.functions:
        message["function_call"] = {"name": answer.calls[0].name, "arguments": answer.calls[0].arguments}
    elif answer.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "custom", "custom": {"name": call.name, "input": input_of(call.arguments)}}
            if call.name in flags.custom
            else {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.calls
        ]
    logprobs = None
    if flags.logprobs is not None:
        kinds = {
            "content": answer.pieces.text_tokens,
            "reasoning": answer.pieces.reasoning_tokens if flags.reasoning else [],
            "tool_calls": answer.pieces.call_tokens,
        }
        logprobs = logprobs_object(kinds, flags.logprobs, flags.as_ids)
    choice: dict[str, object] = {
        "index": index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": wire_finish(answer.finish, flags.named_tool, flags.functions),
    }
    if answer.stop is not None:
        choice["stop_reason"] = answer.stop
    if flags.token_ids:
        choice["token_ids"] = [token[0] for token in answer.pieces.tokens]
    return choice
