"""The garbage collector of a server: tuned after loading, with full collections while the server is idle.

A collection stops the process for about 0.3 ms per thousand live objects. A request's objects form no cycles, so
reference counting frees them; the collector is only needed for the rest. Young collections are kept small. Survivors
are collected between requests, or once in a while if the server is never idle, and everything when nothing is running:
one body of 4,000 messages makes 400,000 objects.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

YOUNG_OBJECTS = 10_000
"""The net number of new objects that starts a young collection (700 by default): a pause of about 3 ms. With 256
requests at once, each request's objects are traversed once; with a middle collection after every second young one they
were traversed twice."""
NEVER = 2**30
MANY_YOUNG = 100
"""The number of young collections after which survivors are collected although something is running. Cycles may then
reach a million objects, about 100 MB, and one large body does not trigger it."""
COLLECTING_SHARE = 1 / 400
"""Of the time while something is running, spent on survivors: a collection that took 80 ms, since large requests were
waiting, is followed by none for 32 s."""
LOOK_SECONDS = 5.0
PATIENT_LOOKS = 120
"""After this many looks while something was running, a full collection is made anyway."""


def settle_heap() -> None:
    """Tune the garbage collector after loading.

    Everything that has been loaded stays alive, so it is frozen and never traversed again. The objects of a token live
    for one step of the engine, so collecting after every 700 new objects is useless work: with Python's default
    thresholds it took a sixth of the CPU time of a token."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, NEVER, NEVER)


class QuietCollector:
    """Collects older objects while the server is idle. Call `look` periodically. busy: whether something is running."""

    def __init__(self, busy: Callable[[], bool]) -> None:
        self._busy = busy
        self._busy_looks = 0
        self._not_before = 0.0

    def look(self) -> bool:
        """Collect everything if nothing is running, or if the server has been busy for too long. Does nothing if there
        was no young collection since the last time. Returns whether it collected everything."""
        _, young, middle = gc.get_count()
        if not young and not middle:
            return False
        if self._busy() and self._busy_looks < PATIENT_LOOKS:
            self._busy_looks += 1
            if young >= MANY_YOUNG and (begun := time.monotonic()) >= self._not_before:
                gc.collect(1)
                ended = time.monotonic()
                self._not_before = ended + (ended - begun) / COLLECTING_SHARE
            return False
        self._busy_looks = 0
        gc.collect()
        return True


async def keep_collecting(busy: Callable[[], bool]) -> None:
    """Settle the heap, then collect periodically until cancelled."""
    settle_heap()
    collector = QuietCollector(busy)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        collector.look()
