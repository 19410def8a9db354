"""CopilotKit's runtime protocol: its React hooks pointed straight at this server, with no Node in between.

Runs use AG-UI as CopilotKit's client speaks it (adapters.agui recognises it by the missing `protocolVersion`). This
module has the rest: runtime info, the two endpoint forms (one path for each call, or one path that takes
`{"method", "params", "body"}`), the replay of a thread on connect, stop, and error bodies.

The shapes are those of `@copilotkit/react-core` 1.74, in its source and on the wire.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from adapters import agui
from adapters.body import DEFAULT_LIMITS, KINDS, Inbound, Limits, read_json
from adapters.errors import RequestError
from adapters.forwarded_props import without_actions
from events.options import ToolChoice
from events.vocabulary import (
    PROTOCOL_VERSION,
    Event,
    Interrupt,
    InterruptOutcome,
    MessagesSnapshot,
    RunFinished,
    RunStarted,
    StateSnapshot,
)

RUNTIME_VERSION = "1.74.0"
Method = Literal[
    "info",
    "agent/run",
    "agent/suggest",
    "agent/connect",
    "agent/stop",
    "inspector/metadata",
    "resource/request",
    "transcribe",
]
METHODS: tuple[Method, ...] = get_args(Method)
OF_AGENTS = ("agent/run", "agent/suggest", "agent/connect", "agent/stop")
SUGGEST = "copilotkitSuggest"
"""The tool that CopilotKit's pages declare and require for suggestions of the next message."""
Encoder = agui.SseEncoder

THREAD_ENDPOINTS = {"list": True, "inspect": True, "mutations": True, "realtimeMetadata": False}

TRANSCRIPTION_CODES = {
    "invalid_request": (400, "invalid_audio_format"),
    "unsupported_media_type": (415, "invalid_request"),
    "payload_too_large": (413, "audio_too_long"),
    "overloaded": (429, "rate_limited"),
    "unavailable": (503, "provider_error"),
}
AGENT_CLASS = "PythonAgent"
"""The `className` of every agent, which CopilotKit only displays."""


class RuntimeCall(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the single endpoint. body: the inner body, decoded. path, http_method: those of a resource/request;
    the path is relative to the base path."""

    method: Method
    agent: str = "default"
    thread_id: str = ""
    path: str = ""
    http_method: str = "GET"
    body: Any = None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """An agent in the runtime info. capabilities: AgentCapabilities in wire form. surfaces: whether it writes A2UI
    surfaces for pages without a catalog of their own, too."""

    name: str
    description: str = ""
    capabilities: dict[str, object] = {}
    surfaces: bool = False


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A thread as connect replays it. messages: in wire form. run_id: its last run, empty if there is none.
    interrupts: the open ones, in wire form."""

    thread_id: str
    run_id: str = ""
    messages: Sequence[dict[str, Any]] = ()
    state: object = None
    interrupts: Sequence[dict[str, object]] = ()


class ThreadEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A thread in a list. Times are ISO 8601."""

    id: str
    name: str | None
    agent_id: str
    archived: bool
    created_at: str
    updated_at: str
    organization_id: str = ""
    created_by_id: str = ""


# ---- inbound --------------------------------------------------------------------------------------------------------


def parse(body: bytes, *, new_id: Callable[[str], str], limits: Limits = DEFAULT_LIMITS) -> Inbound:
    """Read the body of a run. Raises RequestError. `new_id` is not called, since the client chooses all ids itself."""
    return from_wire(read_json(body, limits), limits=limits)


def from_wire(wire: object, *, limits: Limits = DEFAULT_LIMITS, media: Collection[str] = KINDS) -> Inbound:
    """As `parse`, from decoded JSON, for the single endpoint. media: kinds of content besides text that the model
    takes."""
    if not isinstance(wire, dict):
        raise RequestError("invalid_request", "The body must be a RunAgentInput, which is an object.")
    wire = _without_own_answers(wire)
    props = wire.get("forwardedProps")
    # CopilotKit's name for `tool_choice`
    if isinstance(props, dict) and props.get("toolChoice") is not None and "tool_choice" not in props:
        rest = {key: value for key, value in props.items() if key != "toolChoice"}
        wire = {**wire, "forwardedProps": {**rest, "tool_choice": props["toolChoice"]}}
    return agui.from_wire(wire, limits=limits, media=media)


def is_suggestion(inbound: Inbound) -> bool:
    """Whether a run only makes suggestions, so that its thread need not be stored."""
    return inbound.options.tool_choice == ToolChoice(mode="named", names=(SUGGEST,))


def parse_call(body: bytes, limits: Limits = DEFAULT_LIMITS) -> RuntimeCall:
    """Read a request to the single endpoint. Raises RequestError for a method that is not CopilotKit's."""
    wire = read_json(body, limits)
    method = wire.get("method") if isinstance(wire, dict) else None
    if method not in METHODS:
        raise RequestError("invalid_request", f"method must be one of: {', '.join(METHODS)}.", param="method")
    params = wire.get("params")
    named = params if isinstance(params, dict) else {}
    if method in OF_AGENTS and not isinstance(named.get("agentId"), str):
        raise RequestError("invalid_request", "params.agentId is required.", param="params.agentId")
    path = named.get("path")
    if method == "resource/request" and not (isinstance(path, str) and path.startswith("/") and path[1:2] != "/"):
        raise RequestError("invalid_request", "params.path must be a path below this one.", param="params.path")
    thread, verb = named.get("threadId"), named.get("httpMethod")
    return RuntimeCall(
        method=method,
        agent=named.get("agentId") or "default",
        thread_id=thread if isinstance(thread, str) else "",
        path=path if isinstance(path, str) else "",
        http_method=verb.upper() if isinstance(verb, str) else "GET",
        body=wire.get("body"),
    )


def recording_of(wire: object) -> str:
    """Return the base64 recording of a `transcribe` call to the single endpoint. Raises RequestError."""
    audio = wire.get("audio") if isinstance(wire, dict) else None
    if not isinstance(audio, str) or not audio:
        raise RequestError("invalid_request", "body.audio is required: a recording in base64.", param="body.audio")
    return audio


def thread_of(wire: Any) -> tuple[str, bool]:
    """Return the thread that a connect names, and whether its client is older than AG-UI 1.0. Raises RequestError."""
    thread_id = wire.get("threadId") if isinstance(wire, dict) else None
    if not isinstance(thread_id, str) or not 0 < len(thread_id) <= DEFAULT_LIMITS.name or "\x00" in thread_id:
        raise RequestError("invalid_request", "threadId is required and must not contain NUL.", param="threadId")
    return thread_id, wire.get("protocolVersion") is None


def run_to_stop(wire: object) -> str | None:
    """Return the run that a stop names; None stops whichever run of the thread is active."""
    run_id = wire.get("runId") if isinstance(wire, dict) else None
    return run_id if isinstance(run_id, str) and run_id else None


def _without_own_answers(wire: dict[str, object]) -> dict[str, object]:
    """Remove the tool results that the client added for the interrupts it resumes.

    CopilotKit answers an interrupt about a tool call twice: in `resume`, and as a tool message with the same content.
    Only the first is part of AG-UI; the second would appear in the history as the tool's result.
    """
    resume, messages = wire.get("resume"), wire.get("messages")
    if not isinstance(resume, list) or not resume or not isinstance(messages, list):
        return wire
    echoes: list[object] = []  # the decoded content of the message that CopilotKit adds for each entry
    for entry in resume:
        if isinstance(entry, dict) and entry.get("status") == "cancelled":
            echoes.append({"status": "cancelled"})
        elif isinstance(entry, dict):
            payload = entry.get("payload")
            echoes.append({"status": "resolved"} if payload is None else payload)
    end = len(messages)
    while end and isinstance(messages[end - 1], dict) and messages[end - 1].get("role") == "tool":
        end -= 1
    remaining = messages[:end]
    for message in messages[end:]:
        content = message.get("content")
        with contextlib.suppress(msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            content = msgspec.json.decode(content) if isinstance(content, str) else content
        if content in echoes:
            echoes.remove(content)  # each of them matches one message
        else:
            remaining.append(message)
    return {**wire, "messages": remaining}


# ---- outbound -------------------------------------------------------------------------------------------------------


def runtime_info(
    agents: Iterable[tuple[str, Card]], server: Mapping[str, object], *, transcribes: bool = False
) -> dict[str, object]:
    """Return the body of GET /info. The hooks fall back to an agent called `default`, so one must have that name.

    server: what is loaded, for this server's own pages; CopilotKit ignores it. transcribes: pages may show a
    microphone.
    """
    cards = dict(agents)
    surfaces = [name for name, card in cards.items() if card.surfaces]
    listed = {
        name: {
            "name": card.name,
            "description": card.description,
            "className": AGENT_CLASS,
            "capabilities": card.capabilities,
        }
        for name, card in cards.items()
    }
    return {
        "version": RUNTIME_VERSION,
        "agents": listed,
        "audioFileTranscriptionEnabled": transcribes,
        "mode": "sse",
        "threadEndpoints": THREAD_ENDPOINTS,
        "singleRoute": {"resourceOperations": True, "threadEndpoints": THREAD_ENDPOINTS},
        "suggestions": True,
        "a2uiEnabled": bool(surfaces),
        "a2ui": {"enabled": bool(surfaces), "agents": surfaces},
        "openGenerativeUIEnabled": False,
        "telemetryDisabled": True,
        "server": dict(server),
    }


def stopped(was_running: bool) -> dict[str, object]:
    """Return the answer to a stop; it is not an error if no run is active."""
    if not was_running:
        return {"stopped": False, "message": "Nothing is running on this thread."}
    ending = {"type": "RUN_ERROR", "message": "Run stopped by user", "code": "STOPPED"}
    return {"stopped": True, "interrupt": ending}


def unknown_agent(name: str) -> tuple[int, dict[str, str]]:
    """Return status and body; CopilotKit displays the message."""
    return 404, {"error": "Agent not found", "message": f"Agent '{name[:200]}' does not exist"}


def invalid_call(message: str) -> tuple[int, dict[str, str]]:
    """Return status and body for an error of the single endpoint itself."""
    return 400, {"error": "invalid_request", "message": message}


def no_annotations() -> tuple[int, dict[str, str]]:
    """Return status and body of a runtime without CopilotKit's cloud."""
    return 422, {"error": "not_supported", "message": "Annotations are kept by CopilotKit's cloud, which is not here."}


def transcription_refused(kind: str, message: str, *, configured: bool) -> tuple[int, dict[str, object]]:
    """Return status and body. The codes are those of `@copilotkit/shared`, from which the page chooses its message."""
    if not configured:
        return 503, {"error": "service_not_configured", "message": message, "retryable": False}
    status, code = TRANSCRIPTION_CODES.get(kind, (500, "provider_error"))
    return status, {"error": code, "message": message, "retryable": kind in ("overloaded", "unavailable")}


def threads_page(entries: Sequence[ThreadEntry], cursor: str | None = None) -> dict[str, object]:
    return {"threads": list(entries), "nextCursor": cursor}


def replay_head(history: History) -> list[Event]:
    """Return the first events of a connect: the thread's last run, its messages, and its state if there is one."""
    events: list[Event] = [
        RunStarted(thread_id=history.thread_id, run_id=history.run_id, protocol_version=PROTOCOL_VERSION),
        MessagesSnapshot(messages=without_actions(history.messages)),
    ]
    if history.state:
        events.append(StateSnapshot(snapshot=history.state))
    return events


def replay_end(history: History) -> Event:
    """Return the last event of a replay whose run has ended. It repeats the open interrupts, so that a person who
    reloads the page can still answer them."""
    open_interrupts = [msgspec.convert(interrupt, Interrupt) for interrupt in history.interrupts]
    outcome = InterruptOutcome(interrupts=open_interrupts) if open_interrupts else None
    return RunFinished(thread_id=history.thread_id, run_id=history.run_id, outcome=outcome)
