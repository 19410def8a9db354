"""Whether 32 streams keep their pace while schemas that are meant to stall the server are posted beside them.

    python benchmarks/hostile_schemas.py [--streams 32] [--seconds 6]

The whole server with the bundled model on the CPU. The streams are plain completions, so that every token is a frame,
and are read first alone, then while another process posts hostile schemas, as a response format and as a tool's
parameters by turns, as fast as they are answered: without what cannot be enforced, or with 400. Printed: seconds
between the tokens of a stream, and how long an answer took.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import itertools
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.chat_http import Target, get_ready, running
from benchmarks.refusals import gaps, told
from tests.grammar.test_lint import LEFT_OUT

HELLO = [{"role": "user", "content": "Hello"}]
STREAM = b'{"model":"default","prompt":"Hello","max_tokens":4000,"stream":true,"ignore_eos":true}'


def bodies() -> list[tuple[str, bytes]]:
    """Each hostile schema by its name, in both places where a schema may stand."""
    found = []
    for name, (schema, *_) in LEFT_OUT.items():
        wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        for kind, more in (("response_format", {"response_format": wanted}), ("tools", {"tools": [tool]})):
            body = {"model": "default", "messages": HELLO, "max_tokens": 1, **more}
            found.append((f"{name} as {kind}", json.dumps(body).encode()))
    return found


def post(port: int, seconds: float, times: Any) -> None:
    """Post them in turn for so long, each once at least; how long each answer took."""
    ends, asked = time.perf_counter() + seconds, bodies()
    for number, (name, body) in enumerate(itertools.cycle(asked)):
        begun = time.perf_counter()
        if begun > ends and number >= len(asked):
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        times.append(time.perf_counter() - begun)
        if answer.status not in (200, 400):
            raise RuntimeError(f"{name}: {answer.status} {text[:300]!r}")


async def read(port: int, streams: int, seconds: float) -> list[float]:
    return [
        gap
        for found in await asyncio.gather(*(gaps(port, seconds, "/v1/completions", STREAM) for _ in range(streams)))
        for gap in found
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    start = "from agent_server.cli.main import main; main()"
    command = [sys.executable, "-c", start, "serve", "--store", "memory", "--port", "{port}"]
    target = Target("this server", command, "default", "/ready", 0)
    times = multiprocessing.Manager().list()
    with running(target) as (pid, port):
        asyncio.run(get_ready(target, pid, port))
        asyncio.run(read(port, options.streams, 1.0))
        alone = asyncio.run(read(port, options.streams, options.seconds))
        poster = multiprocessing.get_context("fork").Process(target=post, args=(port, options.seconds, times))
        poster.start()
        beside = asyncio.run(read(port, options.streams, options.seconds))
        poster.join()
    if poster.exitcode:
        raise SystemExit("a schema was not refused as it should be")
    print(f"{'milliseconds':34} {'median':>9} {'p99':>9} {'most':>9}")
    told(f"between tokens, {options.streams} streams", alone)
    told("the same beside refusals", beside)
    told(f"a refusal ({len(times)} of them)", list(times))


if __name__ == "__main__":
    main()
