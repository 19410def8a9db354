"""AG-UI over WebSocket as a state machine without I/O. The server sends the protocol's events, one JSON object each.

A client sends these messages, each an object with a `type`:

    {"type": "run", "input": RunAgentInput, "agent": name?}      start a run
    {"type": "subscribe", "runId": id, "after": number}          read a run again, from the event after that number
    {"type": "cancel"} {"type": "pause"} {"type": "resume"}      control the run being read
    {"type": "modify", "parameters": {name: value}}              change its sampling from the next token on

A run's events are numbered from 1 in the order in which they are sent, so a client that counts them can resume after a
lost connection. A control that fails is reported by a CUSTOM event while a run is being read, and by RUN_ERROR
otherwise; the protocol allows both there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal, NamedTuple

from adapters.agui import downgrade, from_wire
from adapters.body import (
    CLOSING,
    DEFAULT_LIMITS,
    KINDS,
    Inbound,
    Lenient,
    Limits,
    ReadMessage,
    convert,
    read_text,
    wrong,
)
from adapters.errors import RequestError, row
from adapters.websocket_actions import Close, Send
from events.encode import encode
from events.metadata import ErrorMetadata, as_metadata
from events.vocabulary import ERROR_EVENT, Custom, Event, RunError, RunFinished

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
    """The state of one connection, which reads at most one run at a time. media: returns the kinds of content besides
    text that the model takes; it is called per message, since they may be unknown when the connection opens."""

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
        try:
            if isinstance(message, RequestError):
                raise message
            return self._take(message)
        except RequestError as error:
            if error.kind not in CLOSING:
                return self.refused(error)
            self.reading = False
            return [*self.refused(error), Close(row(error.kind).close, error.kind)]

    def receive(self, data: str | bytes) -> list[Action]:
        """`read` and `take` in one step."""
        return self.take(self.read(data))

    def _take(self, message: ReadMessage) -> list[Action]:
        kind, fields, inbound = message
        match kind:
            case "run":
                self._begin()
                if not isinstance(inbound, Inbound):
                    raise inbound or wrong("input", "is required")
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
        return self.refused(error)

    def refused(self, error: RequestError) -> list[Action]:
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
        return self.refused(RequestError("invalid_request", f"This model or this run cannot {action} now."))

    def going_away(self) -> list[Action]:
        error = RequestError("unavailable", "The server is shutting down.")
        self.reading = False
        return [*self.refused(error), Close(1001, "going away")]
