"""The archives that users install, built once for all of these tests."""

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
