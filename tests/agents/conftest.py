"""Tests of agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_server.agents.mcp import sessions
from tests import blocking


@pytest.fixture
def nothing_blocks() -> Iterator[None]:
    with blocking.nothing_blocks():
        yield


@pytest.fixture(autouse=True)
def patient_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs wait longer for an MCP server that starts: a busy machine takes its time."""
    monkeypatch.setattr(sessions, "WAIT_SECONDS", 60.0)
