"""The order in which events are allowed: a table, and a verifier that applies it.

The verifier accepts and rejects the same streams as `@ag-ui/client` 1.0.0; a property test replays generated streams to
that client. A run of this server that breaks a rule is a bug. `events.lifecycle_page` renders the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel

from events.chunks import ChunkExpander, LifecycleError
from events.metadata import CUT
from events.vocabulary import (
    ActivityDelta,
    ActivitySnapshot,
    Custom,
    Event,
    InterruptOutcome,
    MessagesSnapshot,
    Raw,
    ReasoningEncryptedValue,
    ReasoningEnd,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    RunStarted,
    StateDelta,
    StateSnapshot,
    StepFinished,
    StepStarted,
    SubagentError,
    SubagentFinished,
    SubagentStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
)

__all__ = ["PHASES", "RULES", "TABLE", "LifecycleError", "Verifier", "event_type"]

Phase = Literal["new", "running", "finished", "failed"]
Entity = Literal[
    "run", "text message", "tool call", "reasoning message", "reasoning span", "step", "subagent", "activity"
]
Does = Literal["opens", "continues", "closes", "makes", "amends", "restates", "stands alone"]


class LifecycleRow(NamedTuple):
    """The effect of an event type on an entity. key: the event's attribute with the entity's id."""

    does: Does
    entity: Entity | None = None
    key: str = ""


TABLE: dict[type, LifecycleRow] = {
    RunStarted: LifecycleRow("opens", "run", "run_id"),
    RunFinished: LifecycleRow("closes", "run", "run_id"),
    RunError: LifecycleRow("closes", "run"),
    StepStarted: LifecycleRow("opens", "step", "step_name"),
    StepFinished: LifecycleRow("closes", "step", "step_name"),
    TextMessageStart: LifecycleRow("opens", "text message", "message_id"),
    TextMessageContent: LifecycleRow("continues", "text message", "message_id"),
    TextMessageEnd: LifecycleRow("closes", "text message", "message_id"),
    ToolCallStart: LifecycleRow("opens", "tool call", "tool_call_id"),
    ToolCallArgs: LifecycleRow("continues", "tool call", "tool_call_id"),
    ToolCallEnd: LifecycleRow("closes", "tool call", "tool_call_id"),
    ToolCallResult: LifecycleRow("makes", "text message", "message_id"),
    ReasoningStart: LifecycleRow("opens", "reasoning span", "message_id"),
    ReasoningMessageStart: LifecycleRow("opens", "reasoning message", "message_id"),
    ReasoningMessageContent: LifecycleRow("continues", "reasoning message", "message_id"),
    ReasoningMessageEnd: LifecycleRow("closes", "reasoning message", "message_id"),
    ReasoningEnd: LifecycleRow("closes", "reasoning span", "message_id"),
    ReasoningEncryptedValue: LifecycleRow("stands alone"),
    SubagentStarted: LifecycleRow("opens", "subagent", "subagent_run_id"),
    SubagentFinished: LifecycleRow("closes", "subagent", "subagent_run_id"),
    SubagentError: LifecycleRow("closes", "subagent", "subagent_run_id"),
    ActivitySnapshot: LifecycleRow("makes", "activity", "message_id"),
    ActivityDelta: LifecycleRow("amends", "activity", "message_id"),
    MessagesSnapshot: LifecycleRow("restates"),
    StateSnapshot: LifecycleRow("stands alone"),
    StateDelta: LifecycleRow("stands alone"),
    Raw: LifecycleRow("stands alone"),
    Custom: LifecycleRow("stands alone"),
}

# The phases of the stream in which the three run events are allowed; any other event needs an active run.
PHASES: dict[Phase, frozenset[type]] = {
    "new": frozenset({RunStarted, RunError}),
    "running": frozenset(get_args(Event)) - {RunStarted},
    "finished": frozenset({RunStarted, RunError}),
    "failed": frozenset({RunStarted}),
}
_DELTAS = (TextMessageContent, ReasoningMessageContent, ToolCallArgs)
PHASE_RULES: dict[Phase, str] = {
    "new": "first-event",
    "running": "run-active",
    "finished": "run-finished",
    "failed": "run-failed",
}

# Ids are unique per kind, so each kind has its own table of owners. A reasoning span and the message inside it share
# one: an id of both belongs to one producer. Steps and subagents have no owners in this sense.
OWNERSHIP: dict[Entity, str] = {
    "text message": "message",
    "tool call": "tool call",
    "reasoning message": "reasoning",
    "reasoning span": "reasoning",
    "activity": "activity",
}

RULES: dict[str, str] = {
    "first-event": "A stream begins with RUN_STARTED or RUN_ERROR.",
    "run-active": "RUN_STARTED comes only when no run is active.",
    "run-finished": "After RUN_FINISHED come only RUN_STARTED and RUN_ERROR.",
    "run-failed": "After RUN_ERROR comes only RUN_STARTED.",
    "already-open": "What is open is not opened again; a step is identified by its name and its producer.",
    "not-open": "Only what is open is continued or closed.",
    "left-open": "RUN_FINISHED leaves nothing open. RUN_ERROR may.",
    "owner": "Whoever opened something continues it: a subagentRunId, when given, is that of the opener, and a tool "
    "call's is that of its parent message.",
    "subagent-reused": "A subagentRunId names one invocation: it does not start again in the same run.",
    "subagent-parent": "A parentSubagentRunId names a subagent that was started in the same run.",
    "chunk-first": "The first chunk of a stream carries its id, and a tool call's its name too.",
    "chunk-disagrees": "A later chunk repeats role, name, toolCallName, parentMessageId unchanged, or leaves them out.",
    "chunk-ambiguous": "A chunk with neither id nor subagentRunId fits one open stream.",
    "run-identity": "(strict) RUN_FINISHED carries the threadId and runId of the run that it finishes.",
    "interrupt-identity": "(strict) The ids of a run's interrupts are unique.",
}

_CLOSERS: dict[Entity, Any] = {
    "text message": lambda key, tag: TextMessageEnd(message_id=key, subagent_run_id=tag),
    "tool call": lambda key, tag: ToolCallEnd(tool_call_id=key, subagent_run_id=tag, metadata=dict(CUT)),
    "reasoning message": lambda key, tag: ReasoningMessageEnd(message_id=key, subagent_run_id=tag),
    "reasoning span": lambda key, tag: ReasoningEnd(message_id=key, subagent_run_id=tag),
    "step": lambda key, tag: StepFinished(step_name=key, subagent_run_id=tag),
}


def event_type(event: Event) -> str:
    """Return the event's type on the wire, e.g. "RUN_STARTED"."""
    return str(event.__struct_config__.tag)


class Verifier:
    """Checks one stream, event by event.

    strict: also check the rules of the next draft that the client does not enforce yet; a server should keep them.
    After an error the client ends the stream, and the verifier's state is undefined.
    """

    def __init__(self, *, strict: bool = False) -> None:
        self.phase: Phase = "new"
        self._strict = strict
        self._chunks = ChunkExpander()
        self._run: RunStarted | None = None
        self._reset()

    def _reset(self) -> None:
        # (entity, id, producer if it is part of the identity) in the order of opening. A dict, since it is ordered.
        self._open: dict[tuple[Entity, str, str | None], None] = {}
        self._owners: dict[str, dict[str, str | None]] = {name: {} for name in OWNERSHIP.values()}
        self._started_subagents: set[str] = set()

    def check(self, event: Event) -> None:
        """Raise LifecycleError if the event is not allowed at this point."""
        # The fast path for tokens: a delta of something open, without a tag, and with no stream of chunks to end. All
        # other checks would pass.
        if (
            isinstance(event, _DELTAS)
            and event.subagent_run_id is None
            and self.phase == "running"
            and not self._chunks.lanes
        ):
            row = TABLE[type(event)]
            if (row.entity, getattr(event, row.key), None) in self._open:
                return
        # Chunks are checked as their START, CONTENT and END, so the table needs no rows for them.
        for single in self._chunks.expand(event):
            self._check(single)

    def is_open(self, entity: Entity, key: str) -> bool:
        """Return whether an entity with that id, not a subagent's, is open."""
        return (entity, key, None) in self._open

    def close_open(self, reason: str = "The run ended before this was finished.") -> list[Event]:
        """Return events that close everything open, innermost first. reason: the error message for subagents. Streams
        of chunks are left out, since the event that ends the run ends them."""
        streamed = {(lane.kind, lane.id) for lane in self._chunks.lanes.values()}
        closing: list[Event] = []
        # Innermost first: a call's END comes before that of the message that carries it.
        for entity, key, producer in reversed(self._open):
            if entity == "subagent":
                closing.append(SubagentError(subagent_run_id=key, message=reason))
            elif (entity, key) not in streamed:
                owner = self._owners[OWNERSHIP[entity]][key] if entity in OWNERSHIP else producer
                closing.append(_CLOSERS[entity](key, owner))
        return closing

    def _check(self, event: Event) -> None:
        if type(event) not in PHASES[self.phase]:
            rule = PHASE_RULES[self.phase]
            raise LifecycleError(rule, f"{event_type(event)} is not allowed here. {RULES[rule]}")
        row = TABLE[type(event)]
        if row.entity == "run":
            match event:
                # Several runs may share a stream; open entities and owners of one have no effect in the next.
                case RunStarted():
                    self._reset()
                    self._run, self.phase = event, "running"
                    run_input: object = event.input
                    if isinstance(run_input, BaseModel):
                        run_input = run_input.model_dump(mode="json", by_alias=True)
                    messages = run_input.get("messages") if isinstance(run_input, dict) else None
                    self._seed(messages if isinstance(messages, list) else [], authoritative=False)
                case RunFinished():
                    self._check_finish(event)
                    self.phase = "finished"
                case _:
                    self.phase = "failed"
        elif row.does == "opens":
            assert row.entity is not None
            identity = _identity(event, row)
            if identity in self._open:
                raise LifecycleError(
                    "already-open", f"{event_type(event)}: {row.entity} {identity[1]!r} is already open."
                )
            if isinstance(event, SubagentStarted):
                if event.subagent_run_id in self._started_subagents:
                    raise LifecycleError("subagent-reused", f"Subagent {event.subagent_run_id!r} was already started.")
                parent = event.parent_subagent_run_id
                if parent is not None and parent not in self._started_subagents:
                    raise LifecycleError("subagent-parent", f"The parent subagent {parent!r} was not started.")
                self._started_subagents.add(event.subagent_run_id)
            elif row.entity in OWNERSHIP:
                # Check the producer against the table of owners, and add it there if the id is new.
                owners = self._owners[OWNERSHIP[row.entity]]
                key = identity[1]
                self._check_owner(event, owners, key)
                if isinstance(event, ToolCallStart):
                    # The first opener of an id stays its owner, also when it is opened again.
                    owners.setdefault(key, self._call_owner(event, owners))
                else:
                    owners.setdefault(key, getattr(event, "subagent_run_id", None))
            # Added last, so that a refused opening changes nothing.
            self._open[identity] = None
        elif row.does in ("continues", "closes"):
            assert row.entity is not None
            identity = _identity(event, row)
            if identity not in self._open:
                raise LifecycleError("not-open", f"{event_type(event)}: {row.entity} {identity[1]!r} is not open.")
            if row.entity in OWNERSHIP:
                self._check_owner(event, self._owners[OWNERSHIP[row.entity]], identity[1])
            if row.does == "closes":
                del self._open[identity]
        else:
            self._check_other(event, row)

    def _check_finish(self, event: RunFinished) -> None:
        if self._open:
            named = ", ".join(f"{entity} {key!r}" for entity, key, _ in list(self._open)[:5])
            raise LifecycleError("left-open", f"RUN_FINISHED while still open: {named}.")
        # The rules below are only in the draft; the client does not check them.
        if not self._strict:
            return
        if self._run and (event.thread_id, event.run_id) != (self._run.thread_id, self._run.run_id):
            raise LifecycleError("run-identity", RULES["run-identity"])
        if isinstance(event.outcome, InterruptOutcome):
            ids = [interrupt.id for interrupt in event.outcome.interrupts]
            if len(set(ids)) != len(ids):
                raise LifecycleError("interrupt-identity", RULES["interrupt-identity"])

    def _call_owner(self, event: ToolCallStart, owners: Mapping[str, str | None]) -> str | None:
        """Return the owner of a tool call, which is the owner of its parent message."""
        messages, parent = self._owners["message"], event.parent_message_id
        if parent is None or parent not in messages:
            return event.subagent_run_id
        if event.subagent_run_id is not None:
            self._check_owner(event, messages, parent)
        elif event.tool_call_id in owners and owners[event.tool_call_id] != messages[parent]:
            raise LifecycleError("owner", f"Tool call {event.tool_call_id!r} moves to another producer's message.")
        return messages[parent]

    def _check_other(self, event: Event, row: LifecycleRow) -> None:
        match event:
            case MessagesSnapshot():
                self._seed(event.messages, authoritative=True)
            case ToolCallResult():
                self._owners["message"][event.message_id] = event.subagent_run_id
            case ActivitySnapshot():
                owners = self._owners["activity"]
                # A snapshot that replaces nothing does not change the activity's owner.
                if event.message_id not in owners or event.replace is not False:
                    owners[event.message_id] = event.subagent_run_id
            case ActivityDelta():
                self._check_owner(event, self._owners["activity"], event.message_id)
            case ReasoningEncryptedValue():
                if event.subtype == "tool-call":
                    owners = self._owners["tool call"]
                elif event.entity_id in self._owners["message"]:
                    owners = self._owners["message"]
                else:
                    owners = self._owners["reasoning"]
                self._check_owner(event, owners, event.entity_id)

    def _check_owner(self, event: Event, owners: Mapping[str, str | None], key: str) -> None:
        """Raise LifecycleError if the event has a tag other than the owner's. An opener without a tag means the parent
        agent; an event without one is always allowed."""
        tag = getattr(event, "subagent_run_id", None)
        if tag is not None and key in owners and owners[key] != tag:
            raise LifecycleError("owner", f"{event_type(event)}: {key!r} does not belong to subagent {tag!r}.")

    def _seed(self, messages: list[Any], *, authoritative: bool) -> None:
        """Add the owners of the messages in a snapshot (authoritative) or in the echoed input."""
        for message in messages:
            tag = message.get("subagentRunId")
            kind = {"reasoning": "reasoning", "activity": "activity"}.get(str(message.get("role")), "message")
            entries = [(kind, message.get("id"))]
            entries += [("tool call", call.get("id")) for call in message.get("toolCalls") or ()]
            for owner_kind, key in entries:
                # A snapshot redefines owners; the echoed input only adds ids that are not known yet.
                if isinstance(key, str) and (authoritative or key not in self._owners[owner_kind]):
                    self._owners[owner_kind][key] = tag


def _identity(event: Event, row: LifecycleRow) -> tuple[Entity, str, str | None]:
    assert row.entity is not None
    producer = getattr(event, "subagent_run_id", None) if row.entity == "step" else None
    return row.entity, getattr(event, row.key), producer
