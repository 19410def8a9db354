"""Tests of runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture
def nothing_blocks() -> Iterator[None]:
    """A call that blocks the event loop, from the server's own code, fails the test."""
    with blockbuster_ctx("agent_server") as watch:
        watch.functions["os.path.abspath"].deactivate()  # asks for the working directory and reads nothing
        yield
