"""Expand chunk events: TEXT_MESSAGE_CHUNK and its siblings become START, CONTENT and END.

Chunks are a shorthand (AG-UI 1.0, streaming): the first of a stream carries the id, later ones may leave it out, and
the stream ends with the next event of another kind. There is one lane per producer, for the parent agent and for each
subagent, so that interleaved producers do not end each other's streams. Later stages never get chunks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Event,
    MessagesSnapshot,
    Raw,
    ReasoningEncryptedValue,
    ReasoningMessageChunk,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    SubagentStarted,
    TextMessageChunk,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallChunk,
    ToolCallEnd,
    ToolCallStart,
)

Kind = Literal["text message", "tool call", "reasoning message"]
Chunk = TextMessageChunk | ToolCallChunk | ReasoningMessageChunk
Start = TextMessageStart | ToolCallStart | ReasoningMessageStart

# Which events end open streams of chunks. Events in neither set end the stream in their own producer's lane.
ENDS_ALL_LANES: frozenset[type] = frozenset({RunStarted, RunFinished, RunError, MessagesSnapshot})
ENDS_NO_LANE: frozenset[type] = frozenset(
    {Raw, ActivitySnapshot, ActivityDelta, ReasoningEncryptedValue, SubagentStarted}
)
KIND: dict[type, Kind] = {
    TextMessageChunk: "text message",
    ToolCallChunk: "tool call",
    ReasoningMessageChunk: "reasoning message",
}


class LifecycleError(Exception):
    """An event that the protocol does not allow at this point. `rule` is a key of `events.lifecycle.RULES`."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message


class Lane(NamedTuple):
    """An open stream of chunks: its kind, its id, and its START event."""

    kind: Kind
    id: str
    start: Start


class ChunkExpander:
    """Expands the chunks of one stream of events. Call `expand` with every event in order."""

    def __init__(self) -> None:
        self.lanes: dict[str | None, Lane] = {}

    def expand(self, event: Event) -> list[Event]:
        """Return the expanded event, preceded by the ENDs of streams that it ends. Other events than chunks stay as
        they are.

        Raises LifecycleError for a chunk that continues no stream or contradicts its stream.
        """
        if not isinstance(event, TextMessageChunk | ToolCallChunk | ReasoningMessageChunk):
            if not self.lanes or type(event) in ENDS_NO_LANE:
                return [event]
            if type(event) in ENDS_ALL_LANES:
                return [*self.close_all(), event]
            return [*self._close(getattr(event, "subagent_run_id", None)), event]
        chunk: Chunk = event
        kind = KIND[type(chunk)]
        chunk_id = chunk.tool_call_id if isinstance(chunk, ToolCallChunk) else chunk.message_id
        owner = self._lane_of(kind, chunk_id, chunk.subagent_run_id)
        lane = self.lanes.get(owner)
        expanded: list[Event] = []
        if lane is not None and lane.kind == kind and chunk_id in (None, lane.id):
            # A later chunk may repeat the fields of the first one, but not change them.
            fields = {"text message": ("role", "name"), "tool call": ("tool_call_name", "parent_message_id")}
            for field in fields.get(kind, ()):
                value = getattr(chunk, field)
                if value is not None and value != getattr(lane.start, field):
                    raise LifecycleError("chunk-disagrees", f"A chunk of {kind} {lane.id!r} changes its {field}.")
        else:
            expanded += self._close(owner)
            if chunk_id is None:
                raise LifecycleError("chunk-first", f"The first chunk of a {kind} must carry its id.")
            tag, metadata = chunk.subagent_run_id, chunk.metadata
            start: Start
            match chunk:
                case TextMessageChunk(role=role, name=name):
                    start = TextMessageStart(
                        message_id=chunk_id, role=role or "assistant", name=name, subagent_run_id=tag, metadata=metadata
                    )
                case ToolCallChunk(tool_call_name=None):
                    raise LifecycleError("chunk-first", "The first chunk of a tool call must carry the tool's name.")
                case ToolCallChunk(tool_call_name=str(name), parent_message_id=parent):
                    start = ToolCallStart(
                        tool_call_id=chunk_id,
                        tool_call_name=name,
                        parent_message_id=parent,
                        subagent_run_id=tag,
                        metadata=metadata,
                    )
                case _:
                    start = ReasoningMessageStart(
                        message_id=chunk_id, role="reasoning", subagent_run_id=tag, metadata=metadata
                    )
            lane = Lane(kind, chunk_id, start)
            self.lanes[owner] = lane
            expanded.append(lane.start)
        carries_more = chunk.metadata is not None and not expanded
        if chunk.delta is not None or chunk.raw_event is not None or carries_more:
            expanded.append(_content(lane, chunk))
        return expanded

    def close_all(self) -> list[Event]:
        """Return the ENDs of all open streams, in the order in which they were opened."""
        return [end for owner in list(self.lanes) for end in self._close(owner)]

    def _lane_of(self, kind: Kind, chunk_id: str | None, tag: str | None) -> str | None:
        if chunk_id is not None:
            for owner, lane in self.lanes.items():
                if lane.kind == kind and lane.id == chunk_id:
                    if tag is not None and tag != owner:
                        raise LifecycleError("owner", f"A chunk of {kind} {chunk_id!r} names another subagent.")
                    return owner
            return tag
        if tag is not None or self._has_stream(None, kind):
            return tag
        owners = [owner for owner in self.lanes if self._has_stream(owner, kind)]
        if len(owners) > 1:
            raise LifecycleError("chunk-ambiguous", f"A chunk without an id fits {len(owners)} open {kind} streams.")
        return owners[0] if owners else None

    def _has_stream(self, owner: str | None, kind: Kind) -> bool:
        lane = self.lanes.get(owner)
        return lane is not None and lane.kind == kind

    def _close(self, owner: str | None) -> list[Event]:
        lane = self.lanes.pop(owner, None)
        if lane is None:
            return []
        tag = lane.start.subagent_run_id
        if lane.kind == "text message":
            return [TextMessageEnd(message_id=lane.id, subagent_run_id=tag)]
        if lane.kind == "tool call":
            return [ToolCallEnd(tool_call_id=lane.id, subagent_run_id=tag)]
        return [ReasoningMessageEnd(message_id=lane.id, subagent_run_id=tag)]


def _content(lane: Lane, chunk: Chunk) -> Event:
    tag = chunk.subagent_run_id if chunk.subagent_run_id is not None else lane.start.subagent_run_id
    delta, metadata, raw = chunk.delta or "", chunk.metadata, chunk.raw_event
    if lane.kind == "text message":
        return TextMessageContent(
            message_id=lane.id, delta=delta, subagent_run_id=tag, metadata=metadata, raw_event=raw
        )
    if lane.kind == "tool call":
        return ToolCallArgs(tool_call_id=lane.id, delta=delta, subagent_run_id=tag, metadata=metadata, raw_event=raw)
    return ReasoningMessageContent(
        message_id=lane.id, delta=delta, subagent_run_id=tag, metadata=metadata, raw_event=raw
    )
