"""The wheel holds what a user without Node or a checkout needs, and says so when another distribution overwrote it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "agent_server" / "static" / "demo" / "index.html"


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    return next(folder.glob("agent_server-*.whl"))


def imported(folder: Path, module: str = "agent_server") -> subprocess.CompletedProcess[str]:
    """Import a module from an installation folder, away from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONWARNINGS": "default"}
    command = [sys.executable, "-P", "-c", f"import {module}; print({module}.__file__)"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_holds_the_three_packages_the_model_and_the_migrations(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if not name.split("/")[0].endswith(".dist-info")}
    assert tops == {"agent_server", "events", "adapters"}
    assert "agent_server/models/demo/model.safetensors" in names
    assert any(name.startswith("agent_server/store/migrations/versions/0001") for name in names)
    assert not [name for name in names if name.endswith((".pyc", ".db"))]


def test_the_built_page_travels_and_stays_small(wheel: Path):
    archive = zipfile.ZipFile(wheel)
    page = [info for info in archive.infolist() if info.filename.startswith("agent_server/static/demo/")]
    assert bool(page) == DEMO.is_file(), "the page is in the wheel exactly when it was built"
    assert sum(info.compress_size for info in page) <= 2 * 2**20


def test_it_imports_beside_its_dependencies(wheel: Path, tmp_path: Path):
    pip("install", "--no-deps", "--target", tmp_path, wheel)
    done = imported(tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout


@pytest.mark.parametrize(("other", "says"), [("Events==0.5", "Events"), ("adapters==1.2.0", "adapters")])
def test_a_distribution_that_overwrites_a_package_is_named(wheel: Path, tmp_path: Path, other: str, says: str):
    pip("install", "--no-deps", "--target", tmp_path, wheel)
    pip("install", "--no-deps", "--upgrade", "--target", tmp_path, other)
    done = imported(tmp_path)
    assert done.returncode != 0
    assert "ImportError" in done.stderr and says in done.stderr
    assert "environment of its own" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_empty_environment_without_node_serves_the_page(wheel: Path, tmp_path: Path):
    """What `pip install` and `agent-server serve` give to somebody who has neither a checkout nor Node."""
    assert DEMO.is_file(), "build the page first: make demo"
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*install, "torch"], check=True)
    subprocess.run([*install, wheel], check=True)
    with served(environment / "bin" / "agent-server", tmp_path) as url:
        page = httpx.get(url).text
        script = re.search(r'src="\.?/?(assets/[^"]+\.js)"', page)
        assert script and httpx.get(f"{url}/{script[1]}").status_code == 200
        said = httpx.post(f"{url}/agui", json=HELLO, timeout=60).text
    assert '"RUN_FINISHED"' in said and '"TEXT_MESSAGE_CONTENT"' in said


HELLO = {"threadId": "t", "runId": "r", "messages": [{"id": "u", "role": "user", "content": "Hello"}]}


@contextmanager
def served(command: Path, folder: Path) -> Iterator[str]:
    """The installed command, started away from the checkout with nothing but itself on the path."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {"PATH": str(command.parent), "HOME": str(folder)}
    process = subprocess.Popen([command, "serve", "--port", str(port)], cwd=folder, env=environment)
    try:
        yield ready(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(30)


def ready(url: str) -> str:
    for _ in range(600):
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/ready").status_code == 200:
                return url
        time.sleep(0.1)
    raise AssertionError(f"{url} did not become ready within a minute")
