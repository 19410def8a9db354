"""The whole server beside `transformers serve --continuous-batching`, over HTTP, same model, same requests.

    python benchmarks/engine_http.py [--model FOLDER] [--streams 1 8 32 64] [--new 128] [--peer-python PYTHON]

Both are started on free ports with one torch thread, warmed up, and asked for streamed chat completions, N at a time,
of the same number of tokens each. Printed: tokens per second, the median time to the first piece of text, and ratios.
`--peer-python` names the interpreter of an environment made by `scripts/transformers-serving FOLDER`; without one only
our side is measured, and the script says so. Its cache is bounded, because it would fill the machine's memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

BUNDLED = Path(__file__).parents[1] / "agent_server" / "models" / "demo"
START_SECONDS = 180
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)
USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
TEXT = re.compile(rb'"(content|reasoning|reasoning_content)": ?"[^"]')
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(BUNDLED))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    ours = ["-c", "from agent_server.cli.main import main; main()", "serve", options.model]
    ours += ["--served-name", options.model, "--store", "memory", "--port"]
    peer = [
        "-c",
        "from transformers.cli.transformers import main; main()",
        "serve",
        options.model,
        "--continuous-batching",
        "--cb-num-blocks",
        "320",
        "--port",
    ]
    own = {"stream_options": {"include_usage": True}, "ignore_eos": True}
    endless = {"do_sample": False, "max_new_tokens": options.new, "eos_token_id": -1, "pad_token_id": 0}
    found = {
        "ours": measure(sys.executable, ours, options, own),
        "transformers": measure(options.peer_python, peer, options, {"generation_config": json.dumps(endless)}),
    }
    print(f"{'streams':>8} {'':>14} {'tok/s':>8} {'first ms':>9}")
    for count in options.streams:
        for name, rows in found.items():
            if rows is None:
                print(f"{count:>8} {name:>14}   could not be started in this environment")
            else:
                rate, first = rows[count]
                print(f"{count:>8} {name:>14} {rate:>8.0f} {first * 1e3:>9.0f}")
        if all(found.values()):
            (rate, first), (other, later) = (rows[count] for rows in found.values())
            print(f"{count:>8} {'ratio':>14} {rate / other:>8.1f} {later / first:>9.1f}")


def measure(
    python: str, command: list[str], options: argparse.Namespace, extra: dict
) -> dict[int, tuple[float, float]] | None:
    """Tokens per second and median seconds to the first text for each number of streams; None if it does not start.
    `extra`: fields by which this server is told not to stop early, and to report its usage."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    child = subprocess.Popen([python, *command, str(port)], env=ENVIRONMENT, start_new_session=True)
    try:
        return asyncio.run(ask(port, child, options, extra))
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


async def ask(port: int, child: subprocess.Popen[bytes], options: argparse.Namespace, extra: dict) -> dict | None:
    if not await started(port, child, options, extra):
        return None
    found = {}
    for count in options.streams:
        begun = time.perf_counter()
        results = await asyncio.gather(*(stream(port, n, options, extra) for n in range(count)))
        seconds = time.perf_counter() - begun
        found[count] = (sum(r[0] for r in results) / seconds, statistics.median(r[1] for r in results))
    return found


async def started(port: int, child: subprocess.Popen[bytes], options: argparse.Namespace, extra: dict) -> bool:
    """Until a short answer comes."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        try:
            await stream(port, 0, options, extra)
            return True
        except (OSError, EOFError, ValueError):
            await asyncio.sleep(0.5)
    return False


async def stream(port: int, number: int, options: argparse.Namespace, extra: dict) -> tuple[int, float]:
    """One answer: tokens by its usage, else pieces of text, and seconds to the first piece. No HTTP library: the client
    shares the cores with what it measures."""
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": f"Tell me what you can do, number {number}, please. " * 4}],
        "max_tokens": options.new,
        "temperature": 0,
        "stream": True,
        **extra,
    }
    data = json.dumps(body).encode()
    begun, first, pieces, end = time.perf_counter(), None, 0, b""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD % len(data) + data)
    status = await reader.readline()
    while part := await reader.read(1 << 16):
        found = len(TEXT.findall(part))
        if found and first is None:
            first = time.perf_counter() - begun
        pieces += found
        end = (end + part)[-4096:]
    writer.close()
    if b" 4" in status:
        sys.exit(f"Refused: {status.decode().strip()} {end.decode()}")
    counts = USAGE.findall(end)
    if b" 200 " not in status or not pieces:
        raise ValueError(f"{status!r} {end!r}")
    return int(counts[-1]) if counts else pieces, first or time.perf_counter() - begun


if __name__ == "__main__":
    main()
