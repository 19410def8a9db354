"""The generation protocol over WebSocket as a state machine without I/O.

Feed it messages, a run's events and the outcomes of controls; it returns actions: send, start a run, stop it, and so
on. The table `LEGAL` says which messages are accepted in which state.

    waiting ── config ──► running ── completion or error ──► idle ── config, regenerate ──► running
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from adapters.body import CLOSING, DEFAULT_LIMITS, Inbound, Lenient, Limits, ReadMessage, convert, read_text, wrong
from adapters.client_history import NewId
from adapters.errors import RequestError, row
from adapters.generate import (
    Clock,
    GenerateFlags,
    Identity,
    Messages,
    error_message,
    read_config,
    status_message,
)
from adapters.request_options import SAMPLING
from adapters.sse import json_bytes
from adapters.websocket_actions import Close, Send
from events.metadata import FinishedMetadata, as_metadata, finished_metadata
from events.vocabulary import CONTROL_EVENT, Custom, Event, RunError, RunFinished

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
    """The state of one connection. clock: returns seconds from any fixed point."""

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
        try:
            if isinstance(message, RequestError):
                raise message
            return self._take(message)
        except RequestError as error:
            return self._close(error) if error.kind in CLOSING else [self._error(error)]

    def bad_text(self) -> list[Action]:
        """Return the actions for a text message that is not UTF-8."""
        error = error_message("invalid_request", "Messages must be UTF-8.", request_id=self._request_id)
        return [Send(json_bytes({**error, "recoverable": False})), Close(CLOSE_UTF8, "bad UTF-8")]

    def _take(self, message: ReadMessage) -> list[Action]:
        kind, fields, inbound = message
        if self.state == "waiting" and kind in ("control", "feedback"):
            return self._close(RequestError("invalid_request", "The first message must be a config message.", "type"))
        match kind:
            case "config":
                self._check("config")
                start = self._start(inbound)
                self._config = fields
                return start
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

    def _check(self, what: str) -> None:
        if self.state not in LEGAL[what]:
            now = "a generation is running" if self.state == "running" else "no generation is running"
            raise RequestError("invalid_request", f"{what} cannot be done now: {now}.")

    def _start(self, inbound: Inbound | RequestError | None) -> list[Action]:
        if not isinstance(inbound, Inbound):
            raise inbound or wrong("prompt", "or messages is required, but not both")
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

    def started(self, identity: Identity) -> list[Action]:
        """The run of `Start` was started."""
        self._request_id = identity.request_id
        self._messages = Messages(identity, self._flags, self._clock)
        return [Send(message) for message in self._messages.init()]

    def refused(self, error: RequestError) -> list[Action]:
        """The run of `Start`, or a control, was refused."""
        # Without messages it was a start; a refused control does not affect the generation.
        if self._messages is None:
            self.state = "waiting" if self._request_id is None else "idle"
        return [self._error(error)]

    def abandoned(self) -> list[Action]:
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
