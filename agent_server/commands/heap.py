"""The garbage collector of a server: tuned after loading, and told when to look at everything.

A collection stops the process. Python's young ones take about 0.4 ms for a thousand objects that stay alive, and
the full ones as much for all that is alive: one body of 4,000 messages makes 400,000 objects. So young collections are
kept small, and full ones wait until nothing is running.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

YOUNG_OBJECTS, YOUNG_ROUNDS = 10_000, 2
"""New objects that start a young collection (700 by default), and how many of these a middle one comes after: it looks
at (YOUNG_ROUNDS + 1) * YOUNG_OBJECTS objects at most. It is the price of short pauses that more of them are made: of
256 requests that arrive at once, each costs some 0.1 ms more than with 20,000 and 10 (benchmarks/chat_http.py)."""
NEVER = 2**30
LOOK_SECONDS = 5.0
PATIENT_LOOKS = 120
"""After so many looks at which something was running, a full collection is made all the same."""


def settle_heap() -> None:
    """Tune the garbage collector after loading.

    Everything that has been loaded stays, so it is frozen and not traversed again. The objects of one token live for
    one step of the engine, for all streams together, so collecting after every 700 new objects is useless work: with
    Python's default thresholds it took a sixth of the CPU time of a token."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_ROUNDS, NEVER)


class QuietCollector:
    """Makes the full collections. `look` is called again and again; busy: whether something is running."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._waited = 0

    def look(self) -> bool:
        """Collect if nothing is running, or if that has been waited for long enough. Whether it was done: not where
        nothing has grown old since the last time."""
        if gc.get_count()[2] == 0:
            return False
        if self._busy() and self._waited < PATIENT_LOOKS:
            self._waited += 1
            return False
        self._waited = 0
        gc.collect()
        return True


async def keep_collecting(busy: Callable[[], bool]) -> None:
    """Settle the heap, then look after it until cancelled."""
    settle_heap()
    collector = QuietCollector(busy)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        collector.look()
