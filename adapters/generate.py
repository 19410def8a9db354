"""The generation protocol, over HTTP and WebSocket: a config → RunAgentInput and GenerationOptions; events → messages
(init, token, completion, error, status).

A request has a `prompt`, which goes to the model unchanged, or `messages` (and `tools`), which go through the chat
template. Beyond the specification: `channel` distinguishes reasoning and tool calls from content, completion messages
have `reasoning` and `tool_calls`, and `options.include_generated_text: false` omits the text so far, which makes a
stream's size quadratic.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from ag_ui.core import Message, RunAgentInput, Tool, UserMessage

from adapters import sse
from adapters.answer import Answer, fold, own_events, raise_failure
from adapters.body import DEFAULT_LIMITS, Inbound, Lenient, Limits, convert, flag, known_only, read_object, wrong
from adapters.client_history import NewId
from adapters.errors import RequestError, payload, row
from adapters.openai_chat import read_conversation
from adapters.openai_tokens import combined_usage
from adapters.request_options import KNOWN, SAMPLING, check_tool_choice, read_options
from adapters.sse import json_bytes, json_string
from adapters.websocket_messages import CLOSING, Close, ReadMessage, Send, read_text
from events.metadata import CUT, FinishedMetadata, Scored, as_metadata, finished_metadata, is_cut, tokens_of
from events.vocabulary import (
    CONTROL_EVENT,
    Custom,
    Event,
    ReasoningMessageContent,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)

ALTERNATIVES = 5
"""Alternatives for each token under `include_logprobs`, unless `parameters.top_logprobs` is set."""
NOT_PARAMETERS = frozenset({"model", "n", "store", "token_details", "return_token_ids", "logprobs"})
Clock = Callable[[], float]


class Options(Lenient, frozen=True):
    """A request's `options`. apply_chat_template: treat the prompt as a user message."""

    stream: bool = True
    echo_prompt: bool = False
    include_token_ids: bool = False
    include_logprobs: bool = False
    include_timing: bool = False
    include_generated_text: bool = True
    include_reasoning: bool = True
    apply_chat_template: bool = False


class GenerateFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What the outbound side needs of the request (`Inbound.extra`)."""

    options: Options = Options()
    prompt: str = ""
    logprobs: int | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """model_info: version, context length and quantization, if known. hidden_tools: names of the server's own
    tools."""

    request_id: str
    model: str
    model_info: dict[str, object] = {}
    hidden_tools: Container[str] = ()


def parse(body: bytes, *, new_id: NewId, limits: Limits = DEFAULT_LIMITS) -> Inbound:
    """Read the body of `POST /v1/generate`, whose parameters and `stream` are top-level fields. Raises
    RequestError."""
    values = read_object(body, limits)
    top_level = {"prompt", "messages", "tools", "options", "model", "stream"}
    config = {name: values[name] for name in top_level & values.keys()}
    config["parameters"] = {name: value for name, value in values.items() if name not in top_level}
    config["options"] = {"stream": flag(values, "stream"), **(_object(config.get("options"), "options"))}
    config.pop("stream", None)
    return read_config(config, new_id=new_id, limits=limits, at="")


def read_config(
    config: dict[str, Any], *, new_id: NewId, limits: Limits = DEFAULT_LIMITS, at: str = "parameters"
) -> Inbound:
    """Read a config message without its type. at: a prefix of parameters in errors. Raises RequestError."""
    config = known_only(config, ("prompt", "messages", "tools", "options", "model", "parameters"))
    options: Options = convert(_object(config.get("options"), "options"), Options, "options")
    prompt = config.get("prompt")
    if (prompt is None) == (config.get("messages") is None):
        raise wrong("prompt", "or messages is required, but not both")
    messages: list[Message] = []
    tools: list[Tool] = []
    if prompt is None:
        messages, tools = read_conversation(config, new_id=new_id, limits=limits)
    elif not isinstance(prompt, str):
        raise wrong("prompt", "must be a string")
    elif config.get("tools"):
        raise wrong("tools", "needs messages")
    elif options.apply_chat_template:
        messages = [UserMessage(id=new_id("msg"), content=prompt)]
    parameters = _object(config.get("parameters"), "parameters")
    if reserved_name := next((name for name in parameters if name in NOT_PARAMETERS), None):
        raise wrong(f"{at}.{reserved_name}".lstrip("."), "is not a parameter that can be set")
    source = known_only(parameters, KNOWN["generate"], at)
    alternatives = source.pop("top_logprobs", None)
    if options.include_logprobs:
        source |= {"logprobs": True, "top_logprobs": ALTERNATIVES if alternatives is None else alternatives}
    source["model"] = config.get("model")
    base_options, _ = read_options(source, wire="generate", at=at)
    generation = msgspec.structs.replace(base_options, token_details=options.stream or base_options.token_details)
    check_tool_choice(generation.tool_choice, [tool.name for tool in tools], at=f"{at}.tool_choice".lstrip("."))
    if not messages:
        generation = msgspec.structs.replace(generation, raw_prompt=prompt or "")
    run = RunAgentInput(
        thread_id=new_id("thread"),
        run_id=new_id("run"),
        messages=messages,
        tools=tools,
        context=[],
        state={},
        forwarded_props={},
    )
    flags = GenerateFlags(options=options, prompt=prompt or "", logprobs=generation.sampling.logprobs)
    return Inbound(input=run, options=generation, stream=options.stream, extra=flags)


def _object(value: object, at: str) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise wrong(at, "must be an object")
    return value


FILTERED = "A guard of this server stopped the answer here."


class Messages:
    """Encodes a run's events as messages. clock: returns seconds from any fixed point. `position` counts the tokens
    sent."""

    def __init__(self, identity: Identity, flags: GenerateFlags, clock: Clock) -> None:
        self._identity = identity
        self._flags = flags
        self._clock = clock
        self._started = self._last = clock()
        self._first: float | None = None
        self._text: list[str] = []
        self._escaped = bytearray()
        self._reasoning: list[str] = []
        self._calls: dict[str, dict[str, Any]] = {}
        self._heads: dict[str, bytes] = {}
        self.position = 0

    def init(self) -> list[bytes]:
        identity = self._identity
        message: dict[str, Any] = {"type": "init", "request_id": identity.request_id, "model": identity.model}
        if identity.model_info:
            message["model_info"] = identity.model_info
        messages = [json_bytes(message)]
        if self._flags.options.echo_prompt and self._flags.prompt:
            self._append(self._flags.prompt)
            if self._flags.options.stream:
                messages.append(self._token(self._flags.prompt, None, b""))
        return messages

    def encode(self, event: Event) -> list[bytes]:
        if getattr(event, "subagent_run_id", None) is not None:
            return []
        match event:
            case TextMessageContent():
                return self._tokens(event.delta, event.metadata, None, b"")
            case ReasoningMessageContent():
                self._reasoning.append(event.delta)
                if not self._flags.options.include_reasoning:
                    return []
                return self._tokens(event.delta, event.metadata, "reasoning", b',"channel":"reasoning"')
            case ToolCallStart(tool_call_id=call, tool_call_name=name) if name not in self._identity.hidden_tools:
                self._calls[call] = {"id": call, "name": name, "arguments": []}
                tool_call = {"id": call, "name": name}
                self._heads[call] = b',"channel":"tool_call","tool_call":' + json_bytes(tool_call)
            case ToolCallArgs(tool_call_id=call, delta=delta) if call in self._calls:
                self._calls[call]["arguments"].append(delta)
                return self._tokens(delta, event.metadata, "tool_call", self._heads[call])
            case ToolCallEnd(tool_call_id=call) if call in self._calls and is_cut(event.metadata):
                self._calls[call] |= CUT
            case RunFinished():
                # An answer that a guard stopped is reported as an error, followed by the completion.
                answer = fold([event])
                if answer.finish != "content_filter":
                    return [self._completion(answer)]
                message = error_message("content_filter", FILTERED, request_id=self._identity.request_id)
                return [json_bytes(message), self._completion(answer)]
            case RunError():
                # The text so far is included, so that a client can continue from there.
                message = error_message(event.code or "internal", event.message, request_id=self._identity.request_id)
                return [json_bytes(message | {"generated_text": "".join(self._text), **self._beside()})]
            case _:
                pass
        return []

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def _tokens(self, delta: str, metadata: dict[str, object] | None, channel: str | None, extra: bytes) -> list[bytes]:
        """Return a message for each token if their texts make up the delta, and otherwise one for the whole delta."""
        details = tokens_of(metadata)
        pieces: list[tuple[str, Sequence[Scored]]] = [(delta, details)]
        if len(details) > 1 and "".join(detail[1] for detail in details) == delta:
            pieces = [(detail[1], [detail]) for detail in details]
        messages = []
        for text, tokens in pieces:
            if channel is None:
                self._append(text)
            self.position += len(tokens) or 1
            if self._flags.options.stream and (text or tokens):
                messages.append(self._token(text, tokens, extra))
            else:
                self._tick()
        return messages

    def _append(self, text: str) -> None:
        self._text.append(text)
        if self._flags.options.include_generated_text and self._flags.options.stream:
            self._escaped += json_string(text)[1:-1]

    def _token(self, text: str, tokens: Sequence[Scored] | None, extra: bytes) -> bytes:
        options = self._flags.options
        message = b'{"type":"token","token":' + json_string(text)
        if tokens and options.include_token_ids:
            ids = [token[0] for token in tokens]
            message += b',"token_id":%d' % ids[0] if len(ids) == 1 else b',"token_ids":' + json_bytes(ids)
        if options.include_generated_text:
            message += b',"generated_text":"' + self._escaped + b'"'
        if tokens and options.include_logprobs:
            message += b',"logprobs":' + json_bytes(_logprobs(tokens, self._flags.logprobs or 0))
        if tokens is not None:
            token_ms, total_ms = self._tick()
            if options.include_timing:
                message += b',"timing":' + json_bytes({"token_ms": token_ms, "total_ms": total_ms})
        return message + extra + b',"finish_reason":null,"finished":false}'

    def _tick(self) -> tuple[float, float]:
        """Return the milliseconds since the previous token and since the start."""
        now = self._clock()
        if self._first is None:
            self._first = now
        token_ms, self._last = _ms(now - self._last), now
        return token_ms, _ms(now - self._started)

    # ---- endings ----------------------------------------------------------------------------------------------------

    def _completion(self, answer: Answer) -> bytes:
        message: dict[str, Any] = {
            "type": "completion",
            "request_id": self._identity.request_id,
            "generated_text": "".join(self._text),
            "finish_reason": answer.finish,
            "usage": combined_usage([answer.usage]),
            **self._beside(),
        }
        if answer.warnings:
            message["warnings"] = list(answer.warnings)
        if self._flags.options.include_timing:
            first = None if self._first is None else _ms(self._first - self._started)
            message["timing"] = {"first_token_ms": first, "total_ms": _ms(self._clock() - self._started)}
        return json_bytes(message)

    def _beside(self) -> dict[str, object]:
        fields: dict[str, Any] = {}
        if self._reasoning and self._flags.options.include_reasoning:
            fields["reasoning"] = "".join(self._reasoning)
        if self._calls:
            fields["tool_calls"] = [{**call, "arguments": "".join(call["arguments"])} for call in self._calls.values()]
        return fields


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _logprobs(tokens: Sequence[Scored], top: int) -> list[Any]:
    """Return the token and its alternatives; if a message has several tokens, one such list for each."""
    each = [
        [{"token": token[1], "logprob": token[2]}]
        + [{"token": other[1], "logprob": other[2]} for other in (token[3] or ())[:top] if other[0] != token[0]]
        for token in tokens
    ]
    return each[0] if len(each) == 1 else each


def error_message(kind: str, message: str, *, request_id: str | None = None) -> dict[str, Any]:
    """Return an error message. It is `recoverable` if a retry or a different request can succeed."""
    entry = row(kind)
    recoverable = entry.retryable or entry.action is not None or entry.websocket == "invalid_request"
    return payload("websocket", kind, message, request_id=request_id, retryable=recoverable)


def status_message(
    operation: str, progress: float | None, message: str, *, eta: float | None = None, position: int | None = None
) -> bytes:
    """Return a status message. progress: from 0 to 1. eta: seconds."""
    fields: dict[str, Any] = {"type": "status", "operation": operation, "message": message}
    if progress is not None:
        fields["progress"] = round(progress * 100)
    if eta is not None:
        fields["eta_seconds"] = round(eta, 1)
    if position is not None:
        fields["position"] = position
    return json_bytes(fields)


class GenerateStream:
    """The same messages as server-sent events."""

    content_type = sse.CONTENT_TYPE

    def __init__(self, identity: Identity, flags: GenerateFlags, clock: Clock) -> None:
        self._messages = Messages(identity, flags, clock)

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        messages = self._messages.init() if isinstance(event, RunStarted) else self._messages.encode(event)
        return b"".join(sse.frame(message) for message in messages)

    def finish(self) -> bytes:
        return b""

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE


def generate_body(events: Sequence[Event], identity: Identity, flags: GenerateFlags) -> bytes:
    """Encode a finished run as one object. Raises RequestError for a failed run."""
    answer = fold(events, hidden_tools=identity.hidden_tools)
    raise_failure(answer, "generate")
    whole = msgspec.structs.replace(flags, options=msgspec.structs.replace(flags.options, stream=False))
    messages = Messages(identity, whole, lambda: 0.0)
    messages.init()
    last = b"{}"
    for event in own_events(events, identity.hidden_tools):
        last = (messages.encode(event) or [last])[-1]
    completion: dict[str, object] = msgspec.json.decode(last)
    for name in ("type", "request_id", "timing"):
        completion.pop(name, None)
    body: dict[str, Any] = {"id": identity.request_id, "model": identity.model, **completion}
    if flags.options.include_timing:
        first = answer.metadata.timings.first_token
        body["timing"] = {
            "first_token_ms": None if first is None else _ms(first),
            "total_ms": _ms(answer.metadata.timings.total or 0.0),
        }
    if flags.options.include_token_ids:
        body["token_ids"] = [token[0] for token in answer.pieces.tokens]
    if flags.options.include_logprobs:
        body["logprobs"] = [_logprobs([token], flags.logprobs or 0) for token in answer.pieces.tokens]
    return json_bytes(body)


# ---- over a WebSocket ------------------------------------------------------------------------------------------------

State = Literal["waiting", "running", "idle"]
ControlAction = Literal["pause", "resume", "modify"]
_DONE: dict[str, ControlAction] = {"paused": "pause", "resumed": "resume", "modified": "modify"}
CLOSE_DONE, CLOSE_GOING_AWAY, CLOSE_BINARY, CLOSE_UTF8, CLOSE_POLICY, CLOSE_TOO_BIG = 1000, 1001, 1003, 1007, 1008, 1009


class Start(NamedTuple):
    """Start this run, then call `started` or `refused`."""

    inbound: Inbound


class Stop(NamedTuple):
    """Cancel the run; its terminal event follows."""


class ControlRun(NamedTuple):
    """Apply the control, then call `controlled`. changes: sampling parameters by name."""

    action: ControlAction
    changes: dict[str, Any]


class Feedback(NamedTuple):
    """Store the feedback. rating: -1 to 1. position: tokens of the generation that had been sent."""

    request_id: str
    rating: float
    text: str | None
    position: int


Action = Send | Start | Stop | ControlRun | Feedback | Close

FEEDBACK_LENGTH = 65536
"""Characters of one comment."""

# message or control action → the states in which it is accepted
LEGAL: dict[str, frozenset[State]] = {
    "config": frozenset({"waiting", "idle"}),
    "stop": frozenset({"running"}),
    "pause": frozenset({"running"}),
    "resume": frozenset({"running"}),
    "modify": frozenset({"running", "idle"}),
    "regenerate": frozenset({"running", "idle"}),
    "feedback": frozenset({"running", "idle"}),
}


class _Control(Lenient, frozen=True):
    action: Literal["stop", "pause", "resume", "regenerate", "modify"]
    parameters: dict[str, Any] | None = None


class _Feedback(Lenient, frozen=True):
    rating: float
    text: str | None = None
    position: int | None = None


class GenerationSession:
    """The protocol of one connection as a state machine without I/O.

    Feed it messages, a run's events and the outcomes of controls; it returns actions: send, start a run, stop it, and
    so on. The table `LEGAL` says which messages are accepted in which state.

        waiting ── config ──► running ── completion or error ──► idle ── config, regenerate ──► running

    clock: returns seconds from any fixed point.
    """

    def __init__(self, *, new_id: NewId, clock: Clock, limits: Limits = DEFAULT_LIMITS) -> None:
        self.state: State = "waiting"
        self._new_id = new_id
        self._clock = clock
        self._limits = limits
        self._config: dict[str, Any] = {}
        self._request_id: str | None = None
        self._messages: Messages | None = None
        self._flags = GenerateFlags()
        self._again = False
        self._stopping = False
        self._loading_since: float | None = None

    # ---- messages of the client -------------------------------------------------------------------------------------

    def receive(self, data: str | bytes) -> list[Action]:
        """`read` and `take` in one step."""
        return self.take(self.read(data))

    def read(self, data: str | bytes) -> ReadMessage | RequestError:
        """Decode a message. It neither reads nor changes the connection's state, so that a large message can be decoded
        in another thread."""
        try:
            fields = read_text(data, self._limits)
        except RequestError as error:
            return error
        kind = fields.pop("type", None)
        return ReadMessage(kind, fields, self._inbound(fields) if kind == "config" else None)

    def _inbound(self, config: dict[str, Any]) -> Inbound | RequestError:
        try:
            return read_config(config, new_id=self._new_id, limits=self._limits)
        except RequestError as error:
            return error

    def take(self, message: ReadMessage | RequestError) -> list[Action]:
        """Return the actions for a decoded message."""
        if isinstance(message, RequestError):
            return self._refuse(message)
        kind, fields, inbound = message
        try:
            if self.state == "waiting" and kind in ("control", "feedback"):
                return self._close(
                    RequestError("invalid_request", "The first message must be a config message.", "type")
                )
            match kind:
                case "config":
                    self._check("config")
                    if isinstance(inbound, Inbound):
                        self._config = fields
                    return self._start(inbound)
                case "control":
                    return self._take_control(convert(fields, _Control, ""))
                case "feedback":
                    feedback: _Feedback = convert(fields, _Feedback, "")
                    self._check("feedback")
                    if not -1 <= feedback.rating <= 1:
                        raise wrong("rating", "must be from -1 to 1")
                    if feedback.position is not None and feedback.position < 0:
                        raise wrong("position", "must not be negative")
                    if len(feedback.text or "") > FEEDBACK_LENGTH:
                        raise wrong("text", f"must be at most {FEEDBACK_LENGTH} characters long")
                    position = self._position if feedback.position is None else feedback.position
                    return [Feedback(self._request_id or "", feedback.rating, feedback.text, position)]
            raise wrong("type", "must be config, control or feedback")
        except RequestError as error:
            return self._refuse(error)

    def _refuse(self, error: RequestError) -> list[Action]:
        return self._close(error) if error.kind in CLOSING else [self._error(error)]

    def bad_text(self) -> list[Action]:
        """Return the actions for a text message that is not UTF-8."""
        error = error_message("invalid_request", "Messages must be UTF-8.", request_id=self._request_id)
        return [Send(json_bytes({**error, "recoverable": False})), Close(CLOSE_UTF8, "bad UTF-8")]

    def _check(self, what: str) -> None:
        if self.state not in LEGAL[what]:
            now = "a generation is running" if self.state == "running" else "no generation is running"
            raise RequestError("invalid_request", f"{what} cannot be done now: {now}.")

    def _start(self, inbound: Inbound | RequestError | None) -> list[Action]:
        if not isinstance(inbound, Inbound):
            return self._refuse(inbound or wrong("prompt", "or messages is required, but not both"))
        self.state = "running"
        self._flags = inbound.extra
        self._messages = None
        self._again = self._stopping = False
        return [Start(inbound)]

    def _take_control(self, control: _Control) -> list[Action]:
        self._check(control.action)
        if control.parameters is not None and control.action != "modify":
            raise wrong("parameters", "is only allowed with modify")
        match control.action:
            case "stop":
                self._stopping = True
                return [Stop()]
            case "regenerate":
                if self.state == "idle":
                    return self._start(self._inbound(self._config))
                # The next generation starts in `event` when this one has ended: a connection has one run at a time.
                self._again = self._stopping = True
                return [Stop()]
            case "modify":
                # The changes are checked like those of a config, and stored for `regenerate`.
                parameters = control.parameters or {}
                if not parameters:
                    raise wrong("parameters", "must name what to change")
                changed = {**self._config, "parameters": {**(self._config.get("parameters") or {}), **parameters}}
                sampling = read_config(changed, new_id=self._new_id, limits=self._limits).options.sampling
                # The fields of SamplingParams that these parameters fill.
                table = SAMPLING["generate"]
                unknown = next((name for name in parameters if name not in table), None)
                if unknown is not None:
                    raise wrong(f"parameters.{unknown[:80]}", "cannot be changed while generating")
                names = [table[name][0] for name in parameters]
                self._config = changed
                if self.state == "idle":
                    return [Send(status_message("modify", 1.0, "The parameters apply to the next generation."))]
                return [ControlRun("modify", {name: getattr(sampling, name) for name in names})]
            case action:
                return [ControlRun(action, {})]

    @property
    def _position(self) -> int:
        return self._messages.position if self._messages is not None else 0

    # ---- reports of the server --------------------------------------------------------------------------------------

    def on_started(self, identity: Identity) -> list[Action]:
        """The run of `Start` was started."""
        self._request_id = identity.request_id
        self._messages = Messages(identity, self._flags, self._clock)
        return [Send(message) for message in self._messages.init()]

    def on_refused(self, error: RequestError) -> list[Action]:
        """The run of `Start`, or a control, was refused."""
        # Without messages it was a start; a refused control does not affect the generation.
        if self._messages is None:
            self.state = "waiting" if self._request_id is None else "idle"
        return [self._error(error)]

    def on_abandoned(self) -> list[Action]:
        """The client stopped before the run could be started."""
        empty = RunFinished(thread_id="", run_id="", metadata=as_metadata(FinishedMetadata(finish_reason="stop")))
        identity = Identity(request_id=self._request_id or "", model=self._config.get("model") or "")
        self._messages = self._messages or Messages(identity, self._flags, self._clock)
        return self.event(empty)

    def event(self, event: Event) -> list[Action]:
        """The next event of the run."""
        if self._messages is None:  # the run was abandoned before `started`
            return []
        if isinstance(event, Custom) and event.name == CONTROL_EVENT:
            value = event.value
            action = _DONE.get(value.get("action", "")) if isinstance(value, dict) else None
            if action is None:
                return []
            return [Send(status_message(action, 1.0, f"{action} is in effect.", position=value.get("position")))]
        if isinstance(event, RunFinished) and self._stopping:  # stopped by the client, not cancelled
            metadata = msgspec.structs.replace(finished_metadata(event), finish_reason="stop")
            event = msgspec.structs.replace(event, outcome=None, metadata=as_metadata(metadata))
        actions: list[Action] = [Send(message) for message in self._messages.encode(event)]
        if isinstance(event, RunFinished | RunError):
            self.state = "idle"
            if self._again:
                actions += self._start(self._inbound(self._config))
        return actions

    def controlled(self, action: ControlAction, done: bool) -> list[Action]:
        """Report the outcome of a `ControlRun`. An event of the run reports when it takes effect."""
        if not done:
            return [self._error(RequestError("invalid_request", f"This model or this run cannot {action} now."))]
        return [Send(status_message(action, 0.0, f"{action} is accepted.", position=self._position))]

    def feedback_stored(self) -> list[Action]:
        """The feedback is stored."""
        return [Send(status_message("feedback", 1.0, "The feedback is stored."))]

    def loading(self, progress: float | None, message: str) -> list[Action]:
        """The model is still loading. progress: from 0 to 1."""
        now = self._clock()
        if self._loading_since is None:
            self._loading_since = now
        elapsed = now - self._loading_since
        eta = elapsed * (1 - progress) / progress if progress and elapsed > 0 else None
        return [Send(status_message("model_loading", progress, message, eta=eta))]

    def going_away(self) -> list[Action]:
        """The server shuts down."""
        error = error_message("unavailable", "The server is shutting down.", request_id=self._request_id)
        return [Send(json_bytes(error)), Close(CLOSE_GOING_AWAY, "going away")]

    def _error(self, error: RequestError) -> Send:
        message = error_message(error.kind, error.message, request_id=self._request_id)
        return Send(json_bytes(message if error.param is None else {**message, "param": error.param}))

    def _close(self, error: RequestError) -> list[Action]:
        message = error_message(error.kind, error.message, request_id=self._request_id)
        return [Send(json_bytes({**message, "recoverable": False})), Close(row(error.kind).close, message["error"])]
