"""The AG-UI 1.0 event vocabulary as immutable structs.

One struct per event type of the protocol (ag_ui.core.events of the Python SDK is the reference; a test compares field
names, order and requiredness with it). Structs are created and encoded about twenty times faster than the SDK's
pydantic models, which matters because one is created for every generated token.

Optional fields whose value is None are left out on the wire, never sent as null (AG-UI 1.0, null omission).
`timestamp` is in integer milliseconds since the epoch. The caller supplies times and ids; nothing here reads a clock.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

PROTOCOL_VERSION = "1.0"


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """The base of all objects on the AG-UI wire: camelCase names, absent instead of null."""


class TokenUsage(Wire, frozen=True, kw_only=True):
    """Tokens of one model in one run; totals include their parts."""

    provider: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_input_tokens: int | None = None


class Interrupt(Wire, frozen=True, kw_only=True):
    """A question to a person for which a run has stopped. `expires_at` is ISO 8601."""

    subagent_run_id: str | None = None
    id: str
    reason: str
    message: str | None = None
    tool_call_id: str | None = None
    response_schema: dict[str, object] | None = None
    expires_at: str | None = None
    metadata: dict[str, Any] | None = None


class SuccessOutcome(Wire, tag_field="type", tag="success", frozen=True, kw_only=True):
    pending_tool_call_ids: list[str] | None = None


class InterruptOutcome(Wire, tag_field="type", tag="interrupt", frozen=True, kw_only=True):
    interrupts: list[Interrupt]


class CancelledOutcome(Wire, tag_field="type", tag="cancelled", frozen=True, kw_only=True):
    pass


class SuspendedOutcome(Wire, tag_field="type", tag="suspended", frozen=True, kw_only=True):
    """A subagent that waits for the answer to an interrupt."""

    interrupt_ids: list[str] | None = None


RunOutcome = SuccessOutcome | InterruptOutcome | CancelledOutcome
SubagentOutcome = SuccessOutcome | SuspendedOutcome
TextRole = Literal["developer", "system", "assistant", "user"]


class BaseEvent(Wire, tag_field="type", frozen=True, kw_only=True):
    """Fields that any event may carry, in the SDK's order."""

    timestamp: int | None = None
    raw_event: object = None
    metadata: dict[str, Any] | None = None


class AttributableEvent(BaseEvent, frozen=True, kw_only=True):
    """An event that may belong to a subagent's run."""

    subagent_run_id: str | None = None


class RunStarted(BaseEvent, tag="RUN_STARTED", frozen=True, kw_only=True):
    thread_id: str
    run_id: str
    protocol_version: str | None = None
    parent_run_id: str | None = None
    input: Any = None


class RunFinished(BaseEvent, tag="RUN_FINISHED", frozen=True, kw_only=True):
    thread_id: str
    run_id: str
    result: object = None
    outcome: RunOutcome | None = None
    usage: list[TokenUsage] | None = None


class RunError(BaseEvent, tag="RUN_ERROR", frozen=True, kw_only=True):
    message: str
    code: str | None = None
    usage: list[TokenUsage] | None = None


class StepStarted(AttributableEvent, tag="STEP_STARTED", frozen=True, kw_only=True):
    step_name: str


class StepFinished(AttributableEvent, tag="STEP_FINISHED", frozen=True, kw_only=True):
    step_name: str


class TextMessageStart(AttributableEvent, tag="TEXT_MESSAGE_START", frozen=True, kw_only=True, gc=False):
    message_id: str
    role: TextRole | None = None
    name: str | None = None


class TextMessageContent(AttributableEvent, tag="TEXT_MESSAGE_CONTENT", frozen=True, kw_only=True, gc=False):
    message_id: str
    delta: str


class TextMessageEnd(AttributableEvent, tag="TEXT_MESSAGE_END", frozen=True, kw_only=True):
    message_id: str


class TextMessageChunk(AttributableEvent, tag="TEXT_MESSAGE_CHUNK", frozen=True, kw_only=True):
    message_id: str | None = None
    role: TextRole | None = None
    delta: str | None = None
    name: str | None = None


class ToolCallStart(AttributableEvent, tag="TOOL_CALL_START", frozen=True, kw_only=True):
    tool_call_id: str
    tool_call_name: str
    parent_message_id: str | None = None


class ToolCallArgs(AttributableEvent, tag="TOOL_CALL_ARGS", frozen=True, kw_only=True, gc=False):
    tool_call_id: str
    delta: str


class ToolCallEnd(AttributableEvent, tag="TOOL_CALL_END", frozen=True, kw_only=True):
    tool_call_id: str


class ToolCallChunk(AttributableEvent, tag="TOOL_CALL_CHUNK", frozen=True, kw_only=True):
    tool_call_id: str | None = None
    tool_call_name: str | None = None
    parent_message_id: str | None = None
    delta: str | None = None


class ToolCallResult(AttributableEvent, tag="TOOL_CALL_RESULT", frozen=True, kw_only=True):
    message_id: str
    tool_call_id: str
    content: str | list[Any]
    role: Literal["tool"] | None = None


class StateSnapshot(AttributableEvent, tag="STATE_SNAPSHOT", frozen=True, kw_only=True):
    snapshot: object


class StateDelta(AttributableEvent, tag="STATE_DELTA", frozen=True, kw_only=True):
    """`delta` is a list of RFC 6902 operations."""

    delta: list[dict[str, Any]]


class MessagesSnapshot(BaseEvent, tag="MESSAGES_SNAPSHOT", frozen=True, kw_only=True):
    """`messages` are AG-UI messages in their wire form (camelCase dictionaries)."""

    messages: list[dict[str, Any]]


class ActivitySnapshot(AttributableEvent, tag="ACTIVITY_SNAPSHOT", frozen=True, kw_only=True):
    message_id: str
    activity_type: str
    content: dict[str, Any]
    replace: bool | None = None


class ActivityDelta(AttributableEvent, tag="ACTIVITY_DELTA", frozen=True, kw_only=True):
    message_id: str
    activity_type: str
    patch: list[dict[str, object]]


class Raw(AttributableEvent, tag="RAW", frozen=True, kw_only=True):
    event: Any
    source: str | None = None


class Custom(AttributableEvent, tag="CUSTOM", frozen=True, kw_only=True):
    name: str
    value: Any


class ReasoningStart(AttributableEvent, tag="REASONING_START", frozen=True, kw_only=True):
    message_id: str


class ReasoningMessageStart(AttributableEvent, tag="REASONING_MESSAGE_START", frozen=True, kw_only=True):
    """`role` is always "reasoning" and required on the wire, so it has no default that could be left out."""

    message_id: str
    role: Literal["reasoning"]


class ReasoningMessageContent(AttributableEvent, tag="REASONING_MESSAGE_CONTENT", frozen=True, kw_only=True, gc=False):
    message_id: str
    delta: str


class ReasoningMessageEnd(AttributableEvent, tag="REASONING_MESSAGE_END", frozen=True, kw_only=True):
    message_id: str


class ReasoningMessageChunk(AttributableEvent, tag="REASONING_MESSAGE_CHUNK", frozen=True, kw_only=True):
    message_id: str | None = None
    delta: str | None = None


class ReasoningEnd(AttributableEvent, tag="REASONING_END", frozen=True, kw_only=True):
    message_id: str


class ReasoningEncryptedValue(AttributableEvent, tag="REASONING_ENCRYPTED_VALUE", frozen=True, kw_only=True):
    subtype: Literal["message", "tool-call"]
    entity_id: str
    encrypted_value: str


class SubagentStarted(BaseEvent, tag="SUBAGENT_STARTED", frozen=True, kw_only=True):
    subagent_run_id: str
    name: str
    description: str | None = None
    parent_subagent_run_id: str | None = None
    parent_tool_call_id: str | None = None
    parent_message_id: str | None = None


class SubagentFinished(BaseEvent, tag="SUBAGENT_FINISHED", frozen=True, kw_only=True):
    subagent_run_id: str
    result: object = None
    outcome: SubagentOutcome | None = None


class SubagentError(BaseEvent, tag="SUBAGENT_ERROR", frozen=True, kw_only=True):
    subagent_run_id: str
    message: str
    code: str | None = None


Event = (
    RunStarted | RunFinished | RunError | StepStarted | StepFinished
    | TextMessageStart | TextMessageContent | TextMessageEnd | TextMessageChunk
    | ToolCallStart | ToolCallArgs | ToolCallEnd | ToolCallChunk | ToolCallResult
    | StateSnapshot | StateDelta | MessagesSnapshot | ActivitySnapshot | ActivityDelta | Raw | Custom
    | ReasoningStart | ReasoningMessageStart | ReasoningMessageContent | ReasoningMessageEnd
    | ReasoningMessageChunk | ReasoningEnd | ReasoningEncryptedValue
    | SubagentStarted | SubagentFinished | SubagentError
)  # fmt: skip

# The names of this server's CUSTOM events, and their values.
CONTROL_EVENT = "agent_server.control"
"""{"action": "paused" | "resumed" | "modified", "position": tokens so far}: a control takes effect here."""
INVALID_EVENT = "agent_server.invalid_arguments"
"""{"toolCallId", "toolCallName", "errors": [{"path", "message"}]}: a call's arguments do not fit their schema."""
WAITING_EVENT = "agent_server.waiting"
"""{"behind": [run ids]}: the run was accepted and begins when these other runs of its thread have ended."""
LOADING_EVENT = "agent_server.loading"
"""{"model", "state", "progress"?: 0 to 1, "message"}: the run waits while its model is being loaded."""
PROGRESS_EVENT = "agent_server.prompt_progress"
"""{"total", "cached", "processed": tokens of the prompt, "seconds"}: the progress of a turn's prompt, if requested."""
MCP_TOOLS_EVENT = "agent_server.mcp_tools"
"""The tools of an MCP server that the request names: its `label`, `tools`, and `error` if they cannot be listed."""
COMPACTING_EVENT = "agent_server.compacting"
"""{}: a part of a summary of the conversation is being written, for a client that requested it."""
COMPACTED_ACTIVITY = "agent_server.compaction"
"""The activity that describes how the beginning of a conversation was shortened for the model. If the client requested
the compaction, `sealed` has the text that replaces it in later prompts."""
TAKEN_UP_EVENT = "agent_server.taken_up"
"""{"step", "calls": [call ids]}: the run's server ended, and the run continues here with these calls. The events from
RUN_STARTED on are the whole run: the conversation as it was, and the rest."""
ERROR_EVENT = "agent_server.error"
"""{"code", "message", "param"?}: a request of a WebSocket's client during a run was refused."""
