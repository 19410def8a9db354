"""Models that are loaded on first use and unloaded when idle or in the way, with engines that are told what to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent_server.engine_protocol.protocol import EngineError, EngineStatus
from agent_server.engines.scripted import ScriptedEngine
from agent_server.models.model import ChatModel
from agent_server.models.pool import ModelPool, PooledModel
from agent_server.settings import PoolSettings


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Engine(ScriptedEngine):
    """Loads when it is let, or fails as it is told."""

    def __init__(self, log: list[str], name: str, failure: EngineError | None, gate: asyncio.Event | None) -> None:
        super().__init__()
        self.log, self.name, self.failure, self.gate = log, name, failure, gate

    async def start(self) -> None:
        self.log.append(f"load {self.name}")
        if self.gate is not None:
            await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        await super().start()

    async def close(self) -> None:
        self.log.append(f"close {self.name}")
        await super().close()


class Pool:
    """A pool whose models each say what befell them in `log`."""

    def __init__(self, **settings: Any) -> None:
        self.clock, self.log = Clock(), list[str]()
        self.failures: dict[str, list[EngineError]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self.pool = ModelPool(PoolSettings(**settings), now=self.clock)

    def add(self, name: str, bytes: int = 1) -> PooledModel:
        def make() -> ChatModel:
            failures = self.failures.get(name) or [None]
            engine = Engine(self.log, name, failures.pop(0), self.gates.get(name))
            return ChatModel(name, engine, object)  # type: ignore[arg-type]

        model = PooledModel(name, make, object, bytes=bytes)  # type: ignore[arg-type]
        self.pool.add(model)
        return model


Make = Callable[..., Pool]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    made: list[Pool] = []

    def one(**settings: Any) -> Pool:
        made.append(Pool(**settings))
        return made[-1]

    yield one
    for each in made:
        await each.pool.close()


def untold(status: EngineStatus) -> None:
    pass


async def use(model: PooledModel, said: list[EngineStatus] | None = None) -> None:
    async with model.use(untold if said is None else said.append):
        assert model.ready


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def used(model: PooledModel) -> AsyncIterator[asyncio.Event]:
    """A model that is in use until the event is set."""
    begun, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with model.use(untold):
            begun.set()
            await done.wait()

    task = asyncio.create_task(work())
    await begun.wait()
    try:
        yield done
    finally:
        done.set()
        await task


async def test_a_model_is_loaded_once_for_all_who_ask_at_once(make: Make):
    pool = make()
    model = pool.add("a")
    assert model.status.state == "unloaded"
    with pytest.raises(EngineError, match="is not loaded"):
        _ = model.prompts
    await asyncio.gather(*(use(model) for _ in range(5)))
    assert pool.log == ["load a"]
    assert (model.users, model.status.state) == (0, "ready")


async def test_those_who_wait_are_told_how_far_it_is(make: Make):
    pool = make()
    model = pool.add("a")
    pool.gates["a"] = asyncio.Event()
    said: list[EngineStatus] = []
    task = asyncio.create_task(use(model, said))
    await settled()
    pool.gates["a"].set()
    await task
    assert {status.state for status in said} <= {"loading", "starting"} and said


async def test_a_load_that_fails_is_told_to_all_who_waited_and_to_no_one_else(make: Make):
    pool = make()
    good, bad = pool.add("good"), pool.add("bad")
    pool.failures["bad"] = [EngineError("unavailable", "bad/config.json is not JSON.")]
    answers = await asyncio.gather(use(bad), use(good), use(bad), return_exceptions=True)
    assert [str(each) for each in answers] == ["bad/config.json is not JSON.", "None", "bad/config.json is not JSON."]
    with pytest.raises(EngineError, match="is not JSON"):  # no new attempt a moment later
        await use(bad)
    assert pool.log.count("load bad") == 1
    pool.clock.now += 11
    await use(bad)
    assert pool.log.count("load bad") == 2


async def test_the_longest_unused_one_makes_room(make: Make):
    pool = make(budget=2)
    a, b, c = pool.add("a"), pool.add("b"), pool.add("c")
    for model in (a, b, a, c):
        pool.clock.now += 1
        await use(model)
    assert pool.log == ["load a", "load b", "close b", "load c"]
    assert [model.status.state for model in (a, b, c)] == ["ready", "unloaded", "ready"]


async def test_what_runs_is_not_cut_and_others_wait_for_it(make: Make):
    pool = make(budget=1)
    a, b = pool.add("a"), pool.add("b")
    async with used(a) as done:
        waiting = asyncio.create_task(use(b))
        await settled()
        assert pool.log == ["load a"] and a.leaving and not waiting.done()
        late = asyncio.create_task(use(a))  # comes after b, or b would wait for ever
        await settled()
        assert a.users == 1
        done.set()
    await asyncio.gather(waiting, late)
    assert pool.log == ["load a", "close a", "load b", "close b", "load a"]


async def test_who_uses_a_model_already_is_let_in_again_while_it_leaves(make: Make):
    pool = make(budget=1)
    a, b = pool.add("a"), pool.add("b")
    async with a.use(untold):
        waiting = asyncio.create_task(use(b))
        await settled()
        assert a.leaving
        async with asyncio.timeout(5):
            await use(a)
            await asyncio.create_task(use(a))
    await waiting


async def test_models_that_do_not_fit_together_take_turns(make: Make):
    pool = make(budget=1)
    models = [pool.add(name) for name in "abc"]
    async with asyncio.timeout(10):
        await asyncio.gather(*(use(model) for _ in range(4) for model in models))
    assert all(model.users == 0 for model in models)


async def test_one_that_fits_nowhere_says_so(make: Make):
    pool = make(budget=2**30)
    model = pool.add("big", 3 * 2**30)
    with pytest.raises(
        EngineError, match=r"big needs about 3.00 GiB.*may use 1.00 GiB. Raise the limit with --models-memory"
    ):
        await use(model)
    assert pool.log == []


async def test_without_a_budget_a_full_device_makes_room(make: Make):
    pool = make()
    a, b = pool.add("a"), pool.add("b")
    await use(a)
    pool.failures["b"] = [EngineError("out_of_memory", "Too little memory to load b.")]
    await use(b)
    assert pool.log == ["load a", "load b", "close b", "close a", "load b"]
    pool.failures["a"] = [EngineError("out_of_memory", "Too little memory to load a.")] * 2
    with pytest.raises(EngineError, match="Too little memory to load a"):
        await use(a)
    assert b.status.state == "unloaded"  # it was tried without anything beside it


async def test_an_idle_model_is_unloaded_and_comes_back(make: Make):
    pool = make(idle=0.02)
    model = pool.add("a")
    async with used(model):
        pool.clock.now += 1
        await asyncio.sleep(0.05)
        assert model.status.state == "ready"
    pool.clock.now += 1
    async with asyncio.timeout(5):
        while model.status.state != "unloaded":
            await asyncio.sleep(0.005)
    await use(model)
    assert pool.log == ["load a", "close a", "load a"]


async def test_one_whose_engine_gave_up_is_loaded_anew(make: Make):
    pool = make()
    model = pool.add("a")
    await use(model)
    assert model.current is not None
    model.current.engine._status = EngineStatus(state="failed", message="five restarts")  # type: ignore[attr-defined]
    await use(model)
    assert pool.log == ["load a", "close a", "load a"]


async def test_who_stops_waiting_leaves_nothing_behind(make: Make):
    pool = make()
    model = pool.add("a")
    pool.gates["a"] = asyncio.Event()
    task = asyncio.create_task(use(model))
    await settled()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    pool.gates["a"].set()
    await use(model)
    assert model.users == 0 and model.waiting == []


async def test_closing_ends_loads_and_unloads_everything(make: Make):
    pool = make()
    a, b = pool.add("a"), pool.add("b")
    await use(a)
    pool.gates["b"] = asyncio.Event()
    waiting = asyncio.create_task(use(b))
    while "load b" not in pool.log:
        await asyncio.sleep(0.001)
    await pool.pool.close()
    with pytest.raises(EngineError, match="shutting down"):
        await waiting
    assert pool.log == ["load a", "load b", "close b", "close a"]
    with pytest.raises(EngineError, match="shutting down"):
        await use(a)
