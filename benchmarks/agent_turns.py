"""The same agent tasks by our own loop and by loops over HTTP, on one engine in one run.

    python benchmarks/agent_turns.py [--peers .peers] [--llamacpp .llamacpp] [--vllm .vllm] [--repeat 7] [--agents 64]
    python benchmarks/agent_turns.py --shape 0.6b [--quantize int4] --repeat 2 --agents 0

One server runs, and every loop has a process of its own: `native` asks /agui, where the loop is the server's, and
pydantic-ai, LangGraph and the OpenAI Agents SDK ask /v1/chat/completions and call the same tools on their side. All
have the same model, greedy, and the same process with the same settings; each run has a cache of its own
(`cache_salt`), so that only what a run computed itself can be found again. pydantic-ai also asks llama.cpp's and
vLLM's servers, where their environments are given; those find what earlier runs left, too.

The tasks: three calls in one message, of 200 ms; five messages with a call of 20 ms each; one call of 20 ms in a
thread of 60 messages. The bundled model is taught them by heart (`agent_turns_models.py`); a run that makes other
calls is told. With `--shape 0.6b` the weights are random, so `required` makes the first call and nothing makes a
second: two of the tasks.

Printed, medians of runs by turns: seconds from the message to the last event; from the last result to the next that is
said; tokens found in the cache, as a share of what came before the later turns (more than all of it was read ahead);
the server process's CPU from the last result to the next token, and to the end (the engine is another process). Beside
them what the engine and the tools take without a loop: in all, and for the last turn's new tokens and two steps. Then
four requests that begin alike, and many agents at once: runs a minute, the 99th percentile of the first token over all
turns, and the server process's CPU for a turn.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks._agent_loops import cpu_of
from benchmarks.agent_turns_models import Alone, Lesson, alone, lessons, made, required_lessons, result_of

ROOT = Path(__file__).parents[1]
READY_SECONDS = 400.0
OWN = "native"
MODULES = {"pydantic-ai": "pydantic_ai", "LangGraph": "langgraph"}
AGENTS = '''
import asyncio
from typing import Literal
from agent_server import Agent, tool

Place = {place}

def weather(seconds):
    @tool(early=True)
    async def get_weather(location: Place) -> str:
        """The weather in a place."""
        await asyncio.sleep(seconds)
        return {result!r}.replace("PLACE", location)
    return get_weather

agents = [Agent(name="native-20", tools=[weather(0.02)]), Agent(name="native-200", tools=[weather(0.2)])]
agents += [Agent(name="plain")]
'''


class Server(NamedTuple):
    """base: its URL. process: of its HTTP side. model: the name that clients give. upstream: not our server."""

    base: str
    process: int
    model: str
    upstream: bool = False


class Peer(NamedTuple):
    """A loop and the server that it asks. python: the interpreter that has the framework."""

    name: str
    loop: str
    server: Server
    python: str = sys.executable


class LoopProcess:
    """A loop in a process of its own."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        script = str(Path(__file__).with_name("_agent_loops.py"))
        command = [peer.python, script, peer.loop, peer.server.base, str(peer.server.process)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, task: dict[str, Any], agents: int = 1) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        server = {"model": self.peer.server.model, "upstream": self.peer.server.upstream}
        self._child.stdin.write(json.dumps({"task": {**task, **server}, "agents": agents}) + "\n")
        self._child.stdin.flush()
        answer = self._child.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.peer.name} failed; its own words are above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(30)


def task_of(lesson: Lesson, most: int, required: bool) -> dict[str, Any]:
    return {
        "history": lesson.history, "question": lesson.question, "tool": lesson.tool, "required": required,
        "tool_name": f"-{round(lesson.tool * 1000)}", "result": result_of("PLACE"), "most": most,
        "places": ["Paris"] if required else None,
    }  # fmt: skip


@contextlib.contextmanager
def started(command: Sequence[str], ready: str, environment: dict[str, str]) -> Iterator[tuple[str, int]]:
    """A server whose port stands as {port} in its command: its URL and its process's id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    base = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in command],
            env={**os.environ, **environment}, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            _await_ready(child, base + ready, log)
            yield base, child.pid
        finally:
            child.terminate()
            child.wait(60)


def _await_ready(child: subprocess.Popen[bytes], url: str, log: Any) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and child.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(url).status_code == 200:
                return
        time.sleep(0.2)
    log.seek(0)
    raise SystemExit(f"a server does not start:\n{log.read()[-4000:]}")


@contextlib.contextmanager
def ours(model: Path, options: argparse.Namespace) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bench_agents.py"
        place = 'Literal["Paris"]' if options.shape else "str"
        file.write_text(AGENTS.format(place=place, result=result_of("PLACE")), "utf-8")
        command = [
            sys.executable,
            "-c",
            "from agent_server.cli.main import main; main()",
            "serve",
            str(model),
            "--agent",
            f"{file}:agents",
        ]
        command += ["--port", "{port}", "--log-level", "warning"]
        command += ["--quantize", options.quantize] if options.quantize else []
        kept = {"AGENT_SERVER_DATA_DIR": folder, "PYTHONPATH": str(ROOT), "AGENT_SERVER_MAX_RUNS_PER_TENANT": "1000"}
        with started(command, "/ready", kept) as (base, process):
            yield Server(base, process, "plain")


@contextlib.contextmanager
def llamacpp(folder: Path, model: Path, weights: Path) -> Iterator[Server]:
    if not weights.exists():
        convert = [
            sys.executable,
            str(ROOT / "scripts" / "llamacpp" / "convert.py"),
            str(ROOT),
            str(weights),
            str(model),
        ]
        subprocess.run(convert, cwd=folder / "source", check=True, capture_output=True)
    template = str(model / "chat_template.jinja")
    command = [str(folder / "llama-server"), "-m", str(weights), "--port", "{port}", "--jinja"]
    command += ["--chat-template-file", template, "-c", "8192", "-np", "1"]
    with started(command, "/health", {}) as (base, process):
        yield Server(base, process, "default", upstream=True)


@contextlib.contextmanager
def vllm(folder: Path, model: Path) -> Iterator[Server]:
    command = [
        str(folder / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", "default", "--host", "127.0.0.1", "--port", "{port}", "--max-model-len", "2048",
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enforce-eager",
    ]  # fmt: skip
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
    }  # fmt: skip
    with started(command, "/health", environment) as (base, process):
        yield Server(base, process, "default", upstream=True)


def peers_of(options: argparse.Namespace, server: Server) -> list[Peer]:
    """The loops over our server; which are not installed is said."""
    found = [Peer(OWN, OWN, server)]
    for name, module in MODULES.items():
        if importlib.util.find_spec(module):
            found.append(Peer(name, name, server))
    if options.peers:
        found.append(Peer("OpenAI Agents SDK", "OpenAI Agents SDK", server, f"{options.peers}/bin/python"))
    missing = {*MODULES, "OpenAI Agents SDK"} - {peer.name for peer in found}
    print("".join(f"{name} is not installed here and was left out.\n" for name in sorted(missing)), end="")
    return found


def came_before(runs: dict[str, list[dict[str, Any]]]) -> int:
    """Tokens of all that came before each turn but the first, as a loop that tells them has them; 0 if none does."""
    used = next((run["used"] for each in runs.values() for run in each if run["used"]), [])
    return sum(prompt + answer for prompt, answer in used[:-1])


def report(lesson: Lesson, runs: dict[str, list[dict[str, Any]]], engine: Alone) -> None:
    head = f"{'whole':>8} {'ours is':>9} {'result to':>10} {'cached':>8} {'CPU to the':>11} {'to the':>7}"
    print(f"\n{lesson.name:30} {head}")
    print(f"{'':30} {'ms':>8} {'x sooner':>9} {'next, ms':>10} {'share':>8} {'next, ms':>11} {'end, ms':>7}")
    before = came_before(runs)
    own = statistics.median(run["seconds"] for run in runs[OWN])
    for name, each in runs.items():
        whole, cached, prepared, cpu = (
            statistics.median(run[field] for run in each) for field in ("seconds", "cached", "prepared", "cpu")
        )
        gap = statistics.median(run["first"][-1] for run in each)
        calls = sorted({run["calls"] for run in each})
        share = f"{cached / before:8.1%}" if before and "over" not in name else f"{'':8}"
        wrong = "" if calls == [lesson.called] else f"  made {calls} calls, not {lesson.called}: not comparable"
        ratio = f"{whole / own:9.2f}" if name != OWN else f"{'':9}"
        spent = f"{prepared * 1e3:11.2f} {cpu * 1e3:7.2f}"
        print(f"  {name:28} {whole * 1e3:8.1f} {ratio} {gap * 1e3:10.1f} {share} {spent}{wrong}")
    print(f"  {'engine and tools alone':28} {engine.whole * 1e3:8.1f} {'':9} {engine.last * 1e3:10.1f}", flush=True)


def crowd(loops: dict[str, LoopProcess], lesson: Lesson, task: dict[str, Any], options: argparse.Namespace) -> None:
    print(f"\n{options.agents} agents at once, {lesson.name}")
    print(f"{'':30} {'runs a minute':>13} {'first token, p99 ms':>20} {'CPU of a turn, ms':>18}")
    spent: dict[str, list[float]] = {name: [] for name in loops}
    rates: dict[str, list[float]] = {name: [] for name in loops}
    firsts: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(options.crowds):
        for name, loop in loops.items():
            before = cpu_of(loop.peer.server.process)
            found = loop.run(task, options.agents)
            turns = options.agents * (len(lesson.calls) + 1)
            spent[name].append((cpu_of(loop.peer.server.process) - before) / turns)
            rates[name].append(60 * options.agents / found["seconds"])
            waits = sorted(wait for run in found["runs"] for wait in run["first"])
            firsts[name].append(waits[int(0.99 * (len(waits) - 1))])
    own = statistics.median(rates[OWN])
    for name in loops:
        rate, late, cpu = (statistics.median(each[name]) for each in (rates, firsts, spent))
        ratio = f"  ours {own / rate:.2f} x as many" if name != OWN else ""
        print(f"  {name:28} {rate:13.0f} {late * 1e3:20.0f} {cpu * 1e3:18.2f}{ratio}", flush=True)


async def forked(base: str, lesson: Lesson, count: int, *, alike: bool) -> float:
    """Seconds until so many requests at once have one token each over the thread; alike: one cache for all of them, as
    subagents and samples of one conversation have it, or each its own."""
    messages = [{"role": role, "content": text} for role, text in (*lesson.history, ("user", lesson.question))]
    salts = [os.urandom(12).hex()] * count if alike else [os.urandom(12).hex() for _ in range(count)]
    async with httpx.AsyncClient(timeout=300) as client:
        began = time.perf_counter()
        answers = await asyncio.gather(
            *(
                client.post(
                    f"{base}/v1/chat/completions",
                    json={"model": "plain", "messages": messages, "max_tokens": 1, "cache_salt": salt},
                )
                for salt in salts
            )
        )
    for answer in answers:
        answer.raise_for_status()
    return time.perf_counter() - began


def forks(base: str, lesson: Lesson, repeat: int) -> None:
    """What several that begin alike cost beside one, and beside as many that share nothing."""
    ways = {"1 alone": (1, True), "4 that begin alike": (4, True), "4 that share nothing": (4, False)}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(repeat + 1):
        for name, (count, alike) in ways.items():
            seconds = asyncio.run(forked(base, lesson, count, alike=alike))
            if number:
                found[name].append(seconds)
    told = ", ".join(f"{name} {statistics.median(each) * 1e3:.0f} ms" for name, each in found.items())
    print(f"\nforks over {lesson.name.split(',')[0]}, to the first token of all: {told}", flush=True)


def measure(options: argparse.Namespace, model: Path, peers: Sequence[Peer]) -> None:
    tasks = required_lessons() if options.shape else lessons()
    loops = {peer.name: LoopProcess(peer) for peer in peers}
    try:
        for lesson in tasks:
            task = task_of(lesson, 64, bool(options.shape))
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in loops}
            for number in range(options.repeat + 1):  # the first of each is not counted
                for name, loop in loops.items():
                    found = loop.run(task)
                    if number:
                        runs[name] += found["runs"]
            report(lesson, runs, alone(lesson, model, options.quantize, repeat=2 if options.shape else 5))
        forks(peers[0].server.base, tasks[-1], options.repeat)
        if options.agents:
            at_once = {name: loop for name, loop in loops.items() if not loop.peer.server.upstream}
            lesson = tasks[1]
            crowd(at_once, lesson, task_of(lesson, 64, bool(options.shape)), options)
    finally:
        for loop in loops.values():
            loop.close()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="runs of each loop that count")
    parser.add_argument("--agents", type=int, default=64, help="so many at once; 0 for none")
    parser.add_argument("--crowds", type=int, default=3, help="how often so many")
    parser.add_argument("--shape", choices=["0.6b"], help="random weights of this shape, under `required`")
    parser.add_argument("--quantize", choices=["", "int8", "int4"], default="")
    parser.add_argument("--peers", help="environment of `make test-peers`")
    parser.add_argument("--llamacpp", type=Path, help="folder of `make llamacpp-env`")
    parser.add_argument("--vllm", type=Path, help="folder of `make vllm-env`")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "agent_turns", help="where models are kept")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # its servers end with it
    model = made(options.folder, options.shape)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with contextlib.ExitStack() as servers:
        peers = peers_of(options, servers.enter_context(ours(model, options)))
        if options.llamacpp:
            weights = options.folder.resolve() / "taught.gguf"
            server = servers.enter_context(llamacpp(options.llamacpp.resolve(), model, weights))
            peers.append(Peer("pydantic-ai over llama.cpp", "pydantic-ai", server))
        if options.vllm:
            server = servers.enter_context(vllm(options.vllm, model))
            peers.append(Peer("pydantic-ai over vLLM", "pydantic-ai", server))
        measure(options, model, peers)


if __name__ == "__main__":
    main()
