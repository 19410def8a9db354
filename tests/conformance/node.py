"""The Node side of the conformance tests: install once, then run a script over a batch of JSON lines."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


class NodeClients:
    """Runs the scripts of this folder. One process per batch, so that hundreds of streams take a second or two."""

    def __init__(self, node: str) -> None:
        self._node = node

    def run(self, script: str, entries: Iterable[Any], *, timeout: float = 100) -> list[Any]:
        """The script's answers, one per entry, in order."""
        text = "".join(json.dumps(entry) + "\n" for entry in entries)
        done = subprocess.run(
            [self._node, script], cwd=HERE, input=text, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [json.loads(line) for line in done.stdout.split("\n") if line]

    def command(self, script: str, *arguments: str) -> list[str]:
        """A command line for a script that is to run beside the test, in the folder of this file."""
        return [self._node, str(HERE / script), *arguments]


def install() -> None:
    """`npm ci`, unless it was done for this very lock file."""
    lock, mark = HERE / "package-lock.json", HERE / "node_modules" / ".installed"
    with (HERE / ".install.lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if mark.exists() and mark.read_text() == lock.read_text():
            return
        environment = os.environ | {"SCARF_ANALYTICS": "false"}
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, env=environment, check=True, timeout=300)
        mark.write_text(lock.read_text())


@pytest.fixture(scope="session")
def node_clients() -> NodeClients:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed; the real clients need Node 20 or later")
    install()
    return NodeClients(node)
