"""The store's records: plain data, in wire form where the protocol has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from events.vocabulary import Event, Interrupt

RunStatus = Literal["waiting", "running", "finished", "interrupted", "cancelled", "failed", "broken"]
InterruptStatus = Literal["open", "claimed", "answered"]
RemovalKind = Literal["regenerated", "edited", "changed", "deleted"]


class HeldCall(TypedDict):
    """The call that an interrupt paused.

    answers: the answers to the tool's earlier questions. agent: the agent that made the call. continuation: what the
    tool stored with its question. question: the original question, if it is repeated. own: the interrupt's id at the
    guest that asked. old: the guest used its framework's older mechanism from before interrupts.
    """

    id: str
    name: str
    arguments: dict[str, object]
    answers: NotRequired[Sequence[object]]
    continuation: NotRequired[object]
    agent: NotRequired[str]
    question: NotRequired[str | None]
    own: NotRequired[str]
    old: NotRequired[bool]


class PendingQuestion(TypedDict):
    """A question to a person, and the call that waits for the answer."""

    interrupt: Interrupt
    call: HeldCall


class InterruptAnswer(TypedDict):
    """An answer to an interrupt: the status of its resume entry, or "expired", and the payload."""

    status: str
    payload: object


class InterruptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An interrupt with its answer and result.

    interrupt: in wire form. status "claimed": an answer was accepted and the call started, but no result is recorded
    yet. result: the content of TOOL_CALL_RESULT, whose message id is `result_message_id`.
    """

    id: str
    thread_id: str
    run_id: str
    interrupt: dict[str, Any]
    call: HeldCall
    status: InterruptStatus = "open"
    answer: InterruptAnswer | None = None
    result: object = None
    result_message_id: str | None = None
    resumed_by: str | None = None


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One run. Times in integer milliseconds. error: RUN_ERROR's code. status "waiting": accepted, queued behind
    another run of its thread; "broken": its server died during the run."""

    id: str
    thread_id: str
    agent: str
    status: RunStatus
    parent_run_id: str | None = None
    error: str | None = None
    outcome: dict[str, object] | None = None
    usage: list[dict[str, object]] | None = None
    created_at: int = 0
    ended_at: int | None = None


class ThreadRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One thread in a list. Times in integer milliseconds since the epoch."""

    id: str
    name: str
    agent_id: str
    archived: bool
    created_at: int
    updated_at: int
    metadata: dict[str, object] = {}


class ThreadState(msgspec.Struct, frozen=True, kw_only=True):
    """A thread at the beginning of a run.

    owners: other servers with an unfinished run in the thread, according to the stored runs. messages: the
    conversation in wire form if the client did not send it, otherwise (). edited: how many stored messages the
    client's messages replaced or removed.
    """

    state: object = None
    messages: tuple[dict[str, Any], ...] = ()
    owners: tuple[int, ...] = ()
    interrupts: tuple[InterruptRecord, ...] = ()
    edited: int = 0


class SavedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Newly saved events of a run. number: the sequence number of the last event in `packed`, 0 if there is none. body:
    the agent's checkpoint, None if it has not changed."""

    tenant: str
    thread_id: str
    run_id: str
    number: int = 0
    packed: bytes = b""
    body: str | None = None


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A saved run whose server ended.

    body: the agent's checkpoint. attempts: how often the run was resumed since it last made progress. progress: the
    number of its last event when `attempts` was counted. owner: the server that had the run. thread: set by
    `Store.claim_orphan`. packed: its events in order; see `SavedEvents`.
    """

    tenant: str
    thread_id: str
    run_id: str
    agent: str
    body: str
    attempts: int
    owner: int
    created_at: int
    progress: int = 0
    thread: ThreadState = ThreadState()
    packed: tuple[bytes, ...] = ()


class Conclusion(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored at a run's end.

    messages: the conversation in wire form at the end of the run. interrupts: its questions to a person. state: None
    keeps the thread's state. saved: the run's last events and its reduced checkpoint; None if the run was not saved
    while it ran.
    """

    tenant: str
    thread_id: str
    run_id: str
    terminal: Event
    messages: Sequence[Mapping[str, Any]] = ()
    interrupts: Sequence[PendingQuestion] = ()
    state: object = None
    saved: SavedEvents | None = None


class Removal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The messages that one edit of a thread's history removed; they can be restored.

    kind: "regenerated": the messages after one that is answered again; "edited": those, and the former version of the
    message, which was changed; "changed": former versions of messages whose answers stayed; "deleted". after_id: the
    message that the first of them followed. messages: in wire form. Times in integer milliseconds.
    """

    id: str
    kind: RemovalKind
    after_id: str | None
    removed_at: int
    messages: list[dict[str, object]]


class FeedbackRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A person's feedback on a message or on a position in it. score: -1 to 1. position: the number of the message's
    tokens before it."""

    message_id: str
    score: float
    comment: str = ""
    position: int | None = None
    created_at: int = 0
