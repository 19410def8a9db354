"""The shared case files, where they are: beside the repository, or where AGENT_SERVER_SHARED_DATA says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("AGENT_SERVER_SHARED_DATA") or Path(__file__).parents[3] / "shared" / "data")
MISSING = f"the shared cases are not at {DATA} (set AGENT_SERVER_SHARED_DATA)"


def cases(name: str) -> list[dict[str, Any]]:
    path = DATA / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
