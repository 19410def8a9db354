"""Events → content blocks, one after the other.

A message of this API is a row of blocks, each opened, filled and closed before the next. AG-UI lets items overlap, so
an item that begins while another is open waits with what it gets until its turn comes.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Literal, NamedTuple

from adapters.anthropic_messages.signature import digest
from adapters.sealed import Seal, wrap
from events.vocabulary import (
    Event,
    ReasoningEncryptedValue,
    ReasoningMessageContent,
    ReasoningMessageEnd,
    ReasoningMessageStart,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallArgs,
    ToolCallEnd,
    ToolCallStart,
)


class Opened(NamedTuple):
    place: int
    block: dict[str, object]


class Filled(NamedTuple):
    """`kind` is "text", "thinking", "signature" or "partial_json": the key that the delta has on the wire."""

    place: int
    kind: Literal["text", "thinking", "signature", "partial_json"]
    delta: str


class Closed(NamedTuple):
    place: int


Step = Opened | Filled | Closed
Kind = Literal["text", "thinking", "tool_use"]
DELTA_KEY: dict[Kind, Literal["text", "thinking", "partial_json"]] = {
    "text": "text",
    "thinking": "thinking",
    "tool_use": "partial_json",
}


class _WaitingBlock:
    """What becomes one block. `waiting` holds deltas that came before its turn; `sealed` is an encrypted value."""

    __slots__ = ("begun", "ended", "id", "kind", "name", "said", "sealed", "waiting")

    def __init__(self, kind: Kind, id: str, name: str = "") -> None:
        self.kind: Kind = kind
        self.id = id
        self.name = name
        self.begun = False
        self.ended = False
        self.sealed: str | None = None
        self.said: list[str] = []
        self.waiting: list[str] = []


class Blocks:
    """Feed it events; it says what happens to blocks. The first item of the row is the one being written."""

    def __init__(self, *, thread_id: str = "", hidden_tools: Container[str] = (), hide_thinking: bool = False) -> None:
        self._thread_id = thread_id
        self._hidden = hidden_tools
        self._hide_thinking = hide_thinking
        self._row: list[_WaitingBlock] = []
        self._index = 0

    @property
    def open_text(self) -> tuple[str, int] | None:
        """(message id, place) while a text block is being written: the caller may take deltas of it as they are."""
        head = self._row[0] if self._row else None
        return (head.id, self._index) if head is not None and head.begun and head.kind == "text" else None

    def feed(self, event: Event) -> list[Step]:
        steps: list[Step] = []
        if not isinstance(event, ReasoningEncryptedValue):
            self._advance(steps)
        match event:
            case TextMessageStart(message_id=id):
                self._row.append(_WaitingBlock("text", id))
            case ReasoningMessageStart(message_id=id):
                self._row.append(_WaitingBlock("thinking", id))
            case ToolCallStart(tool_call_id=id, tool_call_name=name) if name not in self._hidden:
                self._row.append(_WaitingBlock("tool_use", id, name))
                if len(self._row) == 1:
                    self._begin(steps)
            case TextMessageContent(message_id=id, delta=delta):
                self._fill("text", id, delta, steps)
            case ReasoningMessageContent(message_id=id, delta=delta):
                self._fill("thinking", id, delta, steps)
            case ToolCallArgs(tool_call_id=id, delta=delta):
                self._fill("tool_use", id, delta, steps)
            case TextMessageEnd(message_id=id):
                self._end("text", id, steps)
            case ReasoningMessageEnd(message_id=id):
                self._end("thinking", id, None)
            case ToolCallEnd(tool_call_id=id):
                self._end("tool_use", id, steps)
            case ReasoningEncryptedValue(subtype="message", entity_id=id, encrypted_value=value):
                if (item := self._find("thinking", id)) is not None:
                    item.sealed = wrap(Seal(self._thread_id, id, value))
            case _:
                pass
        return steps

    def close(self) -> list[Step]:
        """Write out everything that is left."""
        steps: list[Step] = []
        for item in self._row:
            item.ended = True
        self._advance(steps)
        return steps

    def _find(self, kind: Kind, id: str) -> _WaitingBlock | None:
        return next((item for item in self._row if item.id == id and item.kind == kind), None)

    def _fill(self, kind: Kind, id: str, delta: str, steps: list[Step]) -> None:
        item = self._find(kind, id)
        if item is None or not delta:
            return
        if item is self._row[0]:
            self._write(item, delta, steps)
        else:
            item.waiting.append(delta)

    def _write(self, item: _WaitingBlock, delta: str, steps: list[Step]) -> None:
        if not item.begun:
            self._begin(steps)
        if item.kind == "thinking":
            item.said.append(delta)
            if self._hide_thinking:
                return
        steps.append(Filled(self._index, DELTA_KEY[item.kind], delta))

    def _begin(self, steps: list[Step]) -> None:
        item = self._row[0]
        item.begun = True
        steps.append(Opened(self._index, _empty(item)))

    def _end(self, kind: Kind, id: str, steps: list[Step] | None) -> None:
        """Reasoning is closed by the next event, since its seal may still follow (`steps` is None)."""
        if (item := self._find(kind, id)) is not None:
            item.ended = True
            if steps is not None:
                self._advance(steps)

    def _advance(self, steps: list[Step]) -> None:
        """Close the item being written once it has ended, and write what waited behind it."""
        while self._row:
            item = self._row[0]
            for delta in item.waiting:
                self._write(item, delta, steps)
            item.waiting.clear()
            if item.kind == "tool_use" and not item.begun:
                self._begin(steps)
            if not item.ended:
                return
            self._finish(item, steps)
            self._row.pop(0)

    def _finish(self, item: _WaitingBlock, steps: list[Step]) -> None:
        if not item.begun:
            if item.sealed is None:
                return
            steps.append(Opened(self._index, {"type": "redacted_thinking", "data": item.sealed}))
        elif item.kind == "thinking":
            shown = "" if self._hide_thinking else "".join(item.said)
            steps.append(Filled(self._index, "signature", item.sealed or digest(shown)))
        steps.append(Closed(self._index))
        self._index += 1


def _empty(item: _WaitingBlock) -> dict[str, object]:
    if item.kind == "text":
        return {"type": "text", "text": ""}
    if item.kind == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": item.id, "name": item.name, "input": {}}
