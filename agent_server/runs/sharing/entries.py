"""How a run's events lie in its stream, and how the stream of a run whose gateway died is ended.

An entry holds consecutive events, one a line; its id is the number of the last of them, so that reading on after a
number is reading after an id. Entries may overlap: what was sent again after a lost answer is told apart by number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from agent_server.runs.log import EventLog, FellBehind
from agent_server.runs.sharing.keys import RunPlace
from agent_server.settings import SharingLimits
from events.encode import decode, encode
from events.lifecycle import LifecycleError, Verifier
from events.metadata import ErrorMetadata, as_metadata
from events.vocabulary import (
    Event,
    ReasoningMessageContent,
    ReasoningMessageStart,
    RunError,
    RunFinished,
    RunStarted,
    TextMessageContent,
    TextMessageStart,
    ToolCallArgs,
    ToolCallStart,
)

TERMINAL = (RunFinished, RunError)
RawEntry = tuple[bytes, Mapping[bytes, bytes]]


class StreamEntry(NamedTuple):
    """Events `first` to `last` as they are sent."""

    first: int
    last: int
    data: bytes


def entry_id(number: int) -> str:
    return f"{number}-0"


def number_of(id: bytes) -> int:
    return int(id.partition(b"-")[0])


def cut(log: EventLog, after: int, limits: SharingLimits) -> StreamEntry | None:
    """The next entry after a number, from the oldest event that is still kept; None if there is nothing."""
    first = max(after + 1, log.oldest)
    lines: list[bytes] = []
    size = 0
    while first + len(lines) <= log.last and len(lines) < limits.entry_events and size < limits.entry:
        try:
            lines.append(encode(log.get(first + len(lines))))
        except FellBehind:  # cannot be: nothing is appended in between
            break
        size += len(lines[-1]) + 1
    return StreamEntry(first, first + len(lines) - 1, b"\n".join(lines)) if lines else None


def opened(entries: Iterable[RawEntry]) -> Iterator[tuple[int, Event]]:
    """The numbered events of entries as Redis gives them."""
    for _, fields in entries:
        yield from enumerate(map(decode, fields[b"e"].split(b"\n")), int(fields[b"f"]))


def closing(events: Iterable[tuple[int, Event]], place: RunPlace) -> list[Event]:
    """What ends a stream that its gateway cannot end: everything open is closed, then RUN_ERROR, which may be tried
    again. Nothing if the stream has its terminal event."""
    verifier = Verifier()
    reached = 0
    for number, event in events:
        if number <= reached:
            continue
        if reached == 0 and number > 1:  # the beginning is not kept any more
            verifier.check(RunStarted(thread_id=place.thread_id, run_id=place.run_id))
        reached = number
        _follow(verifier, event)
        if isinstance(event, TERMINAL):
            return []
    return [*verifier.close_open("The server that ran this died."), died()]


def _follow(verifier: Verifier, event: Event) -> None:
    try:
        verifier.check(event)
    except LifecycleError:  # what it belongs to was opened before the oldest event that is kept
        with contextlib.suppress(LifecycleError):
            if (start := _start_of(event)) is not None:
                verifier.check(start)


def _start_of(event: Event) -> Event | None:
    match event:
        case TextMessageContent():
            return TextMessageStart(message_id=event.message_id)
        case ToolCallArgs():
            return ToolCallStart(tool_call_id=event.tool_call_id, tool_call_name="")
        case ReasoningMessageContent():
            return ReasoningMessageStart(message_id=event.message_id, role="reasoning")
    return None


def died() -> RunError:
    return RunError(
        message="The server that ran this died before the run was complete; its thread has what was committed.",
        code="unavailable",
        metadata=as_metadata(ErrorMetadata(retryable=True, lost=True)),
    )
