"""The queue of a thread's runs: one runs at a time, on whichever gateway."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_server.runs.run import Run
    from agent_server.runs.sharing.interfaces import Sharing


class QueuedTurn:
    """A run's turn on its thread: after the earlier runs of this gateway, then after those of other gateways.

    queue: this gateway's unfinished runs of the thread. It may change while the run waits: a run that is resumed for a
    dead gateway takes its former position.
    """

    def __init__(self, run: Run, queue: Sequence[Run], sharing: Sharing | None) -> None:
        self._run = run
        self._queue = queue
        self._sharing = sharing

    def _earlier(self) -> list[Run]:
        return [run for run in takewhile(lambda run: run is not self._run, self._queue) if not run.finished]

    async def before(self) -> list[str]:
        here = [run.id for run in self._earlier()]
        return here if self._sharing is None else [*await self._sharing.before(self._run), *here]

    async def come(self) -> None:
        while True:
            while earlier := self._earlier():
                await earlier[0].done.wait()
            if self._sharing is not None:
                await self._sharing.turn(self._run)
            if not self._earlier():
                return
