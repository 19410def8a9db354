"""Ollama's wire: `/api/chat` and `/api/generate` as lines of JSON, and the endpoints about models.

See https://github.com/ollama/ollama/blob/main/docs/api.md. A request is converted to one of Chat Completions, which has
the same messages, tools and images under other names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

import msgspec
from ag_ui.core import RunAgentInput

from adapters.answer import finish_reason, fold, own_events, raise_failure
from adapters.body import (
    DEFAULT_LIMITS,
    Inbound,
    Limits,
    convert,
    flag,
    integer,
    mapping,
    notes_of_request,
    optional,
    read_object,
    string,
    wrong,
)
from adapters.client_history import NewId
from adapters.errors import payload
from adapters.model_list import ModelCard, no_such_model
from adapters.openai_chat import read_conversation
from adapters.openai_embeddings import EmbeddingQuery, read_inputs
from adapters.openai_tokens import chat_logprobs
from adapters.request_fields import (
    BOOLEAN,
    INTEGER,
    OBJECT,
    OBJECTS,
    STRING,
    STRINGS,
    Field,
    accepted,
    honoured,
    ignored,
    read_fields,
    refused,
)
from adapters.request_options import EFFORTS, read_options
from adapters.sse import json_bytes
from events.metadata import RunTimings, finished_metadata, is_cut, visible_tokens
from events.vocabulary import (
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

CONTENT_TYPE = "application/x-ndjson"
LATEST = ":latest"
"""The tag that Ollama's clients append to a model's name without a tag."""
_COMMON: dict[str, Field] = {
    "model": honoured("a name of `/api/tags`", STRING),
    "stream": honoured("true if absent", BOOLEAN),
    "format": honoured('"json", or a JSON schema', {"type": ["string", "object"]}),
    "options": honoured("sampling parameters; `num_predict` is maximum number of tokens of the answer", OBJECT),
    "think": honoured("true, false, or an effort", {"type": ["boolean", "string"]}),
    "logprobs": honoured("reports each token's log probability", BOOLEAN),
    "top_logprobs": honoured("alternatives reported for each token", INTEGER),
    "keep_alive": accepted("the operator decides which models stay loaded"),
    "truncate": accepted("a conversation that does not fit is refused"),
    "shift": accepted("an answer ends where the context does"),
}
CHAT_FIELDS: dict[str, Field] = {
    **_COMMON,
    "messages": honoured("with `images`, `thinking`, `tool_calls` and `tool_name`", OBJECTS),
    "tools": honoured("functions", OBJECTS),
}
GENERATE_FIELDS: dict[str, Field] = {
    **_COMMON,
    "prompt": honoured("a question, rendered with the chat template", STRING),
    "system": honoured("the system message", STRING),
    "images": honoured("in base64, where the model sees", STRINGS),
    "raw": honoured("true: the prompt is what the model reads, without a template", BOOLEAN),
    "suffix": refused("there is no completion in the middle", neutral=("",)),
    "template": refused("the model's own template is used", neutral=("",)),
    "context": ignored("earlier turns belong to /api/chat", neutral=([],)),
}
_OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
_SAMPLING = frozenset({
    "temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "presence_penalty", "frequency_penalty",
    *_OPTIONS,
})  # fmt: skip


class OllamaFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the outbound side needs of the request (`Inbound.extra`). chat: answer with messages instead of texts. load:
    the request only loads the model. logprobs: alternatives for each token, None without them."""

    chat: bool = True
    load: bool = False
    logprobs: int | None = None


class OllamaIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """hidden_tools: names of the server's own tools. now: returns seconds since the epoch."""

    model: str
    now: Callable[[], float]
    hidden_tools: Container[str] = ()


# ---- requests -------------------------------------------------------------------------------------------------------


def parse_chat(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()) -> Inbound:
    """Read `POST /api/chat`. media: kinds of content besides text that the model reads. Raises RequestError."""
    values = read_fields(read_object(body, limits), CHAT_FIELDS)
    declared: list[OllamaMessage] = convert(values.get("messages") or [], list[OllamaMessage], "messages")
    conversation = {"messages": _as_chat(declared), "tools": values.get("tools")}
    return _inbound(values, conversation, OllamaFlags(load=not declared), new_id, limits, media)


def parse_generate(
    body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = ()
) -> Inbound:
    """Read `POST /api/generate`. Raises RequestError."""
    values = read_fields(read_object(body, limits), GENERATE_FIELDS)
    prompt = optional(string, "prompt", values.get("prompt")) or ""
    system = optional(string, "system", values.get("system"))
    raw = flag(values, "raw")
    if raw and (system or values.get("images")):
        raise wrong("raw", "cannot be combined with system or images")
    question = OllamaMessage(role="user", content=prompt, images=values.get("images"))
    turns = [OllamaMessage(role="system", content=system), question] if system else [question]
    flags = OllamaFlags(chat=False, load=not prompt and not values.get("images"))
    inbound = _inbound(values, {"messages": _as_chat(turns)}, flags, new_id, limits, media)
    if not raw or not prompt:
        return inbound
    run = inbound.input.model_copy(update={"messages": []})
    return msgspec.structs.replace(
        inbound, input=run, options=msgspec.structs.replace(inbound.options, raw_prompt=prompt)
    )


class OllamaCall(msgspec.Struct):
    function: dict[str, Any]
    id: str | None = None


class OllamaMessage(msgspec.Struct):
    """One entry of `messages`."""

    role: str
    content: Any = None
    thinking: str | None = None
    images: Any = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


def _as_chat(messages: Iterable[OllamaMessage]) -> list[dict[str, object]]:
    """Convert messages to those of Chat Completions. A result only names its tool, so it is assigned to the oldest call
    of that tool without a result."""
    chat: list[dict[str, object]] = []
    waiting: list[tuple[str, object]] = []
    for number, message in enumerate(messages):
        entry: dict[str, object] = {"role": message.role, "content": message.content}
        if message.images:
            pictures = message.images if isinstance(message.images, list) else [message.images]
            parts = [{"type": "image_url", "image_url": picture} for picture in pictures]
            entry["content"] = [{"type": "text", "text": message.content}, *parts] if message.content else parts
        if message.thinking:
            entry["reasoning"] = message.thinking
        calls: list[dict[str, Any]] = [
            {"id": call.id or f"call_{number}_{index}", "function": call.function}
            for index, call in enumerate(message.tool_calls or ())
        ]
        if calls:
            entry["tool_calls"] = calls
            waiting += [(str(call["id"]), call["function"].get("name")) for call in calls]
        if message.role == "tool":
            answered = [id for id, name in waiting if message.tool_name in (None, name)]
            call_id = message.tool_call_id or next(iter(answered), None)
            waiting = [entry for entry in waiting if entry[0] != call_id]
            entry["tool_call_id"] = call_id
        chat.append(entry)
    return chat


def _inbound(
    values: dict[str, Any],
    conversation: dict[str, object],
    flags: OllamaFlags,
    new_id: NewId,
    limits: Limits,
    media: Collection[str],
) -> Inbound:
    if not values.get("model"):
        raise wrong("model", "is required")
    messages, tools = ([], []) if flags.load else read_conversation(
        conversation, new_id=new_id, limits=limits, media=media
    )  # fmt: skip
    source: dict[str, object] = {"model": values["model"]}
    for name, value in mapping("options", values.get("options") or {}).items():
        if name in _SAMPLING:
            source[_OPTIONS.get(name, name)] = value
        elif name != "num_ctx":  # the server sets the context length
            notes_of_request().warn("options has entries that this server does not support; they are ignored.")
    source["stop"] = [source["stop"]] if isinstance(source.get("stop"), str) else source.get("stop")
    if isinstance(source.get("max_tokens"), int) and source["max_tokens"] in (
        -1,
        -2,
    ):  # without end; what the context has
        del source["max_tokens"]
    think = values.get("think")
    if isinstance(think, str) and think in EFFORTS:
        source["reasoning_effort"] = think
    elif think is not None:
        source["enable_thinking"] = think
    if flag(values, "logprobs"):
        source |= {"logprobs": True, "top_logprobs": values.get("top_logprobs")}
    if (shape := values.get("format")) not in (None, ""):
        schema = {"type": "json_schema", "json_schema": {"name": "format", "schema": shape, "strict": True}}
        source["response_format"] = {"type": "json_object"} if shape == "json" else schema
    options, _ = read_options(source)
    run = RunAgentInput(
        thread_id=new_id("thread"), run_id=new_id("run"), messages=messages, tools=tools, context=[], state={},
        forwarded_props={},
    )  # fmt: skip
    return Inbound(
        input=run,
        options=msgspec.structs.replace(options, store=False),
        stream=flag(values, "stream", True),
        extra=msgspec.structs.replace(flags, logprobs=options.sampling.logprobs),
    )


def parse_embed(body: bytes, *, limits: Limits = DEFAULT_LIMITS, old: bool = False) -> EmbeddingQuery:
    """Read `POST /api/embed`, or (old) `/api/embeddings`, which takes a single `prompt`. Raises RequestError."""
    names = ("model", "prompt" if old else "input", "truncate", "dimensions", "options", "keep_alive")
    values = read_fields(read_object(body, limits), {name: honoured() for name in names})
    return EmbeddingQuery(
        inputs=read_inputs(values.get(names[1]), names[1]),
        model=optional(string, "model", values.get("model")),
        dimensions=optional(integer, "dimensions", values.get("dimensions")),
        truncate=-1 if flag(values, "truncate", True) else None,
    )


def parse_show(body: bytes, *, limits: Limits = DEFAULT_LIMITS) -> str:
    """Return the model that `POST /api/show` names. Raises RequestError."""
    fields = {name: honoured() for name in ("model", "name", "verbose", "system", "template", "options")}
    values = read_fields(read_object(body, limits), fields)
    return string("model", values.get("model") or values.get("name"))


# ---- answers --------------------------------------------------------------------------------------------------------


class OllamaStream:
    """Encodes one run's events as lines of JSON."""

    content_type = CONTENT_TYPE

    def __init__(self, identity: OllamaIdentity, flags: OllamaFlags) -> None:
        self._identity = identity
        self._flags = flags
        self._calls: dict[str, tuple[str, list[str]]] = {}
        self._sent_calls = 0

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        if getattr(event, "subagent_run_id", None) is not None:
            return b""
        match event:
            case TextMessageContent(delta=delta):
                return self._line(self._piece(content=delta), **self._logprobs(event))
            case ReasoningMessageContent(delta=delta):
                return self._line(self._piece(thinking=delta), **self._logprobs(event))
            case ToolCallStart(tool_call_id=id, tool_call_name=name) if name not in self._identity.hidden_tools:
                self._calls[id] = (name, [])
            case ToolCallArgs(tool_call_id=id, delta=delta) if id in self._calls:
                self._calls[id][1].append(delta)
            case ToolCallEnd(tool_call_id=id) if id in self._calls:
                name, pieces = self._calls.pop(id)
                if not is_cut(event.metadata):
                    call = _call(id, self._sent_calls, name, "".join(pieces))
                    self._sent_calls += 1
                    return self._line(self._piece(tool_calls=[call]))
            case RunFinished():
                end = _ending(_finish(event), event.usage or (), finished_metadata(event).timings)
                return self._line(self._piece(content=""), **end)
            case RunError():
                return json_bytes(payload("ollama", event.code or "internal", event.message)) + b"\n"
            case _:
                pass
        return b""

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        """Return nothing: clients expect an object in every line."""
        return b""

    def _piece(self, content: str = "", thinking: str = "", **more: object) -> dict[str, object]:
        if self._flags.chat:
            reasoning = {"thinking": thinking} if thinking else {}
            return {"message": {"role": "assistant", "content": content, **reasoning, **more}}
        return {"response": content, **({"thinking": thinking} if thinking else {}), **more}

    def _line(self, piece: dict[str, object], **end: object) -> bytes:
        return json_bytes({**_head(self._identity), **piece, "done": False, **end}) + b"\n"

    def _logprobs(self, event: TextMessageContent | ReasoningMessageContent) -> dict[str, object]:
        if self._flags.logprobs is None or not (tokens := visible_tokens(event.metadata)):
            return {}
        return {"logprobs": chat_logprobs(tokens, self._flags.logprobs)}


def ollama_body(events: Sequence[Event], identity: OllamaIdentity, flags: OllamaFlags) -> bytes:
    """Encode a finished run as one object. Raises RequestError for a failed run."""
    answer = fold(events, hidden_tools=identity.hidden_tools)
    raise_failure(answer, "agui")
    extra: dict[str, object] = {"thinking": answer.reasoning} if answer.reasoning else {}
    complete = (call for call in answer.calls if call.complete)
    calls = [_call(call.id, index, call.name, call.arguments) for index, call in enumerate(complete)]
    if calls:
        extra["tool_calls"] = calls
    if flags.chat:
        piece: dict[str, object] = {"message": {"role": "assistant", "content": answer.text, **extra}}
    else:
        piece = {"response": answer.text, **extra}
    if flags.logprobs is not None:
        piece["logprobs"] = chat_logprobs([*answer.pieces.reasoning_tokens, *answer.pieces.text_tokens], flags.logprobs)
    finished = next(event for event in own_events(events) if isinstance(event, RunFinished))
    end = _ending(_finish(finished), answer.usage, answer.metadata.timings)
    return json_bytes({**_head(identity), **piece, **end})


def loaded_body(identity: OllamaIdentity, flags: OllamaFlags) -> bytes:
    """Encode the answer to a request that only loads the model."""
    piece = {"message": {"role": "assistant", "content": ""}} if flags.chat else {"response": ""}
    return json_bytes({**_head(identity), **piece, "done": True, "done_reason": "load"})


def _head(identity: OllamaIdentity) -> dict[str, object]:
    return {"model": identity.model, "created_at": _time(identity.now())}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _call(id: str, index: int, name: str, arguments: str) -> dict[str, object]:
    try:
        values = msgspec.json.decode(arguments or "{}", type=dict[str, object])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        values = {"arguments": arguments}
    return {"id": id, "function": {"index": index, "name": name, "arguments": values}}


def _finish(event: RunFinished) -> str:
    reason = finish_reason(event)
    return "stop" if reason == "tool_calls" else reason


def _ending(reason: str, usage: Iterable[TokenUsage], timings: RunTimings) -> dict[str, object]:
    """Return the last line's fields. Durations are in nanoseconds; that of the prompt ends with the first token."""
    parts = list(usage)
    total, first = timings.total or 0.0, timings.first_token if timings.first_token is not None else timings.total
    return {
        "done": True,
        "done_reason": reason,
        "total_duration": int(total * 1e9),
        "load_duration": 0,
        "prompt_eval_count": sum(part.input_tokens or 0 for part in parts),
        "prompt_eval_duration": int((first or 0.0) * 1e9),
        "eval_count": sum(part.output_tokens or 0 for part in parts),
        "eval_duration": int(max(0.0, total - (first or 0.0)) * 1e9),
    }


# ---- models ---------------------------------------------------------------------------------------------------------

CAPABILITIES = {"tools": "tools", "reasoning": "thinking"}


def _details(card: ModelCard) -> dict[str, object]:
    family = str(card.root or card.id)
    return {
        "parent_model": "", "format": "safetensors", "family": family, "families": [family], "parameter_size": "",
        "quantization_level": "",
    }  # fmt: skip


def tags_body(cards: Iterable[ModelCard]) -> bytes:
    """Encode `GET /api/tags` and `/api/ps`. Ollama's clients identify models by a digest, here that of the name."""
    models = [
        {
            "name": card.id,
            "model": card.id,
            "modified_at": _time(card.created),
            "size": 0,
            "digest": sha256(card.id.encode()).hexdigest(),
            "details": _details(card),
            "context_length": card.context_length,
        }
        for card in cards
    ]
    return json_bytes({"models": models})


def show_body(cards: Iterable[ModelCard], name: str) -> bytes:
    """Encode `POST /api/show`. Raises RequestError("not_found")."""
    card = next((card for card in cards if card.id == name), None)
    if card is None:
        raise no_such_model(name)
    chats = not {"embeddings", "rerank", "transcription"} & card.capabilities.keys()
    kinds = ["completion"] if chats else ["embedding"] if "embeddings" in card.capabilities else []
    kinds += [ollama_name for capability, ollama_name in CAPABILITIES.items() if card.capabilities.get(capability)]
    kinds += ["vision"] if "image" in card.modalities else []
    kinds += ["audio"] if "audio" in card.modalities else []
    details = _details(card)
    info: dict[str, object] = {"general.architecture": details["family"], "general.basename": card.id}
    if card.context_length is not None:
        info[f"{details['family']}.context_length"] = card.context_length
    return json_bytes(
        {
            "modelfile": f"FROM {card.id}\n",
            "parameters": "",
            "template": "",
            "details": details,
            "model_info": info,
            "capabilities": kinds,
            "modified_at": _time(card.created),
        }
    )


def embed_body(vectors: Sequence[Sequence[float]], tokens: int, model: str, *, old: bool = False) -> bytes:
    if old:
        return json_bytes({"embedding": list(vectors[0])})
    embeddings = [list(vector) for vector in vectors]
    return json_bytes({"model": model, "embeddings": embeddings, "prompt_eval_count": tokens})


def version_body(version: str) -> bytes:
    return json_bytes({"version": version})
