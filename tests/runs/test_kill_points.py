"""A server killed at every point of a run, and the one that resumes it at every point of its own.

What a killed server leaves is what its database had committed; what readers have is what was shown before the next
commit. So each commit is a kill point, and a copy of the database that is made just before it is what a kill between
the two would leave. From each copy another server goes on, whose commits are kill points in their turn.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ag_ui.core import ResumeEntry

from agent_server.agents import Agent, ToolContext, tool
from agent_server.agents.checkpoints import Checkpointer
from agent_server.agents.interrupts import UNKNOWN
from agent_server.agents.sealing import Sealer
from agent_server.engines.scripted import Script
from agent_server.runs.store import Store
from events.lifecycle import Verifier
from events.message import Folder
from events.options import GenerationOptions, SamplingParams
from events.vocabulary import (
    Event,
    InterruptOutcome,
    RunFinished,
    StepStarted,
    TextMessageContent,
    ToolCallEnd,
    ToolCallResult,
)
from tests.agents.harness import House, of
from tests.agents.models import Model, call
from tests.slow import slow

ANSWER = "It is paid, and this is told in a sentence of many tokens so that it can be cut anywhere."
TURN = "<think>Both.</think>I look first." + call("look", at="may") + call("pay", sum=5)
DONE_OPTIONS = GenerationOptions(store=True, sampling=SamplingParams(temperature=0.0))


class KillPoint:
    """database: as it was. seen: what readers had by then. paid: how often the tool had acted."""

    def __init__(self, database: Path, seen: Sequence[tuple[int, Event]], paid: int) -> None:
        self.database = database
        self.seen = list(seen)
        self.paid = paid


class World:
    """What outlives every server: the files, and what tools have done. early: the tool that pays may start early, and
    so may be called again. asks: it pays in a second run, which a person has approved."""

    def __init__(self, folder: Path, *, early: bool = False, asks: bool = False) -> None:
        self.folder = folder
        self.early = early
        self.asks = asks
        self.run_id = "run_2" if asks else "run_1"
        self.sealer = Sealer()
        self.numbers = itertools.count()
        self.paid = 0

    def agent(self) -> Agent:
        @tool(idempotent=True)
        async def look(at: str) -> str:
            """Look."""
            await asyncio.sleep(0.02)  # the other call's result waits for this one
            return f"looked at {at}"

        @tool(early=self.early, requires_approval=self.asks)
        async def pay(sum: int, context: ToolContext) -> str:
            """Pay."""
            self.paid += 1
            context.state["paid"] = sum
            await asyncio.sleep(0.005)
            return f"paid {sum}"

        return Agent(name="default", tools=[look, pay], state={"paid": 0})

    def script(self, told: dict[str, Any]) -> Script:
        if told["messages"][-1]["role"] == "user":
            return Script(text=TURN, delay=0.0005)
        return Script(text=ANSWER, delay=0.0005)

    async def lives(
        self, database: Path, seen: Sequence[tuple[int, Event]] = (), *, begins: bool = False
    ) -> tuple[list[tuple[int, Event]], list[KillPoint]]:
        """One server's life, from a database as a killed one left it: what readers have in the end, and its kill
        points. begins: it is asked; the others go on with the run."""
        shown, points = list(seen), list[KillPoint]()
        store = Store(f"sqlite:///{database}")
        house = House(self.agent(), Model(self.script), store, run_limits={"save_every": 0.001}, sealer=self.sealer)
        house.manager.new_id = lambda prefix: f"{prefix}_{secrets.token_hex(4)}"
        write = store._database.write
        begun = False

        async def writing(work: Callable[[Any], Any], *more: Any) -> Any:
            if begun:
                points.append(KillPoint(self.copied(database), self.read(house, shown), self.paid))
            return await write(work, *more)

        store._database.write = writing  # type: ignore[method-assign]
        async with house:
            answers: list[ResumeEntry] = []
            if begins and self.asks:
                *_, asked = await house.ask("pay", options=DONE_OPTIONS)
                assert isinstance(asked, RunFinished) and isinstance(asked.outcome, InterruptOutcome)
                answers = [
                    ResumeEntry(interrupt_id=each.id, status="resolved", payload={"approved": True})
                    for each in asked.outcome.interrupts
                ]
            begun = True
            if begins:
                run = await house.start(None if answers else "pay", options=DONE_OPTIONS, resume=answers or None)
            else:
                await house.manager.resume_orphans()
                run = await house.manager.find(self.run_id)
            after = shown[-1][0] if shown else 0
            async for number, event in run.events(after):
                shown.append((number, event))
            await self.check(shown, store)
        return shown, points

    def read(self, house: House, shown: Sequence[tuple[int, Event]]) -> list[tuple[int, Event]]:
        """What a reader that lags behind nothing has by now."""
        run = house.manager._runs.get(("", self.run_id))
        if run is None:
            return list(shown)
        last = shown[-1][0] if shown else 0
        return [*shown, *((number, run.log.get(number)) for number in range(last + 1, run.log.last + 1))]

    def copied(self, database: Path) -> Path:
        copy = self.folder / f"{next(self.numbers)}.db"
        source, target = sqlite3.connect(database), sqlite3.connect(copy)
        source.backup(target)
        source.close()
        target.close()
        copy.chmod(0o600)
        return copy

    async def check(self, shown: Sequence[tuple[int, Event]], store: Store) -> None:
        assert [number for number, _ in shown] == list(range(1, len(shown) + 1))
        verifier, folder = Verifier(strict=True), Folder([], None)
        events = [event for _, event in shown]
        for event in events:
            verifier.check(event)
            folder.add(event)
        assert isinstance(events[-1], RunFinished)
        before, results = ("", ["paid 5"]) if self.asks else ("I look first.", ["looked at may", "paid 5"])
        assert "".join(each.delta for each in of(events, TextMessageContent)) == before + ANSWER
        *others, paid = of(events, ToolCallResult)
        assert [each.content for each in others] == results[:-1] and paid.content in ("paid 5", UNKNOWN)
        stored = await store.messages("", "t")
        assert [each["role"] for each in stored if each["role"] != "reasoning"] == [
            "user", "assistant", "tool", "tool", "assistant",
        ]  # fmt: skip
        assert stored[-1]["content"] == ANSWER
        assert self.early or self.paid <= 1
        if paid.content == "paid 5":
            assert await store.state("", "t") == {"paid": 5}
        runs = [each.status for each in await store.runs("", "t")]
        if self.asks:
            assert sorted(runs) == ["finished", "interrupted"]
            return
        assert runs == ["finished"] and folder.issues == []
        assert [each.step_name for each in of(events, StepStarted)] == ["step 1", "step 2"]
        assert [each["id"] for each in stored[1:]] == [each["id"] for each in folder.messages]
        assert folder.state == await store.state("", "t")


@pytest.mark.parametrize(
    ("deep", "most", "asks"),
    [
        (1, 24, False),
        (2, 8, True),
        *slow([(1, 60, False), (3, 16, False), (1, 30, True)]),
    ],
)
async def test_a_run_goes_on_from_every_kill_point(tmp_path: Path, deep: int, most: int, asks: bool):
    """deep: how many servers are killed one after the other. most: kill points tried at each depth.

    The number of commits follows the speed of the disk, so the points are chosen evenly among those there are."""
    world = World(tmp_path, asks=asks)
    _, points = await world.lives(tmp_path / "first.db", begins=True)
    assert len(points) > 15 and world.paid == 1
    for _ in range(deep):
        following: list[KillPoint] = []
        for point in points[:: math.ceil(len(points) / most)]:
            if not point.seen and not _accepted(point.database, world.run_id):
                continue  # nothing was accepted, and nobody was told that it was
            world.paid = point.paid
            _, more = await world.lives(point.database, point.seen)
            following += more
        points = following


@pytest.mark.parametrize("early", [False, *slow([True])])
async def test_servers_that_are_killed_between_two_turns_send_each_result_once(
    tmp_path: Path, early: bool, monkeypatch: pytest.MonkeyPatch
):
    """With what it changed in the state. A turn begins late, so that what was sent before it is committed without it."""
    begin_turn = Checkpointer.begin_turn

    async def begin_later(self: Checkpointer, step: int) -> None:
        await asyncio.sleep(0.03)
        await begin_turn(self, step)

    monkeypatch.setattr(Checkpointer, "begin_turn", begin_later)
    world = World(tmp_path, early=early)
    _, points = await world.lives(tmp_path / "first.db", begins=True)
    for _ in range(2):
        between = [point for point in points if _is_between_turns(point)]
        assert between
        points = []
        for point in between:
            world.paid = point.paid
            points += (await world.lives(point.database, point.seen))[1]


def _is_between_turns(point: KillPoint) -> bool:
    events = [event for _, event in point.seen]
    text = "".join(each.delta for each in of(events, TextMessageContent))
    return len(of(events, ToolCallEnd)) == 2 and text == "I look first."


def _accepted(database: Path, run_id: str) -> bool:
    connection = sqlite3.connect(database)
    try:
        return bool(connection.execute("SELECT count(*) FROM runs WHERE id = ?", (run_id,)).fetchone()[0])
    finally:
        connection.close()
