"""The server where the container images run: a read-only root file system, no capabilities, three writable folders."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.cli.test_serve import COMMAND, free_port, ready
from tests.gateways.client import body
from tests.server import ROOT

# Remounts everything read-only in a mount namespace of its own, except for the folders that the images mount.
CONFINED = """
set -e
mount --make-rprivate /
for folder in "$HOME/.cache" "$HOME/.local/share/agent-server" "$TMPDIR"; do mount -t tmpfs tmpfs "$folder"; done
awk '{print $5}' /proc/self/mountinfo | while read -r point; do
    case "$point" in /proc*|/sys*|/dev*|"$HOME"/*|"$TMPDIR") ;; *) mount -o remount,bind,ro "$point" ;; esac
done
cd "$1"
shift
exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"
"""
NAMESPACE = (
    ["unshare", "--mount"] if os.name == "posix" and os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
)
PROBE = """
import errno, pathlib
for folder in ("/", "/etc", "/tmp", ".", pathlib.Path.home()):
    try:
        pathlib.Path(folder, "written").write_text("x")
    except OSError as error:
        print(errno.errorcode[error.errno], end=" ")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")))
"""


def namespaces_are_allowed() -> bool:
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(
    not namespaces_are_allowed(), reason="needs Linux, and the right to make a mount namespace"
)


@pytest.fixture
def confined(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """A command that runs what follows it on a read-only root, and the environment that it needs."""
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    for folder in (home / ".cache", home / ".local" / "share" / "agent-server", temporary):
        folder.mkdir(parents=True)
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # it writes beside the sources, which it cannot here
    return [*NAMESPACE, "bash", "-c", CONFINED, "bash", str(ROOT), sys.executable, "-c"], environment


def test_the_root_is_read_only_and_no_capability_is_left(confined: tuple[list[str], dict[str, str]]):
    command, environment = confined
    done = subprocess.run([*command, PROBE], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "EROFS " * 5 + "0000000000000000\n", done.stderr


@pytest.fixture
async def url(confined: tuple[list[str], dict[str, str]]) -> AsyncIterator[str]:
    """`agent-server serve` with its defaults: the engine in a process of its own, SQLite in the data folder."""
    command, environment = confined
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *command, COMMAND, "serve", "--port", str(port), env=environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        _, log = await process.communicate()
        assert process.returncode == 0, log.decode()
        assert b"Traceback" not in log, log.decode()


async def test_it_serves_and_keeps_threads(url: str):
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await ready(client)
        asked = body("What is 2 + 3?", thread="kept")
        answer = await client.post("/agui", json=asked)
        assert '"RUN_FINISHED"' in answer.text
        messages = (await client.get("/agui/threads/kept/messages")).json()["messages"]
        assert [message["role"] for message in messages] == ["user", "reasoning", "assistant"]
