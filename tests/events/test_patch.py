"""Patches whose result would be too large or too deep to send or to store. They are short, and refused as a whole."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from events.message import Folder
from events.nesting import DEPTH
from events.patch import PatchError, apply_patch
from events.vocabulary import ActivityDelta, ActivitySnapshot, StateDelta

DOUBLING = [{"op": "copy", "from": "", "path": f"/{key}"} for key in range(64)]
WRAPPING = [{"op": "add", "path": "/b", "value": {}}, {"op": "move", "from": "/a", "path": "/b/a"},
            {"op": "move", "from": "/b", "path": "/a"}]  # fmt: skip
HOSTILE: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "copies of copies": ({"a": "x"}, DOUBLING),
    "copies of a long text": ({"a": "x" * 2**20}, [{"op": "copy", "from": "/a", "path": f"/{n}"} for n in range(100)]),
    "copies into a list": ([["x" * 1000]], [{"op": "copy", "from": "/0", "path": "/0/-"}] * 64),
    "a document in itself": ({}, [{"op": "copy", "from": "", "path": "/a"}] * 1000),
    "moves deeper and deeper": ({"a": "x"}, WRAPPING * 1000),
    "a long path": ({}, [{"op": "add", "path": "/a" * (DEPTH + 1), "value": 1}]),
    "a deep value": ({}, [{"op": "add", "path": "/a", "value": msgspec.json.decode("[" * 500 + "]" * 500)}]),
    "a deep test": ({}, [{"op": "test", "path": "", "value": msgspec.json.decode("[" * 900 + "]" * 900)}]),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_patch_whose_result_cannot_be_encoded_is_refused(name: str) -> None:
    document, patch = HOSTILE[name]
    with pytest.raises(PatchError):
        apply_patch(document, patch)


def test_copies_over_many_patches_are_bounded_too() -> None:
    document: Any = {"a": "x" * 1000}
    refused = 0
    for operation in DOUBLING:
        try:
            document = apply_patch(document, [operation])
        except PatchError:
            refused += 1
    assert refused > 40 and len(msgspec.json.encode(document)) < 2**25


def test_an_ordinary_patch_still_copies_and_moves() -> None:
    document = {"rows": [{"id": n, "text": "x" * 100} for n in range(1000)]}
    patch = [{"op": "copy", "from": "/rows", "path": "/old"}, {"op": "move", "from": "/rows/999", "path": "/rows/0"}]
    changed: Any = apply_patch(document, patch)
    assert changed["rows"][0]["id"] == 999 and changed["old"] == document["rows"]


def test_the_state_and_activities_stay_as_they_were() -> None:
    folder = Folder(state={"a": 1})
    folder.add(StateDelta(delta=DOUBLING))
    folder.add(ActivitySnapshot(message_id="m", activity_type="x", content={"a": 1}))
    folder.add(ActivityDelta(message_id="m", activity_type="x", patch=DOUBLING))
    assert folder.state == {"a": 1} and folder.messages[0]["content"] == {"a": 1} and len(folder.issues) == 2
