"""The garbage collector of a server: tuned after loading, and told when to look at more than what is new.

A collection stops the process, some 0.3 ms for a thousand objects that stay alive. What a request makes it lets go of
without the collector's help, as nothing of it holds itself; so collections are for what goes other ways. Young ones are
kept small. What has survived them is looked at again between requests, or once in a while where there is no such
time, and everything when nothing is running: one body of 4,000 messages makes 400,000 objects.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

YOUNG_OBJECTS = 10_000
"""New objects, less those that are gone, that start a young collection (700 by default): a pause of some 3 ms. Of 256
requests that arrive at once each costs what its own objects cost to look at once; with middle collections behind every
second young one they were looked at twice."""
NEVER = 2**30
MANY_YOUNG = 100
"""Young collections after which what has survived them is looked at although something is running. So what holds itself
may come to a million objects, some 100 MB, and one large body does not lead to it."""
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
    gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)


class QuietCollector:
    """Makes the collections of what is not new. `look` is called again and again; busy: whether something runs."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._waited = 0

    def look(self) -> bool:
        """Collect everything if nothing is running, or if that has been waited for long enough. Whether it was done:
        not where no young collection was made since the last time."""
        _, young, middle = gc.get_count()
        if not young and not middle:
            return False
        if self._busy() and self._waited < PATIENT_LOOKS:
            self._waited += 1
            if young >= MANY_YOUNG:
                gc.collect(1)
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
