"""The binary wire against `@ag-ui/proto`, byte by byte."""

from __future__ import annotations

import pytest

from adapters.agui_protobuf import encode_event
from events.encode import to_wire
from tests.conformance.samples import EVENT_TYPES, examples


@pytest.fixture(scope="module")
def compared(node_clients):
    events = examples(25, seed=3)
    theirs = node_clients.run("proto.mjs", [{"event": to_wire(event)} for event in events])
    return list(zip(events, theirs, strict=True))


def test_every_event_type_has_the_reference_bytes(compared):
    assert {type(event) for event, _ in compared} == set(EVENT_TYPES)
    wrong = [
        (to_wire(event), encode_event(event).hex(), theirs)
        for event, theirs in compared
        if encode_event(event).hex() != theirs.get("hex")
    ]
    assert not wrong, f"{len(wrong)} of {len(compared)}; the first: {min(wrong, key=lambda each: len(str(each)))}"
