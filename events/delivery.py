"""When deltas are sent: at once, or gathered as the streaming specification advises (docs/reading-output.md).

"adaptive" (its section "Token Buffer Size"): content at once, the arguments of a call at JSON boundaries (brackets,
quotes, commas, colons), reasoning by sentence. What is gathered is sent before anything else that follows it, so the
order of events is the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from events.vocabulary import Event, ReasoningMessageContent, TextMessageContent, ToolCallArgs

_JSON_BOUNDARY = re.compile(r'.*[\]{}",:\[]', re.DOTALL)
_SENTENCE_END = re.compile(r".*(?:[.!?…]['\")\]]?\s|[。！？\n])", re.DOTALL)
_BOUNDARIES: dict[type, re.Pattern[str]] = {ToolCallArgs: _JSON_BOUNDARY, ReasoningMessageContent: _SENTENCE_END}
_TAIL = 2
"""Characters in front of a delta that a boundary may begin with: a full stop and a quote."""

Gathered = ToolCallArgs | ReasoningMessageContent


class Delivery:
    """One run's policy. `deliver` takes events as they arise and returns those to send now; `flush` the rest."""

    def __init__(self, policy: Literal["immediate", "adaptive"] = "immediate") -> None:
        self.gathers = policy == "adaptive"
        """Whether events may wait; else `deliver` gives back what it is given."""
        self._parts: list[str] = []
        self._rows: list[object] = []
        self._last: Gathered | None = None

    def deliver(self, events: list[Event]) -> list[Event]:
        if not self.gathers:
            return events
        sent: list[Event] = []
        for event in events:
            if not isinstance(event, ToolCallArgs | ReasoningMessageContent):
                # Any other event comes behind what was gathered before it, or the order would depend on the policy.
                sent += (*self.flush(), event)
                continue
            # Arguments and reasoning have boundaries of their own, and what is gathered is of one kind.
            if self._last is not None and type(self._last) is not type(event):
                sent += self.flush()
            sent += self._gather(event)
        return sent

    def flush(self) -> list[Event]:
        """What was gathered, as one event."""
        if self._last is None:
            return []
        event, self._last = self._last, None
        delta, self._parts = "".join(self._parts), []
        return self._delta(event, delta) if delta else []

    def _gather(self, event: Gathered) -> list[Event]:
        self._last = event
        if event.metadata:
            self._rows += event.metadata.get("tokens", [])
        # A sentence may end across two deltas: its full stop in one, the space behind it in the next.
        before = self._parts[-1][-_TAIL:] if self._parts else ""
        boundary = _BOUNDARIES[type(event)].match(before + event.delta)
        end = boundary.end() - len(before) if boundary else 0
        if end <= 0:
            self._parts.append(event.delta)
            return []
        whole = "".join(self._parts) + event.delta[:end]
        # What stands behind the boundary waits for the next one.
        self._parts = [event.delta[end:]]
        return self._delta(event, whole)

    def _delta(self, event: Gathered, delta: str) -> list[Event]:
        rows, self._rows = self._rows, []
        return [msgspec.structs.replace(event, delta=delta, metadata={"tokens": rows} if rows else None)]


def joined(events: Sequence[Event]) -> list[Event]:
    """The events with neighbouring deltas of one message, or of one call, as one delta: what came together is said
    together. The rows of their tokens stay in order; whatever else is between two deltas keeps them apart."""
    told: list[Event] = []
    for part, together in groupby(events, _part):
        deltas = list(together)
        told += deltas if part is None else [_one_of(deltas)]
    return told


def _part(event: Event) -> Hashable:
    """What a delta adds to; None for every other event."""
    if type(event) is ToolCallArgs:
        return ToolCallArgs, event.tool_call_id, event.subagent_run_id
    if type(event) is TextMessageContent or type(event) is ReasoningMessageContent:
        return type(event), event.message_id, event.subagent_run_id
    return None


def _one_of(deltas: Sequence[Any]) -> Any:
    if len(deltas) == 1:
        return deltas[0]
    rows = [row for each in deltas for row in (each.metadata or {}).get("tokens", ())]
    delta = "".join(each.delta for each in deltas)
    return msgspec.structs.replace(deltas[0], delta=delta, metadata={"tokens": rows} if rows else None)
