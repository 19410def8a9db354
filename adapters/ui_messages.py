"""Vercel AI SDK's UI messages: the body of `useChat` to a RunAgentInput, and events to its UI message stream.

The stream's chunks are those of `uiMessageChunkSchema` in npm's `ai` 6. A UI message may contain several AG-UI messages
(one per step), so their ids are stored in the parts' provider metadata, which the client sends back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from adapters import agui, sse
from adapters.answer import finish_reason
from adapters.body import DEFAULT_LIMITS, KINDS, Inbound, Limits, read_object, wrong
from events.nesting import TooLarge, measure
from events.patch import PatchError, apply_patch
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    CancelledOutcome,
    Custom,
    Event,
    InterruptOutcome,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    StateDelta,
    StateSnapshot,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
NAMESPACE = "agui"
"""The key of this server's ids in a part's provider metadata."""
CONTINUED = "uiMessage"
"""The key in `forwardedProps` for the UI message that a run continues, so that a resumed stream names it too."""
OWN_FIELDS = ("id", "messages", "trigger", "messageId", "tools", "system", "state", "context", "resume")
DENIED = "The user did not approve this call; it was not made."


class ContinuedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The UI message that a run continues, and its calls that the person denied."""

    id: str | None = None
    denied: tuple[str, ...] = ()


def parse(
    body: bytes, *, new_id: Callable[[str], str], limits: Limits = DEFAULT_LIMITS, media: Collection[str] = KINDS
) -> Inbound:
    """Read the body of `DefaultChatTransport` or assistant-ui's `AssistantChatTransport`.

    `id` is the thread. `tools` (a list as in AG-UI, or an object by name), `system`, `state`, `context` and `resume`
    are read as well; options have OpenAI's names, and every other key is forwarded to the agent. Raises RequestError.
    """
    values = read_object(body, limits)
    thread_id, sent = values.get("id"), values.get("messages")
    if not isinstance(thread_id, str) or not thread_id:
        raise wrong("id", "must be the chat's id, as useChat sends it")
    if not isinstance(sent, list) or not all(isinstance(message, dict) for message in sent):
        raise wrong("messages", "must be an array of UI messages")
    messages: list[dict[str, Any]] = []
    if isinstance(system := values.get("system"), str) and system:
        messages.append({"id": f"{thread_id}-system", "role": "system", "content": system})
    for i, message in enumerate(sent):
        messages += _messages(message, f"messages.{i}")
    if not isinstance(resume := values.get("resume") or [], list):
        raise wrong("resume", "must be an array of answers to interrupts")
    continued = ContinuedMessage()
    if sent and sent[-1].get("role") == "assistant":
        denied: list[str] = []
        for part in _parts(sent[-1]):
            match part:
                case {"state": "approval-responded", "approval": {"approved": bool(is_approved), **approval}}:
                    payload = {"approved": is_approved}
                    answer = {"interruptId": approval.get("id"), "status": "resolved", "payload": payload}
                    resume = [*resume, answer]
                    if not is_approved:
                        denied.append(str(part.get("toolCallId")))
        continued = ContinuedMessage(id=str(sent[-1].get("id")), denied=tuple(denied))
    props = {key: value for key, value in values.items() if key not in OWN_FIELDS}
    tools = values.get("tools")
    if isinstance(tools, dict):  # assistant-ui's tools by name
        tools = [
            {"name": name, "description": tool.get("description") or "", "parameters": tool.get("parameters") or {}}
            for name, tool in tools.items()
            if isinstance(tool, dict)
        ]
    elif tools is not None and not isinstance(tools, list):
        raise wrong("tools", "must be an array of tools, or an object of tools by name")
    wire = {
        "protocolVersion": "1.0",
        "threadId": thread_id,
        "runId": new_id("run"),
        "messages": messages,
        "tools": tools or [],
        "context": values.get("context") or [],
        "state": values.get("state"),
        "resume": resume or None,
        "forwardedProps": {**props, CONTINUED: msgspec.to_builtins(continued)},
    }
    return agui.from_wire(wire, limits=limits, media=media)


def continued_by(props: object) -> ContinuedMessage:
    """Return the UI message that a run with these `forwardedProps` continues."""
    try:
        return msgspec.convert(props.get(CONTINUED) or {} if isinstance(props, dict) else {}, ContinuedMessage)
    except msgspec.ValidationError:
        return ContinuedMessage()


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    parts = message.get("parts")
    return [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []


def _messages(message: dict[str, Any], at: str) -> list[dict[str, Any]]:
    role, id = message.get("role"), message.get("id")
    if role not in ("system", "user", "assistant"):
        raise wrong(f"{at}.role", "must be system, user or assistant")
    if not isinstance(message.get("parts"), list):
        raise wrong(f"{at}.parts", "must be an array of parts, as UI messages of the AI SDK 5 and later have")
    parts = _parts(message)
    if role == "assistant":
        # Each step becomes an AG-UI message, followed by the results of its calls.
        steps: list[list[dict[str, Any]]] = [[]]
        for part in parts:
            if part.get("type") == "step-start":
                steps.append([])
            else:
                steps[-1].append(part)
        messages: list[dict[str, Any]] = []
        for number, step in enumerate(filter(None, steps)):
            messages += _step(step, str(id) if number == 0 else f"{id}-{number}")
        return messages
    text = "".join(str(part.get("text", "")) for part in parts if part.get("type") == "text")
    files = [part for part in parts if part.get("type") == "file"]
    if role == "system" or not files:
        return [{"id": id, "role": role, "content": text}]
    content: list[dict[str, object]] = []
    for part in parts:
        if part.get("type") == "text":
            content.append({"type": "text", "text": part.get("text", "")})
        elif part.get("type") == "file":
            mime, url = str(part.get("mediaType", "")), str(part.get("url", ""))
            kind = mime.partition("/")[0]
            kind = kind if kind in ("image", "audio", "video") else "document"
            head, comma, data = url.partition(",")
            embedded = comma and head.startswith("data:") and head.endswith(";base64")
            source = {"type": "data" if embedded else "url", "value": data if embedded else url, "mimeType": mime}
            filename = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else None
            content.append({"type": kind, "source": source, "metadata": filename})
    return [{"id": id, "role": "user", "content": content}]


def _step(parts: list[dict[str, Any]], id: str) -> list[dict[str, Any]]:
    named: str | None = None
    text, thought = "", ""
    thought_id = f"{id}-reasoning"
    calls: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for part in parts:
        kind = str(part.get("type"))
        if kind == "text":
            text += str(part.get("text", ""))
            named = named or _own_id(part.get("providerMetadata"))
        elif kind == "reasoning":
            thought += str(part.get("text", ""))
            thought_id = _own_id(part.get("providerMetadata")) or thought_id
        elif (kind.startswith("tool-") or kind == "dynamic-tool") and part.get("state") != "input-streaming":
            name = str(part.get("toolName")) if kind == "dynamic-tool" else kind.removeprefix("tool-")
            call_id = str(part.get("toolCallId"))
            arguments = msgspec.json.encode(part.get("input") or {}).decode()
            calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
            named = named or _own_id(part.get("callProviderMetadata"))
            match part.get("state"):
                case "output-available":
                    output = part.get("output")
                    content = output if isinstance(output, str) else msgspec.json.encode(output).decode()
                case "output-error":
                    content = str(part.get("errorText") or "The call failed.")
                case "output-denied":
                    content = DENIED
                case _:  # it has no result yet
                    continue
            result_id = _own_id(part.get("resultProviderMetadata")) or f"{call_id}-result"
            results.append({"id": result_id, "role": "tool", "toolCallId": call_id, "content": content})
    messages: list[dict[str, Any]] = []
    if thought:
        messages.append({"id": thought_id, "role": "reasoning", "content": thought})
    if text or calls:
        assistant = {"id": named or id, "role": "assistant", "content": text or None, "toolCalls": calls or None}
        messages.append({key: value for key, value in assistant.items() if value is not None})
    return messages + results


def _own_id(metadata: object) -> str | None:
    own = metadata.get(NAMESPACE) if isinstance(metadata, dict) else None
    message_id = own.get("messageId") if isinstance(own, dict) else None
    return message_id if isinstance(message_id, str) else None


class UiMessageStream:
    """Encodes events as chunks of the UI message stream, one server-sent event each.

    message_id: the UI message that the answer creates or continues. denied: calls that the person did not approve.
    state: the run's initial state, to which deltas are applied.
    """

    content_type = sse.CONTENT_TYPE

    def __init__(self, message_id: str, *, denied: Collection[str] = (), state: object = None) -> None:
        self._message_id = message_id
        self._denied = frozenset(denied)
        self._in_step = False
        self._results = False
        self._calls: dict[str, tuple[str, list[str]]] = {}
        self._state = state
        self._activities: dict[str, tuple[str, object]] = {}

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        """Return zero or more frames. Events of subagents are omitted, except for surfaces."""
        if choice or (
            getattr(event, "subagent_run_id", None) is not None
            and not isinstance(event, ActivitySnapshot | ActivityDelta)
        ):
            return b""
        try:
            chunks = self._chunks(event)
        except PatchError:  # AG-UI requires readers to drop a patch that cannot be applied
            return b""
        return b"".join(sse.frame(msgspec.json.encode(chunk)) for chunk in chunks)

    def _chunks(self, event: Event) -> list[dict[str, Any]]:
        match event:
            case RunStarted():
                metadata = {"runId": event.run_id, "threadId": event.thread_id}
                return [{"type": "start", "messageId": self._message_id, "messageMetadata": metadata}]
            case TextMessageStart():
                return [*self._step(), {"type": "text-start", **_id_fields(event.message_id)}]
            case TextMessageContent():
                return [{"type": "text-delta", "id": event.message_id, "delta": event.delta}]
            case TextMessageEnd():
                return [{"type": "text-end", "id": event.message_id}]
            case ReasoningMessageStart():
                return [*self._step(), {"type": "reasoning-start", **_id_fields(event.message_id)}]
            case ReasoningMessageContent():
                return [{"type": "reasoning-delta", "id": event.message_id, "delta": event.delta}]
            case ReasoningMessageEnd():
                return [{"type": "reasoning-end", "id": event.message_id}]
            case ToolCallStart(tool_call_id=call_id, tool_call_name=name, parent_message_id=parent):
                self._calls[call_id] = (name, [])
                chunk: dict[str, Any] = {"type": "tool-input-start", "toolCallId": call_id, "toolName": name}
                return [*self._step(), chunk if parent is None else {**chunk, "providerMetadata": _ids(parent)}]
            case ToolCallArgs(tool_call_id=call_id, delta=delta):
                if call_id in self._calls:
                    self._calls[call_id][1].append(delta)
                return [{"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": delta}]
            case ToolCallEnd(tool_call_id=call_id):
                name, pieces = self._calls.pop(call_id, ("", []))
                text = "".join(pieces)
                ended: dict[str, Any] = {"toolCallId": call_id, "toolName": name}
                try:
                    arguments = msgspec.json.decode(text or "{}")
                    measure(arguments)
                except (msgspec.DecodeError, UnicodeEncodeError, RecursionError, TooLarge):
                    fault = "The call's arguments are not valid JSON."
                    return [{"type": "tool-input-error", **ended, "input": text, "errorText": fault}]
                return [{"type": "tool-input-available", **ended, "input": arguments}]
            case ToolCallResult(tool_call_id=call_id, content=content, message_id=message_id):
                self._results = True
                if call_id in self._denied:
                    return [{"type": "tool-output-denied", "toolCallId": call_id}]
                done = {"type": "tool-output-available", "toolCallId": call_id, "output": _output(content)}
                return [{**done, "providerMetadata": _ids(message_id)}]
            case StateSnapshot(snapshot=snapshot):
                self._state = snapshot
                return [{"type": "data-state", "id": "state", "data": snapshot}]
            case StateDelta(delta=delta):
                self._state = apply_patch(self._state, delta)
                return [{"type": "data-state", "id": "state", "data": self._state}]
            case ActivitySnapshot() | ActivityDelta():
                # The whole activity under one id, since the client replaces a data part by its id.
                if isinstance(event, ActivitySnapshot):
                    whole: object = event.content
                else:
                    whole = apply_patch(self._activities.get(event.message_id, ("", {}))[1], event.patch)
                self._activities[event.message_id] = (event.activity_type, whole)
                activity = {"activityType": event.activity_type, "content": whole}
                return [{"type": "data-activity", "id": event.message_id, "data": activity}]
            case Custom():
                data = {"name": event.name, "value": event.value}
                return [{"type": "data-custom", "data": data, "transient": True}]
            case RunFinished():
                return self._run_finished(event)
            case RunError():
                return [*self._end_step(), {"type": "error", "errorText": event.message}]
        return []

    def _step(self) -> list[dict[str, Any]]:
        """Begin a step, unless the open one has no results yet."""
        if self._in_step and not self._results:
            return []
        ended = self._end_step()
        self._in_step, self._results = True, False
        return [*ended, {"type": "start-step"}]

    def _end_step(self) -> list[dict[str, Any]]:
        ended: list[dict[str, Any]] = [{"type": "finish-step"}] if self._in_step else []
        self._in_step = False
        return ended

    def _run_finished(self, event: RunFinished) -> list[dict[str, Any]]:
        chunks: list[dict[str, Any]] = []
        if isinstance(event.outcome, InterruptOutcome):
            for interrupt in event.outcome.interrupts:
                properties = (interrupt.response_schema or {}).get("properties")
                if interrupt.tool_call_id is not None and isinstance(properties, dict) and "approved" in properties:
                    call_id = interrupt.tool_call_id
                    chunks.append({"type": "tool-approval-request", "approvalId": interrupt.id, "toolCallId": call_id})
                else:
                    chunks.append(
                        {"type": "data-interrupt", "id": interrupt.id, "data": msgspec.to_builtins(interrupt)}
                    )
        chunks += self._end_step()
        if isinstance(event.outcome, CancelledOutcome):
            return [*chunks, {"type": "abort", "reason": "The run was stopped."}]
        ended: dict[str, Any] = {"type": "finish", "finishReason": finish_reason(event).replace("_", "-")}
        if event.usage is not None:
            ended["messageMetadata"] = {"usage": msgspec.to_builtins(event.usage)}
        return [*chunks, ended]

    def finish(self) -> bytes:
        return sse.DONE

    def keep_alive(self) -> bytes:
        return sse.KEEP_ALIVE


def _ids(message_id: str) -> dict[str, Any]:
    return {NAMESPACE: {"messageId": message_id}}


def _id_fields(message_id: str) -> dict[str, Any]:
    return {"id": message_id, "providerMetadata": _ids(message_id)}


def _output(content: str | list[Any]) -> object:
    """Decode objects and arrays, as tools of the AI SDK return them; any other text is returned unchanged."""
    if isinstance(content, str) and content[:1] in ("{", "["):
        try:
            return msgspec.json.decode(content)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            return content
    return content
