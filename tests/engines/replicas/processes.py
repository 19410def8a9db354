"""Real workers and a real gateway, each a process of its own, as an operator would start them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[3]
START_SECONDS = 90.0


class Process:
    """One `agent-server` command with its log; in a process group of its own, for an engine is one more process."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.log = Path(tempfile.mkstemp(prefix="agent-server-", suffix=".log")[1])
        command = "from agent_server.cli.main import main; main()"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", command, *arguments],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", **environment},
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, pattern: str) -> str:
        """What the first group of `pattern` matches in the log."""
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            found = re.search(pattern, self.log.read_text())
            if found:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{pattern!r} was not said:\n{self.log.read_text()[-3000:]}")

    def kill(self) -> None:
        """As the machine would that goes away: the whole group, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def end(self) -> None:
        self.kill()
        self.log.unlink(missing_ok=True)


@contextlib.contextmanager
def workers(count: int, *, drain: str = "30") -> Iterator[dict[str, Process]]:
    """Workers by their URLs; they start side by side."""
    with contextlib.ExitStack() as stack:
        started = [
            Process("worker", "--port", "0", "--dtype", "float32", OMP_NUM_THREADS="1", AGENT_SERVER_DRAIN=drain)
            for _ in range(count)
        ]
        for process in started:
            stack.callback(process.end)
        yield {process.wait_for(r"is ready at (\S+)"): process for process in started}


@contextlib.contextmanager
def gateway(*engines: str, **environment: str) -> Iterator[tuple[Process, str]]:
    """A gateway before these engines and its URL; it is ready once every engine is."""
    options = [part for engine in engines for part in ("--engine", engine)]
    process = Process("serve", "--port", "0", "--store", "memory", *options, **environment)
    try:
        url = process.wait_for(r"is ready at (\S+)").replace("localhost", "127.0.0.1")
        end = time.monotonic() + START_SECONDS
        while httpx.get(f"{url}/ready").json()["state"] != "ready":
            if time.monotonic() > end:
                raise RuntimeError(httpx.get(f"{url}/ready").text)
            time.sleep(0.1)
        yield process, url
    finally:
        process.end()


def metrics(url: str, name: str) -> dict[str, float]:
    """One metric of the gateway's, by its replica."""
    found: dict[str, float] = {}
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        match = re.fullmatch(rf'agent_server:{name}{{replica="([^"]+)"}} (\S+)', line)
        if match:
            found[match[1]] = float(match[2])
    return found
