"""What it costs to save runs beside their streams, so that another server can go on with them.

    python benchmarks/saving.py [--model FILE_OR_FOLDER] [--rounds 6] [--streams 8] [--tokens 300]

Two servers of one process, each with an SQLite file, of which one saves what its runs say (the default) and one does
not (TAKE_UP_RUNS=false). They are given the same runs in turn, and counted are tokens for a second of the process's
CPU: the store's thread is in it. First with a model computed in the same process (the bundled one, or `--model`), then
with the scripted engine, which computes nothing, so that the server's own work is all there is. Its last line says
"kept" or "missed".
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from ag_ui.core import RunAgentInput

from agent_server.engines.scripted import Script
from agent_server.http.server import Server
from events.options import GenerationOptions, SamplingParams
from events.vocabulary import RunFinished
from tests.server import scripted, serving

AIM = 0.97


async def round_of(server: Server, name: str, streams: int, tokens: int) -> float:
    """Tokens for a second of CPU."""
    options = GenerationOptions(
        store=True, sampling=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True), stated=frozenset()
    )
    inputs = [
        RunAgentInput.model_validate(
            {"threadId": f"{name}-{at}", "runId": f"run-{name}-{at}",
             "messages": [{"id": "u", "role": "user", "content": "Tell me about yourself."}]}
        )
        for at in range(streams)
    ]  # fmt: skip
    begun = time.process_time()

    async def one(input: RunAgentInput) -> int:
        run = await server.runs.start(input, options)
        *_, (_, event) = [numbered async for numbered in run.events()]
        assert isinstance(event, RunFinished), event
        return sum(each.output_tokens or 0 for each in event.usage or ())

    written = sum(await asyncio.gather(*map(one, inputs)))
    return written / (time.process_time() - begun)


async def compare(what: str, engine: Any, rounds: int, streams: int, tokens: int, **settings: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        async with contextlib.AsyncExitStack() as stack:
            servers = [
                (
                    await stack.enter_async_context(
                        serving(
                            engine() if engine else None, local=True, store_url=f"sqlite:///{folder}/{saves}.db",
                            take_up_runs=saves, grace=30.0, **settings,
                        )
                    )
                ).server
                for saves in (False, True)
            ]  # fmt: skip
            for at, server in enumerate(servers):
                await round_of(server, f"warm{at}", streams, tokens // 4)
            ratios = []
            for number in range(rounds):
                order = servers if number % 2 else servers[::-1]
                speed = {id(each): await round_of(each, f"r{number}", streams, tokens) for each in order}
                without, saving = (speed[id(each)] for each in servers)
                ratios.append(saving / without)
                print(f"{what}: {without:.0f} tokens a CPU second without saving, {saving:.0f} with", flush=True)
    median = statistics.median(ratios)
    print(f"{what}: {streams} streams of {tokens} tokens, saving leaves {median:.3f} of them")
    return median


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--model", help="a model file or folder instead of the bundled model")
    given = parser.parse_args()
    name, settings = ("bundled model", {}) if given.model is None else (Path(given.model).stem, {"model": given.model})
    real = await compare(name, None, given.rounds, given.streams, given.tokens, **settings)
    script = Script(text="the " * given.tokens, delay=0.02)
    await compare("scripted engine", lambda: scripted([script]), given.rounds, given.streams, given.tokens)
    print(f"{name}: {real:.3f} of the tokens, aim {AIM}: {'kept' if real >= AIM else 'missed'}")


if __name__ == "__main__":
    asyncio.run(main())
