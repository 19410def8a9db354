"""AG-UI as TanStack AI's client needs it: `@tanstack/ai-client` 0.33, which names its runs in the header `X-Run-Id`.

It runs a tool of the page only when an event says that the tool's input is available, and lets a person answer only an
interrupt that has its own marks: those of an approval, or a binding with a hash of the schema of the answer.
"""

from __future__ import annotations

import hashlib
import json

import msgspec

from adapters import sse
from adapters.agui import SseEncoder
from events.encode import encode
from events.vocabulary import (
    Custom,
    Event,
    Interrupt,
    InterruptOutcome,
    RunFinished,
    SuccessOutcome,
    ToolCallArgs,
    ToolCallStart,
)

HEADER = "x-run-id"


class TanStackEncoder(SseEncoder):
    """Adds what the client needs at the end of a run.

    skip: the number of the last event that the client has already. Events up to it are read, but not encoded.
    """

    def __init__(self, *, legacy: bool = False, skip: int = 0) -> None:
        super().__init__(legacy=legacy)
        self.skip = skip
        self._names: dict[str, str] = {}
        self._arguments: dict[str, list[str]] = {}

    def encode(self, event: Event, *, sequence: int | None = None, choice: int = 0) -> bytes:
        """Return the event's frames."""
        before = b""
        match event:
            case ToolCallStart(tool_call_id=id, tool_call_name=name):
                self._names[id], self._arguments[id] = name, []
            case ToolCallArgs(tool_call_id=id, delta=delta) if id in self._arguments:
                self._arguments[id].append(delta)
            case RunFinished(outcome=SuccessOutcome(pending_tool_call_ids=list(ids))):
                before = b"".join(map(self._input_available, ids))
            case RunFinished(outcome=InterruptOutcome(interrupts=interrupts)):
                outcome = InterruptOutcome(interrupts=[with_marks(each, event.run_id) for each in interrupts])
                event = msgspec.structs.replace(event, outcome=outcome)
        if sequence is not None and sequence <= self.skip:
            return b""
        return before + super().encode(event, sequence=sequence, choice=choice)

    def _input_available(self, id: str) -> bytes:
        """Return the event upon which the client runs a tool of the page."""
        try:
            given = json.loads("".join(self._arguments[id]) or "{}")
        except (KeyError, ValueError, RecursionError):  # a call of an earlier run, or one that no tool can take
            return b""
        value = {"toolCallId": id, "toolName": self._names[id], "input": given}
        return sse.frame(encode(Custom(name="tool-input-available", value=value)))


def with_marks(interrupt: Interrupt, run_id: str) -> Interrupt:
    """Return an interrupt with the marks of an approval, if it asks for one, or with a binding."""
    metadata = interrupt.metadata or {}
    if interrupt.reason == "tool_call" and "arguments" in metadata:
        marks = {"kind": "approval", "input": metadata["arguments"]}
        return msgspec.structs.replace(interrupt, reason="approval_required", metadata={**metadata, **marks})
    binding = {"v": 1, "kind": "generic", "interruptId": interrupt.id, "interruptedRunId": run_id, "generation": 0}
    if interrupt.response_schema is not None:
        binding["responseSchemaHash"] = schema_hash(interrupt.response_schema)
    return msgspec.structs.replace(interrupt, metadata={**metadata, "tanstack:interruptBinding": binding})


def schema_hash(schema: dict[str, object]) -> str:
    """Return the client's hash of a schema: SHA-256 of its JSON with sorted keys, in which 1.0 is written 1."""
    plain = json.loads(json.dumps(schema), parse_float=_as_javascript_number)
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _as_javascript_number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() else number
