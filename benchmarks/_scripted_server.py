"""This server with the scripted engine, listening on an inherited socket: `python _scripted_server.py FD TOKENS DELAY
[RUNS]`, with RUNS runs at once at most.

Every request is answered with TOKENS tokens of one word, one at each step of the engine, DELAY seconds apart; a step
gives every running request its next token, as a batch of a real engine does. The steps go on whether or not the server
keeps up, as those of an engine in a process of its own do. The engine replays what is in memory.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from agent_server.cli.serve import Listener, run_server, serve_web
from agent_server.engines.scripted import Script
from agent_server.http.assemble import build_server
from tests.server import scripted, settings

LIMIT = 4096


class Steps:
    """The engine's clock: time goes on step by step, and whoever waits for a step is woken by it. Like a batch, a step
    takes in what arrives while the one before it runs. A tick that comes late is as many steps as there should have
    been."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._number = 0
        self._due = 0.0
        self._waiting: list[Callable[[], None]] = []
        self._ticking = False

    def time(self) -> float:
        return float(self._number)

    def call_later(self, delay: float, callback: Callable[[], None], /) -> asyncio.Handle:
        self._waiting.append(callback)
        if not self._ticking:
            self._ticking = True
            loop = asyncio.get_running_loop()
            self._due = loop.time() + self._seconds
            loop.call_at(self._due, self._tick)
        return _NEVER

    def _tick(self) -> None:
        waiting, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        steps = 1 + int((loop.time() - self._due) / self._seconds)
        self._number += steps
        self._due += steps * self._seconds
        self._ticking = bool(waiting)
        if waiting:
            loop.call_at(self._due, self._tick)
        for wake in waiting:
            wake()


class _Nothing(asyncio.Handle):
    """A timer that needs no cancelling: waking what is awake does nothing."""

    def __init__(self) -> None:
        pass

    def cancel(self) -> None:
        pass


_NEVER = _Nothing()


def main(descriptor: int, tokens: int, delay: float, runs: int = LIMIT) -> None:
    engine = scripted("")
    word = engine.vocabulary.encode("the ")[0]
    engine = scripted([Script(tokens=(word,) * tokens, delay=1.0, paced=True)], max_running=LIMIT, clock=Steps(delay))
    chosen = settings(max_runs=runs, max_runs_per_tenant=runs, max_queued=LIMIT, drain=30.0)
    server = build_server(chosen, engine=engine)
    listener = socket.socket(fileno=descriptor)
    listener.setblocking(False)
    run_server(serve_web(server, [Listener(listener, "the benchmark's address")]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), *map(int, sys.argv[4:]))
