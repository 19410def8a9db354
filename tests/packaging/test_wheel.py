"""The wheel holds what a user without Node or a checkout needs, and says so when another distribution overwrote it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "agent_server" / "static" / "demo" / "index.html"


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def imported(folder: Path, module: str = "agent_server") -> subprocess.CompletedProcess[str]:
    """Import a module from an installation folder, away from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-P", "-c", f"import {module}; print({module}.__file__)"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_wheel_holds_the_three_packages_the_model_and_the_migrations(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"agent_server", "events", "adapters"}
    assert "agent_server/models/demo/model.safetensors" in names
    assert any(name.startswith("agent_server/runs/store/migrations/versions/0001") for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".db"))]


@pytest.mark.slow
def test_the_built_page_travels_and_stays_small(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    page = [info for info in archive.infolist() if info.filename.startswith("agent_server/static/demo/")]
    assert bool(page) == DEMO.is_file(), "the page is in the wheel exactly when it was built"
    assert sum(info.compress_size for info in page) <= 2 * 2**20


@pytest.mark.slow
def test_it_imports_beside_its_dependencies(wheel: Path, tmp_path: Path):
    pip("install", "--no-deps", "--target", tmp_path, wheel)
    done = imported(tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("other", "says"), [("Events==0.5", "Events"), ("adapters==1.2.0", "adapters")])
def test_a_distribution_that_overwrites_a_package_is_named(wheel: Path, tmp_path: Path, other: str, says: str):
    pip("install", "--no-deps", "--target", tmp_path, wheel)
    pip("install", "--no-deps", "--upgrade", "--target", tmp_path, other)
    done = imported(tmp_path)
    assert done.returncode != 0
    assert "ImportError" in done.stderr and says in done.stderr
    assert "environment of its own" in done.stderr
