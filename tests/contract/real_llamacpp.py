"""A real llama.cpp server with the bundled model; LLAMACPP_ENV names the folder that holds it and the model's file."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0


@contextlib.contextmanager
def llamacpp() -> Iterator[str]:
    """Its address once it is ready."""
    folder = Path(os.environ.get("LLAMACPP_ENV", ROOT / ".llamacpp"))
    server, model = folder / "llama-server", folder / "demo.gguf"
    if not (server.exists() and model.exists()):
        raise RuntimeError(f"There is no llama.cpp in {folder}; make it with `make llamacpp-env` (LLAMACPP_ENV=).")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--ctx-size", "65536", "--parallel", "16", "--threads", "2", "--alias", "demo"]
    options += ["--cache-type-k", "f32", "--cache-type-v", "f32"]  # the reference is in float32
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([str(server), "--model", str(model), *options], stdout=log, stderr=subprocess.STDOUT)
        try:
            wait(f"http://127.0.0.1:{port}", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def wait(url: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        time.sleep(0.1)
    raise RuntimeError("llama.cpp's server did not become ready.")


def running(url: str) -> float:
    """Slots at work, as the server itself has them."""
    return float(sum(slot["is_processing"] for slot in httpx.get(f"{url}/slots", timeout=5).json()))
