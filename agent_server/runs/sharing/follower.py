"""Follows the runs of other gateways that have readers here: one command for all, some forty times a second."""

from __future__ import annotations

import asyncio
from typing import Any

from agent_server.runs.sharing.entries import entry_id, opened
from agent_server.runs.sharing.keys import RedisKeys, RunPlace, place_of
from agent_server.runs.sharing.link import RedisLink, Unreachable
from agent_server.runs.sharing.remote import RemoteRun
from agent_server.settings import SharingLimits
from events.encode import DecodeError

ENTRIES = 64
"""Stream entries of one run taken in one step, so that a long one does not hold up the others."""


class Follower:
    """`runs`: the copies kept here, by tenant and id."""

    def __init__(self, link: RedisLink, keys: RedisKeys, limits: SharingLimits) -> None:
        self._link = link
        self._keys = keys
        self._limits = limits
        self._wanted = asyncio.Event()
        self._silent: dict[tuple[str, str], int] = {}
        self.runs: dict[tuple[str, str], RemoteRun] = {}

    async def add(self, run: RemoteRun) -> RemoteRun:
        """Catch up with a run and follow it; the copy to use, which is an earlier one where there is one. Unreachable
        if Redis does not answer."""
        # Read to the end before it is followed with the others, so that a long past does not delay their present.
        while not run.done.is_set() and (entries := await self._link.call(*self._read(run))):
            self._feed(run, entries)
        return run if run.done.is_set() else self.keep(run)

    def keep(self, run: RemoteRun) -> RemoteRun:
        """Follow a copy from where it is."""
        known = self.runs.get(run.key)
        # One copy for all readers here, unless the id names another run by now.
        if known is None or known.place != run.place or known.done.is_set():
            known = self.runs[run.key] = run
            self._wanted.set()
        return known

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                await self.follow()
            except Unreachable:
                self._give_up_late()
            await asyncio.sleep(self._limits.tick)

    async def follow(self) -> None:
        """One step for every copy."""
        # A copy without readers is dropped; the next reader makes a new one.
        self.runs = {key: run for key, run in self.runs.items() if not (run.done.is_set() or run.idle)}
        if not self.runs:
            self._wanted.clear()
            return
        by_stream = {self._keys.events(run.place).encode(): run for run in self.runs.values()}
        ids = [entry_id(run.log.last) for run in by_stream.values()]
        for stream, entries in await self._link.call("XREAD", "COUNT", ENTRIES, "STREAMS", *by_stream, *ids) or ():
            self._feed(by_stream[stream], entries)

    async def look(self) -> None:
        """Cut the copies of runs that are kept no longer, or whose end was lost."""
        runs = [run for run in self.runs.values() if not run.done.is_set()]
        asked = [("HMGET", self._keys.record(*run.key), "instance", "ended", "entry") for run in runs]
        for run, (instance, ended, entry) in zip(runs, await self._link.all(asked) if asked else (), strict=True):
            if instance is not None and instance.decode() == run.place.instance:
                self._move(run, place_of(entry))
            gone = instance is None or instance.decode() != run.place.instance or ended is not None
            self._silent[run.key] = self._silent.get(run.key, 0) + 1 if gone else 0
            if self._silent[run.key] > 1:  # twice in a row: its last events had the time to come
                run.cut("The run's events are not kept any more.")
        self._silent = {key: count for key, count in self._silent.items() if key in self.runs}

    def _move(self, run: RemoteRun, place: RunPlace) -> None:
        """Another gateway goes on with the run: its readers here read on, and count there."""
        if place != run.place:
            run.moved(place)

    def cut_all(self, why: str) -> None:
        for run in self.runs.values():
            run.cut(why)
        self.runs = {}

    def _give_up_late(self) -> None:
        # A shorter outage is waited out; after the time of a lease readers are told.
        if self._link.down_for > self._limits.lease:
            self.cut_all("The servers cannot reach each other.")

    def _read(self, run: RemoteRun) -> tuple[object, ...]:
        return ("XRANGE", self._keys.events(run.place), "(" + entry_id(run.log.last), "+", "COUNT", ENTRIES)

    @staticmethod
    def _feed(run: RemoteRun, entries: Any) -> None:
        try:
            run.feed(opened(entries))
        except (DecodeError, KeyError, ValueError):
            run.cut("The run's events cannot be read; its server may have another version.")
