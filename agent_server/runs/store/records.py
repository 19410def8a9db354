"""What the store hands out: plain data, in wire form where the protocol has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from events.vocabulary import Event, Interrupt

RunStatus = Literal["waiting", "running", "finished", "interrupted", "cancelled", "failed", "broken"]
InterruptStatus = Literal["open", "claimed", "answered"]
RemovalKind = Literal["regenerated", "edited", "changed", "deleted"]


class HeldCall(TypedDict):
    """The call that an interrupt stopped. answers: those to what its tool asked before. agent: whose call it is.
    continuation: what its callee stored with the question. question: what was asked at first, where it was asked again.
    own: the interrupt's id at the guest that asked. old: the guest asked in the manner of before there were
    interrupts."""

    id: str
    name: str
    arguments: dict[str, object]
    answers: NotRequired[Sequence[object]]
    continuation: NotRequired[object]
    agent: NotRequired[str]
    question: NotRequired[str | None]
    own: NotRequired[str]
    old: NotRequired[bool]


class AskedPerson(TypedDict):
    """What a run asks a person, and the call that waits for the answer."""

    interrupt: Interrupt
    call: HeldCall


class InterruptAnswer(TypedDict):
    """A resume entry's status, or "expired", and its payload."""

    status: str
    payload: object


class InterruptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An interrupt and what became of it.

    interrupt: as the protocol has it. "claimed": an answer was accepted and its call begun, but no result was recorded.
    result: what TOOL_CALL_RESULT carried, with `result_message_id`.
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
    """One run. Times in integer milliseconds. `error`: the RUN_ERROR's code. "waiting": accepted, behind another run of
    its thread. "broken": the server died in mid-run."""

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
    """One thread as lists show it. Times in integer milliseconds since the epoch."""

    id: str
    name: str
    agent_id: str
    archived: bool
    created_at: int
    updated_at: int
    metadata: dict[str, object] = {}


class ThreadState(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs to know of its thread before it begins. owners: of the other servers that have a run going
    on in it, as far as the records tell. messages: the conversation, in wire form, where the client does not show it
    itself; else (). edited: how many stored messages the client's replaced or took away."""

    state: object = None
    messages: tuple[dict[str, Any], ...] = ()
    owners: tuple[int, ...] = ()
    interrupts: tuple[InterruptRecord, ...] = ()
    edited: int = 0


class SavedEvents(msgspec.Struct, frozen=True, kw_only=True):
    """What is saved of a run beside its stream. number: of the last of its events that are in `packed`, 0 where there
    are none. body: the agent's checkpoint; None if it did not change."""

    tenant: str
    thread_id: str
    run_id: str
    number: int = 0
    packed: bytes = b""
    body: str | None = None


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose server ended, as its agent saved it. body: the agent's own. attempts: how often it was resumed since
    it last made progress. progress: the number of its last event when that was counted. owner: the server that had it.
    thread: what `Store.take_up` found. packed: its events, in the order of their numbers; see `SavedEvents`."""

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
    """What is saved of a run at its end. messages: the conversation in wire form, as the run left it. interrupts: what
    it asks a person. state: None leaves the thread's. saved: the run's last events, with what is left of its checkpoint
    once it ended; None for a run of which nothing is saved on the way."""

    tenant: str
    thread_id: str
    run_id: str
    terminal: Event
    messages: Sequence[Mapping[str, Any]] = ()
    interrupts: Sequence[AskedPerson] = ()
    state: object = None
    saved: SavedEvents | None = None


class Removal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one edit of a thread's history took away, and can be had back.

    kind: "regenerated": what followed a message that was asked again; "edited": the same for one that came with other
    words, with its former words; "changed": the former words of messages whose answers stayed; "deleted". after_id:
    the message that the first of them followed. messages: in wire form. Times in integer milliseconds.
    """

    id: str
    kind: RemovalKind
    after_id: str | None
    removed_at: int
    messages: list[dict[str, object]]


class FeedbackRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A person's word on a message, or on a place in it. score: -1 to 1. position: tokens of the message before that
    place."""

    message_id: str
    score: float
    comment: str = ""
    position: int | None = None
    created_at: int = 0
