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

import httpx

BUNDLED = Path(__file__).parents[1] / "agent_server" / "models" / "demo"
START_SECONDS = 180
TEXT = re.compile(rb'"(content|reasoning|reasoning_content)": ?"[^"]')
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(BUNDLED))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    ours = ["-c", "from agent_server.cli import main; main()", "serve", options.model]
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
        return asyncio.run(ask(f"http://127.0.0.1:{port}/v1", child, options, extra))
    finally:
        child.terminate()
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()


async def ask(base: str, child: subprocess.Popen[bytes], options: argparse.Namespace, extra: dict) -> dict | None:
    limits = httpx.Limits(max_connections=256)
    async with httpx.AsyncClient(base_url=base, timeout=300, limits=limits) as client:
        if not await started(client, child, options, extra):
            return None
        found = {}
        for count in options.streams:
            begun = time.perf_counter()
            results = await asyncio.gather(*(stream(client, n, options, extra) for n in range(count)))
            seconds = time.perf_counter() - begun
            found[count] = (sum(r[0] for r in results) / seconds, statistics.median(r[1] for r in results))
        return found


async def started(
    client: httpx.AsyncClient, child: subprocess.Popen[bytes], options: argparse.Namespace, extra: dict
) -> bool:
    """Until a short answer comes."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        try:
            await stream(client, 0, options, extra)
            return True
        except (httpx.HTTPError, ValueError):
            await asyncio.sleep(0.5)
    return False


async def stream(client: httpx.AsyncClient, number: int, options: argparse.Namespace, extra: dict) -> tuple[int, float]:
    """One answer: tokens by its usage, else pieces of text, and seconds to the first piece."""
    body = {
        "model": options.model,
        "messages": [{"role": "user", "content": f"Tell me what you can do, number {number}, please. " * 4}],
        "max_tokens": options.new,
        "temperature": 0,
        "stream": True,
        **extra,
    }
    begun, first, pieces, tokens = time.perf_counter(), None, 0, 0
    async with client.stream("POST", "/chat/completions", json=body) as response:
        response.raise_for_status()
        rest = b""
        async for part in response.aiter_raw():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:  # few are parsed: the client shares the cores with what it measures
                if TEXT.search(line):
                    pieces += 1
                    first = first or time.perf_counter() - begun
                if b'"completion_tokens"' in line:
                    tokens = json.loads(line.removeprefix(b"data: "))["usage"]["completion_tokens"]
    return tokens or pieces, first or time.perf_counter() - begun


if __name__ == "__main__":
    main()
