"""AG-UI over HTTP and WebSocket, in its version 1.0 and the one before it: a body to RunAgentInput, events to frames.

Options are in `forwardedProps` under OpenAI's names; other keys there are passed on unchanged. A body without
`protocolVersion` comes from a client older than AG-UI 1.0 (in practice `@ag-ui/client` 0.0.59, inside CopilotKit). Such
a client rejects runs with fields that 1.0 added, so the encoder omits them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from ag_ui.core import AssistantMessage, Message, ReasoningMessage, ResumeEntry, RunAgentInput, ToolMessage
from pydantic import BaseModel, TypeAdapter, ValidationError

from adapters import sse
from adapters.body import (
    DEFAULT_LIMITS,
    KINDS,
    Inbound,
    Lenient,
    Limits,
    check_parts,
    convert,
    known_only,
    read_json,
    wrong,
)
from adapters.errors import RequestError, row
from adapters.forwarded_props import with_action
from adapters.request_options import read_options
from adapters.websocket_messages import CLOSING, Close, ReadMessage, Send, read_text
from events.encode import encode
from events.metadata import ErrorMetadata, as_metadata
from events.options import GenerationOptions
from events.vocabulary import (
    ERROR_EVENT,
    CancelledOutcome,
    Custom,
    Event,
    MessagesSnapshot,
    RunError,
    RunFinished,
    RunStarted,
    SubagentFinished,
    SuccessOutcome,
    ToolCallResult,
)

_OPAQUE_PARTS = "[{kind} content that this client cannot show]"


def downgrade(event: Event) -> Event | None:
    """Return the event for a client older than AG-UI 1.0, or None if it has no counterpart there."""
    match event:
        case RunFinished(outcome=CancelledOutcome()):
            return RunError(
                message="The run was cancelled.",
                code="cancelled",
                usage=event.usage,
                timestamp=event.timestamp,
                metadata=event.metadata,
            )
        case RunFinished(outcome=SuccessOutcome()):
            return msgspec.structs.replace(event, outcome=None)
        case ToolCallResult(content=list(parts)):
            return msgspec.structs.replace(event, content=flatten(parts))
        case MessagesSnapshot():
            return msgspec.structs.replace(event, messages=[_legacy_message(message) for message in event.messages])
        case RunStarted(input=run_input) if run_input is not None:
            wire = run_input.model_dump(mode="json", by_alias=True) if isinstance(run_input, BaseModel) else run_input
            # The old schema requires these fields.
            echoed = {"tools": [], "context": [], "state": {}, "forwardedProps": {}, **wire}
            echoed["messages"] = [_legacy_message(message) for message in wire.get("messages", [])]
            return msgspec.structs.replace(event, input=echoed)
        case SubagentFinished() if event.outcome is not None:
            return msgspec.structs.replace(event, outcome=None)
    return event


def flatten(parts: list[Any]) -> str:
    """Join content parts into one text; a placeholder names each part that is not text."""
    plain = [part.model_dump(by_alias=True) if isinstance(part, BaseModel) else part for part in parts]
    return "\n".join(
        str(part.get("text", "")) if part.get("type") == "text" else _OPAQUE_PARTS.format(kind=part.get("type"))
        for part in plain
    )


def _legacy_message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    if message.get("role") == "tool":
        return message | {"content": flatten(content)}
    parts = [part for part in content if part.get("source", {}).get("type") != "file"]
    return message | {"content": parts}


SSE = sse.CONTENT_TYPE
PROTOBUF = "application/vnd.ag-ui.event+proto"


class Extra(msgspec.Struct, frozen=True, kw_only=True):
    """legacy: the client is older than AG-UI 1.0. forwarded: the keys of forwardedProps that are no options. warnings:
    one sentence for each omitted part of the input."""

    legacy: bool = False
    forwarded: dict[str, object] = {}
    warnings: tuple[str, ...] = ()


_MESSAGE: TypeAdapter[Message] = TypeAdapter(Message)


class _AguiMessageHead(msgspec.Struct):
    id: str
    role: str


class _AguiHead(msgspec.Struct):
    """The form that every body must have; see `read_json`. The ids may have either of two names."""

    messages: list[_AguiMessageHead]


def parse(
    body: bytes, *, new_id: Callable[[str], str], limits: Limits = DEFAULT_LIMITS, media: Collection[str] = KINDS
) -> Inbound:
    """Read a RunAgentInput in JSON. Raises RequestError.

    media: kinds of content besides text that the model takes. `new_id` is not called, since an AG-UI client chooses all
    ids itself.
    """
    return from_wire(read_json(body, limits, shape=_AguiHead), limits=limits, media=media)


def from_wire(wire: dict[str, Any], *, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = KINDS) -> Inbound:
    """As `parse`, from decoded JSON, for wires that wrap a RunAgentInput. `wire` may be modified."""
    if isinstance(wire, dict):
        wire = _with_wire_names(wire, _INPUT_NAMES)
        for key, names in (("messages", _MESSAGE_NAMES), ("resume", _RESUME_NAMES)):
            if isinstance(items := wire.get(key), list):
                wire[key] = [_with_wire_names(each, names) if isinstance(each, dict) else each for each in items]
        wire = with_action(wire)
    # Check the lengths of lists and names before pydantic builds anything.
    if not isinstance(wire, dict) or not isinstance(wire.get("messages"), list):
        raise RequestError("invalid_request", "messages must be an array.", param="messages")
    for key in ("messages", "tools", "context", "resume"):
        _check_length(key, wire.get(key), getattr(limits, key))
    for key in ("threadId", "runId", "parentRunId"):
        _check_name(key, wire.get(key), limits, required=key != "parentRunId")
    for i, message in enumerate(wire["messages"]):
        if isinstance(message, dict):
            path = f"messages.{i}"
            _check_name(f"{path}.id", message.get("id"), limits)
            _check_name(f"{path}.toolCallId", message.get("toolCallId"), limits, required=False)
            _check_length(f"{path}.content", message.get("content"), limits.parts)
            _check_length(f"{path}.toolCalls", message.get("toolCalls"), limits.tool_calls)
            for j, call in enumerate(_items(message.get("toolCalls"))):
                _check_name(f"{path}.toolCalls.{j}.id", call.get("id"), limits)
    for i, tool in enumerate(_items(wire.get("tools"))):
        _check_name(f"tools.{i}.name", tool.get("name"), limits)
        if len(msgspec.json.encode(tool.get("parameters"))) > limits.schema:
            raise wrong(f"tools.{i}.parameters", f"must be at most {limits.schema} bytes of JSON")
    wire = known_only(wire, _INPUT_FIELDS)
    warnings = _normalize_parts(wire["messages"])
    # Validate message by message, so that the first fault ends it and other threads can run in between: pydantic holds
    # the interpreter's lock for a whole call, which takes 0.3 s for 4,000 messages of a dozen parts.
    try:
        run_input = RunAgentInput.model_validate({**wire, "messages": []})
    except ValidationError as error:
        raise _validation_error(error, wire) from None
    messages: list[Message] = []
    for i, message in enumerate(wire["messages"]):
        try:
            messages.append(_MESSAGE.validate_python(message))
        except ValidationError as error:
            raise _validation_error(error, wire, "messages", i) from None
    run_input.messages = messages
    check_parts(run_input.messages, media)
    _check_unique("messages", [message.id for message in run_input.messages])
    _check_unique("tools", [tool.name for tool in run_input.tools or ()])
    _check_unique("resume", [entry.interrupt_id for entry in run_input.resume or ()])
    options, rest = GenerationOptions(), dict[str, object]()
    if isinstance(run_input.forwarded_props, dict):
        options, rest = read_options(run_input.forwarded_props, wire="agui", at="forwardedProps")
        if options.n != 1:
            raise wrong("forwardedProps.n", "must be 1: an AG-UI run has one answer")
    extra = Extra(legacy=run_input.protocol_version is None, forwarded=rest, warnings=tuple(warnings))
    return Inbound(input=run_input, options=options, extra=extra)


# ---- names ----------------------------------------------------------------------------------------------------------


def _names_of(*models: type[BaseModel]) -> dict[str, str]:
    """Map the Python names of fields to those on the wire. Agent Framework's client sends the former."""
    fields = ((name, field.alias) for model in models for name, field in model.model_fields.items())
    return {name: alias for name, alias in fields if alias is not None and alias != name}


_INPUT_NAMES = _names_of(RunAgentInput)
_MESSAGE_NAMES = _names_of(AssistantMessage, ToolMessage, ReasoningMessage)
_RESUME_NAMES = _names_of(ResumeEntry)


def _with_wire_names(value: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    if names.keys().isdisjoint(value):
        return value
    return {
        wire_name: each
        for key, each in value.items()
        if (wire_name := names.get(key, key)) == key or wire_name not in value
    }


# ---- sizes ----------------------------------------------------------------------------------------------------------


def _items(value: object) -> list[dict[str, object]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _check_length(path: str, value: object, limit: int) -> None:
    if isinstance(value, list) and len(value) > limit:
        raise wrong(path, f"must have at most {limit} items")


def _check_name(path: str, value: object, limits: Limits, *, required: bool = True) -> None:
    if isinstance(value, str) and not (required <= len(value) <= limits.name):
        raise wrong(path, f"must have {'from 1 to' if required else 'at most'} {limits.name} characters")


def _check_unique(path: str, names: list[str]) -> None:
    earlier_names: set[str] = set()
    for i, name in enumerate(names):
        if name in earlier_names:
            what = "name" if path == "tools" else "interruptId" if path == "resume" else "id"
            raise wrong(f"{path}.{i}.{what}", "repeats an earlier value; each must be unique")
        earlier_names.add(name)


# ---- content parts --------------------------------------------------------------------------------------------------

# Tuples, not sets: a client's tag may be an unhashable value.
_PART_TYPES = ("text", "image", "audio", "video", "document")
_SOURCE_TYPES = ("data", "url", "file")


def _normalize_parts(messages: list[Any]) -> list[str]:
    """Convert `binary` parts of older clients to the current form, and drop parts of unknown kinds; return warnings.

    The protocol requires that a part that cannot be used is dropped without failing the run.
    """
    warnings: list[str] = []
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list):
            usable: list[object] = []
            for part in map(_modern_part, content):
                source = part.get("source") if isinstance(part, dict) else None
                knows_source = not isinstance(source, dict) or source.get("type") in _SOURCE_TYPES
                if not isinstance(part, dict) or (part.get("type") in _PART_TYPES and knows_source):
                    usable.append(part)
            if dropped := len(content) - len(usable):
                warnings.append(f"messages.{i}: {dropped} content part(s) of an unknown kind left out.")
            message["content"] = usable
    return warnings


def _modern_part(part: object) -> object:
    if not isinstance(part, dict) or part.get("type") != "binary":
        return part
    mime = part.get("mimeType")
    kind = mime.partition("/")[0] if isinstance(mime, str) else ""
    source_key = next((key for key in ("data", "url", "id") if isinstance(part.get(key), str)), None)
    if source_key is None:
        return part
    source = {"type": "file" if source_key == "id" else source_key, "value": part[source_key], "mimeType": mime}
    name = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else None
    return {"type": kind if kind in ("image", "audio", "video") else "document", "source": source, "metadata": name}


# ---- validation -----------------------------------------------------------------------------------------------------

_INPUT_FIELDS = frozenset(field.alias or name for name, field in RunAgentInput.model_fields.items())
_COMPLAINTS = {
    "missing": "is required",
    "string_type": "must be a string",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "bool_type": "must be true or false",
}


def _validation_error(error: ValidationError, wire: object, *above: int | str) -> RequestError:
    """Return the innermost fault with a message of our own, since pydantic's message quotes the value."""
    faults = error.errors(include_input=False, include_url=False, include_context=True)
    fault = max(faults, key=lambda each: len(each["loc"]))
    # Its location as a path, without the names of union members, which are not in the body.
    location, node = (*above, *fault["loc"]), wire
    steps: list[str] = []
    for i, step in enumerate(location):
        last = i == len(location) - 1
        if isinstance(node, dict) and isinstance(step, str) and (step in node or last):
            steps.append(step)
            node = node.get(step)
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            steps.append(str(step))
            node = node[step]
    path = ".".join(steps) or "The body"
    context = fault.get("ctx", {})
    if fault["type"] in ("union_tag_invalid", "literal_error"):
        allowed = str(context.get("expected_tags") or context.get("expected"))
        field = str(context["discriminator"]).strip("'") if "discriminator" in context else ""
        path = f"{path}.{field}" if field else path
        return wrong(path, f"must be one of {allowed}")
    return wrong(path, _COMPLAINTS.get(fault["type"], "does not have the form that AG-UI 1.0 gives it"))


# ---- outbound -------------------------------------------------------------------------------------------------------


class SseEncoder:
    """Encodes events as server-sent events, one frame each; `id:` is the event's sequence number in its run."""

    content_type = SSE

    def __init__(self, *, legacy: bool = False) -> None:
        self._legacy = legacy

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        """Return zero or one frame. AG-UI has one answer per run, so a `choice` other than 0 gives none."""
        outgoing = downgrade(event) if self._legacy else event
        if outgoing is None or choice:
            return b""
        return sse.frame(encode(outgoing), id=sequence)

    def finish(self) -> bytes:
        """Return nothing: the terminal event ends the stream, and `[DONE]` would break the client."""
        return b""

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE


def negotiate(accept: str | None) -> str:
    """Choose the response's content type by the Accept header: SSE unless protobuf is named with at least its weight.

    Raises RequestError if neither is acceptable.
    """
    weights: dict[str, float] = {}
    for entry in (accept or "*/*").split(","):
        kind, *parameters = (piece.strip().lower() for piece in entry.split(";"))
        quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
        try:
            weights[kind] = float(quality)
        except ValueError:
            weights[kind] = 0.0
    offers = {kind: _weight(weights, kind) for kind in (SSE, PROTOBUF)}
    if not any(offers.values()) and not _weight(weights, "application/json"):
        raise RequestError("unsupported_media_type", f"This endpoint answers with {SSE} or {PROTOBUF}; accept one.")
    exact = PROTOBUF in weights
    return PROTOBUF if exact and offers[PROTOBUF] > 0 and offers[PROTOBUF] >= offers[SSE] else SSE


def _weight(weights: dict[str, float], kind: str) -> float:
    return next((weights[key] for key in (kind, kind.partition("/")[0] + "/*", "*/*") if key in weights), 0.0)


# ---- over a WebSocket ------------------------------------------------------------------------------------------------

MAX_AFTER = 2**53
DEFAULT_AGENT = "default"
ControlAction = Literal["cancel", "pause", "resume", "modify"]


class StartRun(NamedTuple):
    inbound: Inbound
    agent: str


class Subscribe(NamedTuple):
    run_id: str
    after: int


class ControlRun(NamedTuple):
    action: ControlAction
    changes: dict[str, object]


Action = Send | StartRun | Subscribe | ControlRun | Close


class _Run(Lenient, frozen=True):
    input: dict[str, object]
    agent: str = DEFAULT_AGENT


class _Subscribe(Lenient, frozen=True, rename="camel"):
    run_id: str
    after: int = 0


class _Parameters(Lenient, frozen=True):
    parameters: dict[str, object] | None = None


class AguiSession:
    """AG-UI over one WebSocket connection as a state machine without I/O. It reads at most one run at a time. The
    server sends the protocol's events, one JSON object each.

    A client sends these messages, each an object with a `type`:

        {"type": "run", "input": RunAgentInput, "agent": name?}      start a run
        {"type": "subscribe", "runId": id, "after": number}          read a run again, from the event after that number
        {"type": "cancel"} {"type": "pause"} {"type": "resume"}      control the run being read
        {"type": "modify", "parameters": {name: value}}              change its sampling from the next token on

    A run's events are numbered from 1 in the order in which they are sent, so a client that counts them can resume
    after a lost connection. A control that fails is reported by a CUSTOM event while a run is being read, and by
    RUN_ERROR otherwise; the protocol allows both there.

    media: returns the kinds of content besides text that the model takes; it is called per message, since they may be
    unknown when the connection opens.
    """

    def __init__(
        self, *, limits: Limits = DEFAULT_LIMITS, media: Callable[[], Collection[str]] = lambda: KINDS
    ) -> None:
        self.reading = False
        self._media = media
        self._limits = limits
        self._legacy = False

    def read(self, data: str | bytes) -> ReadMessage | RequestError:
        """Decode a message. It neither reads nor changes the connection's state, so that a large message can be decoded
        in another thread."""
        try:
            fields = read_text(data, self._limits)
            kind = fields.pop("type", None)
            run: _Run | None = convert(fields, _Run, "") if kind == "run" else None
        except RequestError as error:
            return error
        if run is None:
            return ReadMessage(kind, fields)
        try:
            return ReadMessage(kind, fields, from_wire(run.input, limits=self._limits, media=self._media()))
        except RequestError as error:
            return ReadMessage(kind, fields, error)

    def take(self, message: ReadMessage | RequestError) -> list[Action]:
        """Return the actions for a decoded message."""
        if isinstance(message, RequestError):
            return self._refuse(message)
        kind, fields, inbound = message
        try:
            match kind:
                case "run":
                    self._begin()
                    if not isinstance(inbound, Inbound):
                        return self._refuse(inbound or wrong("input", "is required"))
                    self._legacy = inbound.extra.legacy
                    self.reading = True
                    return [StartRun(inbound, fields.get("agent", DEFAULT_AGENT))]
                case "subscribe":
                    subscription: _Subscribe = convert(fields, _Subscribe, "")
                    self._begin()
                    if not 0 <= subscription.after < MAX_AFTER:
                        raise wrong("after", "must be the number of an event")
                    self.reading = True
                    return [Subscribe(subscription.run_id, subscription.after)]
                case "cancel" | "pause" | "resume" | "modify":
                    control: _Parameters = convert(fields, _Parameters, "")
                    if not self.reading:
                        raise RequestError("invalid_request", f"There is no run to {kind} on this connection.")
                    if (kind == "modify") != bool(control.parameters):
                        raise wrong("parameters", "are required for modify, and allowed for nothing else")
                    return [ControlRun(kind, control.parameters or {})]
            raise wrong("type", "must be run, subscribe, cancel, pause, resume or modify")
        except RequestError as error:
            return self._refuse(error)

    def _refuse(self, error: RequestError) -> list[Action]:
        if error.kind not in CLOSING:
            return self.on_refused(error)
        self.reading = False
        return [*self.on_refused(error), Close(row(error.kind).close, error.kind)]

    def receive(self, data: str | bytes) -> list[Action]:
        """`read` and `take` in one step."""
        return self.take(self.read(data))

    def _begin(self) -> None:
        if self.reading:
            raise RequestError("conflict", "A run is being read on this connection; cancel it, or open another.")

    def event(self, event: Event) -> list[Action]:
        """Return the actions for the next event of the run being read."""
        if isinstance(event, RunFinished | RunError):
            self.reading = False  # from here on the client may start or read another run
        outgoing = downgrade(event) if self._legacy else event
        return [] if outgoing is None else [Send(encode(outgoing))]

    def not_started(self, error: RequestError) -> list[Action]:
        """Report that the run of `StartRun` or `Subscribe` is not available."""
        self.reading = False
        return self.on_refused(error)

    def on_refused(self, error: RequestError) -> list[Action]:
        value = {"code": error.kind, "message": error.message}
        if error.param is not None:
            value["param"] = error.param
        # RUN_ERROR would end the run being read, although the error is not about it.
        if self.reading:
            return [Send(encode(Custom(name=ERROR_EVENT, value=value)))]
        metadata = ErrorMetadata(retryable=row(error.kind).retryable, param=error.param or None)
        return [Send(encode(RunError(message=error.message, code=error.kind, metadata=as_metadata(metadata))))]

    def controlled(self, action: ControlAction, done: bool) -> list[Action]:
        """Report a control that failed. A successful one is visible in the run's events."""
        if done:
            return []
        return self.on_refused(RequestError("invalid_request", f"This model or this run cannot {action} now."))

    def going_away(self) -> list[Action]:
        error = RequestError("unavailable", "The server is shutting down.")
        self.reading = False
        return [*self.on_refused(error), Close(1001, "going away")]
