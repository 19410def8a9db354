"""The archives that users install. The tests that use them are slow: `scripts/test` runs them in one process, which builds
them once."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import release


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it."""
    return release.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def wheel(archives: tuple[Path, Path]) -> Path:
    return archives[1]
