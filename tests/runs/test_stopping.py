"""Stops: once, again, and at the end of the server."""

from __future__ import annotations

import asyncio

import pytest

from adapters.errors import RequestError
from agent_server.runs import Ending, Recorder
from agent_server.runs import run as run_module
from events.vocabulary import CancelledOutcome, RunError, RunFinished
from tests.runs.agents import OPTIONS, ask, forever, manager_of

pytestmark = pytest.mark.usefixtures("nothing_blocks")


async def test_shutdown_drains_then_ends_runs_with_an_error():
    manager = manager_of(forever)
    run = await manager.start(ask(), OPTIONS)
    await asyncio.sleep(0)
    stopping = asyncio.create_task(manager.close(0.05))
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as refused:
        await manager.start(ask("r2", "t2"), OPTIONS)
    assert refused.value.kind == "unavailable"
    await stopping
    assert isinstance(run.terminal, RunError) and run.terminal.code == "unavailable"
    assert run.terminal.metadata["retryable"] is True
    assert manager.active == 0


async def test_an_agent_that_swallows_a_stop_is_stopped_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_module, "INSIST_SECONDS", 0.0)
    swallowed: list[str] = []

    async def stubborn(recorder: Recorder) -> Ending:
        for place in ("first", "second"):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed.append(place)
        return await forever(recorder)

    manager = manager_of(stubborn)
    run = await manager.start(ask(), OPTIONS)
    for expected in (["first"], ["first", "second"]):
        await asyncio.sleep(0.01)
        assert run.stop("cancelled")
        await asyncio.sleep(0.01)
        assert swallowed == expected
    await manager.close(drain=0.0)
    terminal = await run.wait()
    assert isinstance(terminal, RunFinished) and isinstance(terminal.outcome, CancelledOutcome)


async def test_a_second_stop_lets_the_first_clean_up():
    cleaned = False

    async def careful(recorder: Recorder) -> Ending:
        nonlocal cleaned
        try:
            return await forever(recorder)
        finally:
            await asyncio.sleep(0.01)
            cleaned = True

    manager = manager_of(careful)
    run = await manager.start(ask(), OPTIONS)
    await asyncio.sleep(0.01)
    assert run.stop("cancelled")
    await asyncio.sleep(0)
    assert run.stop("disconnected")
    await run.wait()
    assert cleaned
    await manager.close(drain=0.0)
