"""A real vLLM on the CPU, started for the tests and ended with them; VLLM_ENV names the environment it is in."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from agent_server.http.server import BUNDLED

ROOT = Path(__file__).parents[2]
START_SECONDS = 600.0


class VLLM:
    """One server with its worker, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.log = log

    @property
    def worker(self) -> int:
        """The engine core's process, below the server's."""
        found = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True).stdout
        rows = [line.split(maxsplit=2) for line in found.splitlines()[1:]]
        return next(int(pid) for pid, parent, name in rows if int(parent) == self.process.pid and "EngineCore" in name)

    def signal(self, number: int, pid: int | None = None) -> None:
        os.kill(pid or self.process.pid, number)

    def wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"vLLM ended while it started:\n{self.log.read_text()[-3000:]}")
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=5).status_code == 200:
                    return
            time.sleep(0.5)
        raise RuntimeError(f"vLLM was not ready after {START_SECONDS:g} s:\n{self.log.read_text()[-3000:]}")

    def running(self) -> float:
        """Requests that vLLM itself says it is at, running or waiting. It counts them when the engine takes a step, and
        an engine whose last request was aborted takes none (vllm-project/vllm#22545, #29928): its gauges would stay at
        what they were. So it is given a token to make before they are read."""
        one = {"model": "demo", "prompt": [100], "max_tokens": 1}
        httpx.post(f"{self.url}/v1/completions", json=one, timeout=30).raise_for_status()
        text = httpx.get(f"{self.url}/metrics", timeout=5).text
        names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(names))

    def end(self) -> None:
        """The whole group, at once: its worker outlives a server that is killed alone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def environment() -> Path:
    folder = Path(os.environ.get("VLLM_ENV", ROOT / ".vllm"))
    if not (folder / "bin" / "python").exists():
        raise RuntimeError(
            f"There is no vLLM in {folder}; make it with `make vllm-env` (VLLM_ENV= chooses the folder)."
        )
    return folder


@contextlib.contextmanager
def vllm(arguments: Sequence[str] = (), *, model: str = str(BUNDLED), ready: bool = True) -> Iterator[VLLM]:
    """A server with the bundled model, which clients know as "demo"."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = Path(tempfile.mkstemp(prefix="vllm-", suffix=".log")[1])
    command = [str(ROOT / "scripts/vllm/serve"), str(environment()), model, str(port)]
    options = ["--served-model-name", "demo", "--max-model-len", "4096", "--enable-prompt-tokens-details"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *options, *arguments], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    server = VLLM(process, f"http://127.0.0.1:{port}", log)
    try:
        if ready:
            server.wait_until_ready()
        yield server
    finally:
        server.end()
        log.unlink()
