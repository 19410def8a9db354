"""What the gateway adds between a client and an upstream engine, and how much of it one core carries.

    python benchmarks/gateway.py [--requests 60] [--streams 256] [--tokens 128]

Against a real vLLM (where `make vllm-env` made its environment; VLLM_ENV names the folder) that computes with one
thread, so that the processes between have a core: time to the first token of one request at a time, by turns straight
to vLLM's own `/v1/chat/completions` and through the gateway to the same vLLM; then many streams at once, in tokens for
each second of the processor that each side's process used.

Against a scripted upstream that costs next to nothing: as many streams as `--streams`, as fast as they are taken, and
paced as a GPU would pace them. The upstream's own capacity stands beside the capacity through the gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

ROOT = Path(__file__).parents[1]
BUNDLED = ROOT / "agent_server" / "models" / "demo"
MESSAGES = [{"role": "user", "content": "Hello!"}]
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
"""The bundled model's first token is then the first word of its answer, on every wire. With thinking on, vLLM's wire
sends the tokens that mark reasoning as empty or blank text, and this server's sends nothing for them."""
IDLE = 2.0
"""Seconds after which a connection is not trusted to be open still; vLLM closes it after five."""
PACE = 40.0
"""Tokens a second and stream, of the paced part."""


class Load(NamedTuple):
    """What many streams at once came to. seconds: of the wall. cpu: of each process asked about, by its name."""

    tokens: int
    seconds: float
    cpu: dict[str, float]

    def per_core(self, name: str) -> float:
        return self.tokens / self.cpu[name]


# ---- the client: no library between the socket and the clock ---------------------------------------------------------


class Wire(NamedTuple):
    """A path to ask, the body for it, what marks a frame with tokens in the answer, and what tells how many came in
    all: a server that is behind may put several into one frame."""

    path: str
    body: Callable[[int], dict[str, Any]]
    mark: re.Pattern[bytes]
    count: re.Pattern[bytes] = re.compile(rb'"completion_tokens": ?(\d+)')


def chat(model: str) -> Wire:
    def body(tokens: int) -> dict[str, Any]:
        more = {"stream": True, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        more["stream_options"] = {"include_usage": True}
        return {"model": model, "messages": MESSAGES, **more, **PLAIN}

    return Wire("/v1/chat/completions", body, re.compile(rb'"(?:content|reasoning)":"[^"]'))


def completions() -> Wire:
    def body(tokens: int) -> dict[str, Any]:
        return {"model": "demo", "prompt": [1, 2, 3], "stream": True, "max_tokens": tokens}

    return Wire("/v1/completions", body, re.compile(rb'"token_ids":\[\d'))


def agui() -> Wire:
    def body(tokens: int) -> dict[str, Any]:
        run = os.urandom(6).hex()
        messages = [{"id": f"u{run}", **message} for message in MESSAGES]
        options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, **PLAIN}
        return {
            "threadId": f"t{run}", "runId": f"r{run}", "protocolVersion": "1.0", "messages": messages, "tools": [],
            "context": [], "state": {}, "forwardedProps": options,
        }  # fmt: skip

    return Wire("/agui", body, re.compile(rb'"delta":"'), re.compile(rb'"outputTokens": ?(\d+)'))


class Client:
    """One kept connection."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = host, int(port)
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Client:
        await self._connect()
        return self

    async def _connect(self) -> None:
        self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._used = time.monotonic()

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, wire: Wire, tokens: int) -> tuple[int, float]:
        """(tokens, seconds to the first of them)."""
        if time.monotonic() - self._used > IDLE:
            self._writer.close()
            await self._connect()
        body = json.dumps(wire.body(tokens)).encode()
        head = f"POST {wire.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        began = time.perf_counter()
        self._writer.write(head.encode() + b"\r\nContent-Type: application/json\r\n\r\n" + body)
        first, found, count, rest = 0.0, False, 0, b""
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            data = await self._reader.read(65536)
            if not data:
                raise RuntimeError(f"the connection ended: {rest[-500:]!r}")
            whole, _, rest = (rest + data).rpartition(b"\n\n")
            if not found and wire.mark.search(whole):
                first, found = time.perf_counter() - began, True
            if told := wire.count.search(whole):
                count = int(told.group(1))
        if not found or not count:
            raise RuntimeError(f"no token came, or nobody told how many: {(whole + rest)[-500:]!r}")
        self._used = time.monotonic()
        return count, first


async def first_tokens(asks: Sequence[tuple[str, Wire]], requests: int, tokens: int = 8) -> list[list[float]]:
    """Seconds to the first token on each way, asked by turns."""
    times: list[list[float]] = [[] for _ in asks]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(url)) for url, _ in asks]
        for number in range(requests + 5):
            for place, ((_, wire), client) in enumerate(zip(asks, clients, strict=True)):
                _, first = await client.ask(wire, tokens)
                if number >= 5:
                    times[place].append(first)
    return times


async def many(url: str, wire: Wire, streams: int, tokens: int, processes: dict[str, list[int]]) -> Load:
    async def one() -> int:
        async with Client(url) as client:
            return (await client.ask(wire, tokens))[0]

    before = {name: used(pids) for name, pids in processes.items()}
    began = time.perf_counter()
    counts = await asyncio.gather(*(one() for _ in range(streams)))
    seconds = time.perf_counter() - began
    return Load(sum(counts), seconds, {name: used(pids) - before[name] for name, pids in processes.items()})


def used(pids: Sequence[int]) -> float:
    """Seconds of processor time."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


# ---- the servers -----------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def process(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stderr=subprocess.DEVNULL)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(15)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for(url: str, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url, timeout=5).status_code == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"{url} did not answer")


@contextlib.contextmanager
def gateway(upstream: str, **environment: str) -> Iterator[tuple[str, int]]:
    """URL and process id."""
    port = free_port()
    arguments = ["serve", str(BUNDLED), "--served-name", "demo", "--engine", f"vllm+{upstream}", "--store", "memory"]
    command = [sys.executable, "-c", "from agent_server.cli.main import main; main()", *arguments, "--port", str(port)]
    limits = {"AGENT_SERVER_MAX_RUNS": "4096", "AGENT_SERVER_MAX_RUNS_PER_TENANT": "4096", "AGENT_SERVER_DEMO": "0"}
    with process(command, **limits, **environment) as running:
        url = f"http://127.0.0.1:{port}"
        wait_for(url + "/ready")
        yield url, running.pid


@contextlib.contextmanager
def scripted(rate: float = 0.0) -> Iterator[tuple[str, int]]:
    port = free_port()
    command = [sys.executable, str(ROOT / "benchmarks/_scripted_upstream.py"), str(port)]
    with process(command, RATE=str(rate)) as running:
        url = f"http://127.0.0.1:{port}"
        wait_for(url + "/health")
        yield url, running.pid


# ---- the parts -------------------------------------------------------------------------------------------------------


def against_vllm(requests: int, tokens: int) -> None:
    from tests.contract.real_vllm import vllm

    os.environ["OMP_NUM_THREADS"] = "1"
    print("A real vLLM (the bundled model, CPU), asked straight and through the gateway")
    with vllm() as server, gateway(server.url) as (url, pid):
        asks = [(server.url, chat("demo")), (url, chat("demo")), (url, agui())]
        names = ["vLLM's own chat endpoint", "gateway, OpenAI wire", "gateway, AG-UI"]
        times = run(first_tokens(asks, requests))
        print(f"  time to the first token, one request at a time, by turns, {requests} each (ms)")
        for name, values in zip(names, times, strict=True):
            added = statistics.median(value - direct for value, direct in zip(values, times[0], strict=True))
            quick, slow = statistics.median(values), statistics.quantiles(values, n=10)[-1]
            more = "" if values is times[0] else f"   added at the median {added * 1000:+.2f}"
            print(f"    {name:<26} median {quick * 1000:7.2f}   p90 {slow * 1000:7.2f}{more}")
        print(f"  32 streams of {tokens} tokens, tokens for each second of processor time")
        processes = {"gateway": [pid], "vllm": [server.process.pid]}
        for name, (where, wire) in zip(names, asks, strict=True):
            load = run(many(where, wire, 32, tokens, processes))
            ours = "" if where == server.url else f"   the gateway {load.per_core('gateway'):9,.0f}"
            print(f"    {name:<26} vLLM's API process {load.per_core('vllm'):9,.0f}{ours}")


def against_script(streams: int, tokens: int) -> None:
    print(f"A scripted upstream, {streams} streams of {tokens} tokens, as fast as they are taken")
    with scripted() as (server, other), gateway(server) as (url, pid):
        ways = {"the upstream itself": (server, completions()), "through the OpenAI wire": (url, chat("demo"))}
        ways["through AG-UI"] = (url, agui())
        for name, (where, wire) in ways.items():
            run(many(where, wire, 8, tokens, {}))
            load = run(many(where, wire, streams, tokens, {"gateway": [pid], "upstream": [other]}))
            busy = "upstream" if where == server else "gateway"
            seen = load.tokens / load.seconds
            print(f"    {name:<26}{load.per_core(busy):10,.0f} tokens/s a core   {seen:10,.0f} tokens/s seen")
    print(f"  paced at {PACE:g} tokens a second and stream: {streams * PACE:,.0f} tokens/s are offered")
    with scripted(PACE) as (server, _), gateway(server) as (url, pid):
        ways = {"the upstream itself": (server, completions()), "through the OpenAI wire": (url, chat("demo"))}
        ways["through AG-UI"] = (url, agui())
        for name, (where, wire) in ways.items():
            run(many(where, wire, 8, tokens, {}))
            load = run(many(where, wire, streams, tokens, {"gateway": [pid]}))
            share = "" if where == server else f"   {load.cpu['gateway'] / load.seconds:.0%} of a core"
            print(f"    {name:<26}{load.tokens / load.seconds:10,.0f} tokens/s delivered{share}")


def shared(streams: int, tokens: int) -> None:
    from tests.gateways.redis_server import RedisServer, installed

    if not installed():
        print("No redis-server: what sharing runs costs was not measured.")
        return
    print("  the same over AG-UI, its runs shared with other gateways over Redis")
    redis = RedisServer().start()
    try:
        with scripted() as (server, _), gateway(server, AGENT_SERVER_REDIS_URL=redis.url) as (url, pid):
            run(many(url, agui(), 8, tokens, {}))
            load = run(many(url, agui(), streams, tokens, {"gateway": [pid]}))
            per_core, seen = load.per_core("gateway"), load.tokens / load.seconds
            print(f"    {'through AG-UI':<26}{per_core:10,.0f} tokens/s a core   {seen:10,.0f} tokens/s seen")
    finally:
        redis.close()


def run(work: Awaitable[Any]) -> Any:
    import uvloop

    async def main() -> Any:
        return await work

    return uvloop.run(main())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    if (Path(os.environ.get("VLLM_ENV", ROOT / ".vllm")) / "bin" / "python").exists():
        against_vllm(arguments.requests, arguments.tokens)
    else:
        print("No vLLM: make vllm-env makes its environment, VLLM_ENV names another folder.")
    against_script(arguments.streams, arguments.tokens)
    shared(arguments.streams, arguments.tokens)


if __name__ == "__main__":
    main()
