"""The protocol's own conformance streams, where they lie beside the repository, and our verdict on a stream."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from events.encode import DecodeError
from events.lifecycle import LifecycleError, Verifier
from events.receive import receive

ROOT = Path(__file__).parents[2]

# Two streams pin what the TypeScript client admits to doing wrong; their notes say so.
GAPS = {
    "truncated-run-reported-as-completed": "the client takes a stream without an end for a success",
    "unknown-enum-value-role-fatal": "the client rejects an unknown role that the specification wants stripped",
}


def shared_data() -> Path | None:
    """`shared/data` beside the checkout or further up, else None."""
    named = os.environ.get("AGENT_SERVER_SHARED_DATA")
    candidates = [Path(named)] if named else [parent / "shared" / "data" for parent in ROOT.parents]
    return next((path for path in candidates if path.is_dir()), None)


def conformance_streams() -> dict[str, dict[str, Any]]:
    data = shared_data()
    if data is None:
        pytest.skip("the conformance streams are not beside the repository (../shared/data)")
    index = json.loads((data / "agui-conformance" / "index.json").read_text())
    entries = index if isinstance(index, list) else index["streams"]
    return {
        Path(entry["file"]).stem: entry | json.loads((data / "agui-conformance" / entry["file"]).read_text())
        for entry in entries
        if entry["client_1_0_0"] in ("accepts", "rejects")
    }


def verdict(stream: list[dict[str, Any]]) -> tuple[str, str]:
    """Ours: ("accepts", "") or ("rejects", why)."""
    verifier = Verifier()
    try:
        for wire in stream:
            event, _ = receive(wire)
            if event is not None:
                verifier.check(event)
    except (DecodeError, LifecycleError) as error:
        return "rejects", str(error)
    return "accepts", ""
