"""`/v1/chat/completions` with many streams at once: tokens for each second of the serving process's CPU, beside peers.

    python benchmarks/chat_http.py [--transformers FOLDER] [--vllm FOLDER] [--before CHECKOUT] [--streams 256]
        [--load 1/0.05 100/0.05 100/0.0005 400/0.05 400/0.0005]

FOLDER is an environment with the peer, as scripts/transformers-serving and scripts/vllm/install make them. CHECKOUT
is a folder with older code of this server, which is measured in this environment. The servers stand side by side and
are asked in turn, by the same client with the same number of streams and the same bundled model's tokenizer and
template. What is counted is the CPU time of the process that writes the frames, from the first request to the last
frame, and of nothing else. Tokens are counted, as the servers' own usage says, not frames: a server that is behind may
put several tokens into one.

- ours: the whole server with the scripted engine, as `agent-server serve` runs it. Parsing the request, rendering and
  encoding the prompt, the run, its log, the output parser, the wire, and the engine's own work are in the figure.
- transformers serve: its whole server with a loop in place of the model (benchmarks/_transformers_wire.py).
- vLLM: its API server's process; its EngineCore, where the model runs, is a process of its own and is not counted. Its
  steps come when the model has computed them, so it is given fewer tokens.

A load is the tokens of a stream and the seconds between two of them. The first two servers get a token for every stream
every so often, as from a batch of a real engine: with 256 streams, 0.05 is 5,120 tokens a second, which all of them
carry with time to spare, and 0.0005 is more than any of them carries, so that it shows what one core can do. In between
lies nothing to compare: a server that is busy all the time, and puts together what came together, spends on a token
whatever time it has. One token to a stream shows what a request costs. vLLM is measured once, at the first load of more
than one token.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "agent_server" / "models" / "demo"
READY_SECONDS = 400.0
USAGE = re.compile(rb'"completion_tokens": ?(\d+)')
LOADS = "1/0.05 100/0.05 100/0.0005 400/0.05 400/0.0005"
CPU_CLOCK = 2  # CPUCLOCK_SCHED of a process, see clock_gettime's clocks in Linux's posix-timers.h


class Target(NamedTuple):
    """A server to measure. `own`: command line, where {port} and {descriptor} are filled in."""

    name: str
    command: list[str]
    model: str
    ready: str
    tokens: int
    environment: dict[str, str] = {}
    extra: dict[str, Any] = {}


class Load(NamedTuple):
    """tokens of each stream, and seconds between two of them."""

    tokens: int
    step: float

    @classmethod
    def parse(cls, text: str) -> Load:
        tokens, _, step = text.partition("/")
        return cls(int(tokens), float(step))


class Result(NamedTuple):
    """What one round came to. seconds of the serving process's CPU, and of the wall."""

    tokens: int
    frames: int
    cpu: float
    wall: float

    @property
    def rate(self) -> float:
        return self.tokens / self.cpu


def targets(arguments: argparse.Namespace, load: Load) -> list[Target]:
    here, tokens = Path(__file__).parent, load.tokens
    own = [sys.executable, str(here / "_scripted_server.py"), "{descriptor}", str(tokens), str(load.step)]
    found = [Target("this server", own, "default", "/ready", tokens)]
    if arguments.before:
        older = [own[0], str(Path(arguments.before) / "benchmarks" / "_scripted_server.py"), *own[2:]]
        path = {"PYTHONPATH": str(arguments.before)}
        found.append(Target("before", older, "default", "/ready", tokens, path))
    if arguments.transformers:
        python = str(Path(arguments.transformers) / "bin" / "python")
        command = [python, str(here / "_transformers_wire.py"), str(MODEL), "{port}", str(load.step)]
        found.append(Target("transformers serve", command, str(MODEL), "/health", tokens, {"HF_HUB_OFFLINE": "1"}))
    if arguments.vllm and load == next((each for each in arguments.load if each.tokens > 1), None):
        found.append(_vllm(Path(arguments.vllm), min(tokens, arguments.vllm_tokens), arguments.streams))
    return found


def _vllm(folder: Path, tokens: int, streams: int) -> Target:
    command = [
        str(folder / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL),
        "--served-model-name", "default", "--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32",
        "--max-model-len", "1024", "--max-num-seqs", str(streams), "--enforce-eager",
    ]  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    return Target("vLLM's API server", command, "default", "/health", tokens, environment, {"ignore_eos": True})


@contextlib.contextmanager
def running(target: Target) -> Iterator[tuple[int, int]]:
    """(process id, port) of a started server; it and its children are ended afterwards. What it says is shown where it
    fails."""
    with socket.socket() as listener, tempfile.TemporaryFile() as said:
        listener.bind(("127.0.0.1", 0))
        listener.listen(2048)
        port = listener.getsockname()[1]
        inherits = "{descriptor}" in target.command
        if not inherits:
            listener.close()
        places = {"port": port, "descriptor": listener.fileno()}
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            [part.format(**places) if part in ("{port}", "{descriptor}") else part for part in target.command],
            env={**environment, **target.environment},
            pass_fds=[listener.fileno()] if inherits else [],
            stdout=said,
            stderr=said,
        )
        listener.close()  # or connections to a server that has died would wait in the queue for ever
        try:
            yield process.pid, port
        except BaseException:
            said.seek(0)
            print(said.read()[-2000:].decode("utf-8", "replace"), file=sys.stderr)
            raise
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it started."""
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def cpu_of(pid: int) -> float:
    """Seconds of CPU time that a process has used so far, in user and kernel mode, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | CPU_CLOCK)


async def get_ready(target: Target, pid: int, port: int) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                raise RuntimeError(f"{target.name} ended before it was ready")
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target.ready.encode())
                try:
                    status = await asyncio.wait_for(reader.readline(), 5.0)
                except TimeoutError:
                    status = b""
                finally:
                    writer.close()
                if b" 200 " in status:
                    return
            await asyncio.sleep(0.2)


async def one_stream(target: Target, port: int, tokens: int) -> tuple[int, int]:
    """Send one request and read its stream to the end: (tokens by the server's own count, frames)."""
    content = [{"role": "user", "content": "Hello"}]
    asked = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": tokens, **target.extra}
    data = json.dumps({"model": target.model, "messages": content, **asked}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    writer.write(head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    frames, end = 0, b""
    while answer := await reader.read(1 << 16):
        frames += answer.count(b"data: {")
        end = (end + answer)[-4096:]
    writer.close()
    counts = USAGE.findall(end)
    if not counts or int(counts[-1]) < tokens:
        raise RuntimeError(f"{target.name} counts {counts} of {tokens} tokens, in {frames} frames")
    return int(counts[-1]), frames


async def send_all(target: Target, port: int, streams: int, tokens: int) -> tuple[int, int]:
    counts = await asyncio.gather(*(one_stream(target, port, tokens) for _ in range(streams)))
    return sum(count for count, _ in counts), sum(frames for _, frames in counts)


def measure(targets: Sequence[Target], streams: int, rounds: int) -> list[list[Result]]:
    """The results of each target. The rounds go from server to server, so that what else the machine does meets all."""
    results: list[list[Result]] = [[] for _ in targets]
    with contextlib.ExitStack() as stack:
        places = [stack.enter_context(running(target)) for target in targets]
        for target, (pid, port) in zip(targets, places, strict=True):
            asyncio.run(get_ready(target, pid, port))
            asyncio.run(send_all(target, port, 4, min(8, target.tokens)))
        for _ in range(rounds):
            for target, (pid, port), mine in zip(targets, places, results, strict=True):
                mine.append(measure_once(target, pid, port, streams))
    return results


def measure_once(target: Target, pid: int, port: int, streams: int) -> Result:
    cpu, wall = cpu_of(pid), time.perf_counter()
    tokens, frames = asyncio.run(send_all(target, port, streams, target.tokens))
    return Result(tokens, frames, cpu_of(pid) - cpu, time.perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transformers", help="folder of an environment with transformers[serving]")
    parser.add_argument("--vllm", help="folder of an environment with vLLM")
    parser.add_argument("--before", help="folder of a checkout with older code")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--vllm-tokens", type=int, default=40, help="for each of vLLM's streams, at most")
    parser.add_argument(
        "--load",
        type=Load.parse,
        nargs="+",
        default=[Load.parse(load) for load in LOADS.split()],
        help="tokens of a stream / seconds between two of them",
    )
    parser.add_argument("--rounds", type=int, default=2, help="of each server; the best counts")
    arguments = parser.parse_args()
    print(f"{arguments.streams} streams at once; the CPU of the serving process")
    print(
        f"{'tokens':>6} {'offered/s':>9} {'':20} {'tokens/CPU s':>13} {'us a token':>11} {'us a request':>13}"
        f" {'tokens/frame':>13} {'busy':>5} {'ours is':>12}"
    )
    for load in arguments.load:
        compare(arguments, load)


def compare(arguments: argparse.Namespace, load: Load) -> None:
    ours = 0.0
    compared = targets(arguments, load)
    for target, results in zip(compared, measure(compared, arguments.streams, arguments.rounds), strict=True):
        best = max(results, key=lambda result: result.rate)
        ours = ours or best.rate
        ratio = f"{ours / best.rate:.1f} times it" if target.name != "this server" else ""
        offered = f"{target.tokens:6} " + (f"{arguments.streams / load.step:9,.0f}" if not target.extra else f"{'':9}")
        figures = f"{best.rate:13,.0f} {1e6 / best.rate:11.1f} {best.cpu / arguments.streams * 1e6:13,.0f}"
        seen = f"{best.tokens / best.frames:13.1f} {best.cpu / best.wall:5.0%}"
        print(f"{offered} {target.name:20} {figures} {seen} {ratio:>12}", flush=True)


if __name__ == "__main__":
    main()
