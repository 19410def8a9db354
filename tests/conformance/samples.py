"""Events of every type at random, from the vocabulary's own field types, as hypothesis strategies."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from hypothesis import strategies as st

from events import vocabulary as v

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"\\/', "\x00\x1f\x7f", "é😀\u2028"]
)
floats = st.floats(allow_nan=False, allow_infinity=False)
integers = st.integers(-(2**53), 2**53)
scalars = st.none() | st.booleans() | integers | floats | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(texts, values, max_size=3)
maybe = st.none() | texts
stamps = st.none() | st.integers(0, 2**53 - 1)


def wire(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A dictionary whose None values are left out."""
    return st.fixed_dictionaries(fields).map(
        lambda each: {key: value for key, value in each.items() if value is not None}
    )


def _source() -> st.SearchStrategy[dict[str, Any]]:
    data = wire(type=st.just("data"), value=texts, mimeType=texts)
    url = wire(type=st.just("url"), value=texts, mimeType=maybe)
    return data | url | wire(type=st.just("file"), value=texts, provider=maybe, mimeType=maybe)


media = wire(
    type=st.sampled_from(["image", "audio", "video", "document"]),
    id=maybe,
    source=_source(),
    metadata=st.none() | values,
)
parts = st.lists(wire(type=st.just("text"), id=maybe, text=texts, metadata=st.none() | values) | media, max_size=2)
calls = st.lists(
    wire(
        id=texts,
        type=st.just("function"),
        function=wire(name=texts, arguments=texts),
        encryptedValue=maybe,
        metadata=st.none() | objects,
    ),
    max_size=2,
)


def _message(role: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return wire(subagentRunId=maybe, id=texts, role=st.just(role), **fields)


_common = {"name": maybe, "encryptedValue": maybe, "metadata": st.none() | objects}
messages = st.one_of(
    *(_message(role, **_common, content=texts) for role in ("developer", "system")),
    _message("assistant", **_common, content=maybe, toolCalls=st.none() | calls),
    _message("user", **_common, content=texts | parts),
    _message(
        "tool", content=texts | parts, toolCallId=texts, error=maybe, encryptedValue=maybe, metadata=st.none() | objects
    ),
    _message("activity", activityType=texts, content=objects, metadata=st.none() | objects),
    _message("reasoning", content=texts, encryptedValue=maybe, metadata=st.none() | objects),
)
pointers = st.sampled_from(["", "/a", "/a/0", "/~1"])
operations = st.one_of(
    wire(op=st.just("remove"), path=pointers),
    st.fixed_dictionaries({"op": st.sampled_from(["add", "replace", "test"]), "path": pointers, "value": values}),
    wire(op=st.sampled_from(["move", "copy"])).flatmap(
        lambda op: st.tuples(pointers, pointers).map(lambda both: op | {"from": both[0], "path": both[1]})
    ),
)
inputs = wire(
    threadId=texts,
    runId=texts,
    protocolVersion=maybe,
    parentRunId=maybe,
    state=st.none() | values,
    messages=st.lists(messages, max_size=2),
    tools=st.none() | st.lists(wire(name=texts, description=texts, parameters=st.none() | values, metadata=st.none() | objects), max_size=2),
    context=st.none() | st.lists(wire(description=texts, value=texts), max_size=2),
    forwardedProps=st.none() | values,
    resume=st.none() | st.lists(wire(interruptId=texts, status=st.sampled_from(["resolved", "cancelled"]), payload=st.none() | values, metadata=st.none() | objects), max_size=2),
)  # fmt: skip
counts = st.none() | st.integers(0, 2**40)
usages = st.builds(
    v.TokenUsage, provider=maybe, model=maybe, input_tokens=counts, output_tokens=counts, total_tokens=counts,
    reasoning_tokens=counts, cached_input_tokens=counts, cache_write_input_tokens=counts,
)  # fmt: skip
interrupts = st.builds(
    v.Interrupt, subagent_run_id=maybe, id=texts, reason=texts, message=maybe, tool_call_id=maybe,
    response_schema=st.none() | objects, expires_at=maybe, metadata=st.none() | objects,
)  # fmt: skip
successes = st.builds(v.SuccessOutcome, pending_tool_call_ids=st.none() | st.lists(texts, max_size=2))
outcomes = (
    successes
    | st.builds(v.InterruptOutcome, interrupts=st.lists(interrupts, min_size=1, max_size=2))
    | st.just(v.CancelledOutcome())
)

# Fields that are not plain text, by name or by type and name.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "timestamp": stamps,
    "raw_event": st.none() | values,
    "metadata": st.none() | objects,
    "input": st.none() | inputs,
    "result": st.none() | values,
    "usage": st.none() | st.lists(usages, max_size=2),
    "messages": st.lists(messages, max_size=3),
    "snapshot": values,
    "event": values,
    "value": values,
    "patch": st.lists(operations, max_size=3),
    "replace": st.none() | st.booleans(),
    "subtype": st.sampled_from(["message", "tool-call"]),
    "RunFinished.outcome": st.none() | outcomes,
    "SubagentFinished.outcome": st.none() | st.just(v.SuccessOutcome()) | st.builds(v.SuspendedOutcome, interrupt_ids=st.none() | st.lists(texts, max_size=2)),
    "StateDelta.delta": st.lists(operations, max_size=3),
    "ToolCallResult.content": texts | parts,
    "ToolCallResult.role": st.sampled_from([None, "tool"]),
    "ActivitySnapshot.content": objects,
    "TextMessageStart.role": st.sampled_from([None, "developer", "system", "assistant", "user"]),
    "TextMessageChunk.role": st.sampled_from([None, "developer", "system", "assistant", "user"]),
    "ReasoningMessageStart.role": st.just("reasoning"),
}  # fmt: skip


def events_of(kind: type) -> st.SearchStrategy[Any]:
    """Events of one type, optional fields present or not."""

    fields = {}
    for field in msgspec.structs.fields(kind):
        default = texts if field.required else maybe
        fields[field.name] = FIELDS.get(f"{kind.__name__}.{field.name}", FIELDS.get(field.name, default))
    return st.builds(kind, **fields)


EVENT_TYPES = get_args(v.Event)
events = st.one_of(*map(events_of, EVENT_TYPES))


def examples(count: int, seed: int) -> list[Any]:
    """`count` events of every type, the same for the same seed, for comparison in one batch with another program."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import seed as seeded

    found: list[Any] = []
    for kind in EVENT_TYPES:

        @seeded(seed)
        @settings(
            max_examples=count,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            deadline=None,
        )
        @given(events_of(kind))
        def collect(event: Any) -> None:
            found.append(event)

        collect()
    return found
