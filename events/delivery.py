"""The policy for sending deltas: at once, or buffered as the streaming specification recommends
(docs/reading-output.md).

"adaptive" (its section "Token Buffer Size"): content at once, the arguments of a call at JSON boundaries (brackets,
quotes, commas, colons), reasoning by sentence. Buffered text is sent before any later event, so the order of events
does not depend on the policy.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from itertools import groupby
from typing import Any, Literal

import msgspec

from events.metadata import Scored, token_metadata, tokens_of, visible_tokens
from events.vocabulary import Event, ReasoningMessageContent, TextMessageContent, ToolCallArgs

_JSON_BOUNDARY = re.compile(r'.*[\]{}",:\[]', re.DOTALL)
_SENTENCE_END = re.compile(r".*(?:[.!?…]['\")\]]?\s|[。！？\n])", re.DOTALL)
_BOUNDARIES: dict[type, re.Pattern[str]] = {ToolCallArgs: _JSON_BOUNDARY, ReasoningMessageContent: _SENTENCE_END}
_TAIL = 2
"""How many characters before a delta may belong to its boundary: a full stop and a quote."""

BufferedDelta = ToolCallArgs | ReasoningMessageContent


class Delivery:
    """Applies a run's policy. `deliver` takes new events and returns those to be sent now; `flush` returns the rest."""

    def __init__(self, policy: Literal["immediate", "adaptive"] = "immediate") -> None:
        self.gathers = policy == "adaptive"
        """Whether events may be buffered; if not, `deliver` returns its argument."""
        self._parts: list[str] = []
        self._rows: list[Scored] = []
        self._visible: list[Scored] = []
        self._last: BufferedDelta | None = None

    def deliver(self, events: list[Event]) -> list[Event]:
        if not self.gathers:
            return events
        ready: list[Event] = []
        for event in events:
            if not isinstance(event, ToolCallArgs | ReasoningMessageContent):
                # Buffered text goes before any other event, so that the order does not depend on the policy.
                ready += (*self.flush(), event)
                continue
            # Arguments and reasoning have different boundaries, so the buffer has only one kind.
            if self._last is not None and type(self._last) is not type(event):
                ready += self.flush()
            self._last = event
            self._rows += tokens_of(event.metadata)
            self._visible += visible_tokens(event.metadata)
            # A sentence may end across two deltas: its full stop in one, the space after it in the next.
            before = self._parts[-1][-_TAIL:] if self._parts else ""
            boundary = _BOUNDARIES[type(event)].match(before + event.delta)
            end = boundary.end() - len(before) if boundary else 0
            if end <= 0:
                self._parts.append(event.delta)
                continue
            whole = "".join(self._parts) + event.delta[:end]
            self._parts = [event.delta[end:]]  # waits for the next boundary
            ready += self._delta(event, whole)
        return ready

    def flush(self) -> list[Event]:
        """Return the buffered text as one event, or []."""
        if self._last is None:
            return []
        event, self._last = self._last, None
        delta, self._parts = "".join(self._parts), []
        return self._delta(event, delta) if delta else []

    def _delta(self, event: BufferedDelta, delta: str) -> list[Event]:
        metadata = token_metadata(self._rows, self._visible)
        self._rows, self._visible = [], []
        return [msgspec.structs.replace(event, delta=delta, metadata=metadata)]


def joined(events: Sequence[Event]) -> list[Event]:
    """Merge adjacent deltas of the same message or call into one. Their token rows stay in order; any other event
    between two deltas keeps them apart."""
    merged: list[Event] = []
    for target, group in groupby(events, _target):
        deltas: list[Any] = list(group)
        if target is None or len(deltas) == 1:
            merged += deltas
            continue
        rows = [row for each in deltas for row in tokens_of(each.metadata)]
        visible = [row for each in deltas for row in visible_tokens(each.metadata)]
        delta = "".join(each.delta for each in deltas)
        merged.append(msgspec.structs.replace(deltas[0], delta=delta, metadata=token_metadata(rows, visible)))
    return merged


def _target(event: Event) -> Hashable:
    """Return a key for the message or call that a delta extends; None for every other event."""
    if type(event) is ToolCallArgs:
        return ToolCallArgs, event.tool_call_id, event.subagent_run_id
    if type(event) is TextMessageContent or type(event) is ReasoningMessageContent:
        return type(event), event.message_id, event.subagent_run_id
    return None
