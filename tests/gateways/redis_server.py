"""A Redis of the tests' own: on a socket in a temporary folder, nothing on disk, gone at the end."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path


class RedisServer:
    """Start it, kill it, start it again (empty, as it keeps nothing)."""

    def __init__(self, *options: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="agent-server-redis-"))
        self._socket = self._home / "redis.sock"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}"

    def start(self) -> RedisServer:
        self._socket.unlink(missing_ok=True)
        command = ["redis-server", "--port", "0", "--unixsocket", str(self._socket), "--save", "", "--dir", self._home]
        self._process = subprocess.Popen([*command, *self._options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not self._socket.exists():
            assert self._process.poll() is None and time.monotonic() < deadline, "Redis did not start"
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)


def installed() -> bool:
    return shutil.which("redis-server") is not None
