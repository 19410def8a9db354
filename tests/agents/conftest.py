"""Tests of agents."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import blocking


@pytest.fixture
def nothing_blocks() -> Iterator[None]:
    with blocking.nothing_blocks():
        yield
