"""Where templates for tests are found."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

OWN = Path(__file__).parent / "templates"
_ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("AGENT_SERVER_SHARED_DATA") or _ROOT.parent / "shared" / "data")
SHARED_TEMPLATES = SHARED / "templates"

needs_shared = pytest.mark.skipif(not SHARED_TEMPLATES.is_dir(), reason=f"no templates at {SHARED_TEMPLATES}")


def own(name: str) -> str:
    """The text of one of the project's own templates."""
    return (OWN / f"{name}.jinja").read_text("utf-8")


def own_names() -> list[str]:
    return sorted(path.stem for path in OWN.glob("*.jinja"))


@lru_cache(maxsize=1)
def shared_index() -> list[dict[str, Any]]:
    """What a peer's analyser makes of the shared templates; empty where they are missing."""
    path = SHARED_TEMPLATES / "index.json"
    return json.loads(path.read_text("utf-8")) if path.is_file() else []
