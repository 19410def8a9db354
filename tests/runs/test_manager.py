"""The run manager with agents that are plain functions."""

from __future__ import annotations

import asyncio
import itertools
import weakref

import pytest

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs import Ending, Recorder
from agent_server.runs.store.records import Conclusion, ThreadState
from agent_server.settings import LogLimits
from events.options import GenerationOptions
from events.vocabulary import (
    CancelledOutcome,
    Custom,
    Event,
    ReasoningMessageStart,
    ReasoningStart,
    RunError,
    RunFinished,
    RunStarted,
    StepStarted,
    TextMessageContent,
    TextMessageEnd,
    TextMessageStart,
    ToolCallStart,
)
from tests.runs.agents import OPTIONS, ask, forever, manager_of, read_all, say

pytestmark = pytest.mark.usefixtures("nothing_blocks")


async def test_a_run_is_numbered_from_one_and_ends_with_its_terminal_event():
    run = await manager_of(say).start(ask(), OPTIONS)
    items = await read_all(run)
    assert [number for number, _ in items] == list(range(1, len(items) + 1))
    assert isinstance(items[0][1], RunStarted) and items[0][1].protocol_version == "1.0"
    assert isinstance(items[-1][1], RunFinished)
    assert (items[-1][1].thread_id, items[-1][1].run_id) == ("t1", "r1")
    assert items[-1][1].metadata["finishReason"] == "stop"


async def test_a_finished_run_is_replayed_from_any_event_on():
    manager = manager_of(say)
    whole = await read_all(await manager.start(ask(), OPTIONS))
    for cut in range(len(whole) + 1):
        assert await read_all(manager.get("r1"), cut) == whole[cut:]


async def test_a_run_that_is_kept_does_not_keep_what_it_worked_with():
    class Work:
        """What an agent has in hand."""

    async def agent(recorder: Recorder) -> Ending:
        work = Work()
        works.append(weakref.ref(work))
        await asyncio.sleep(0)
        return Ending(result=type(work).__name__)

    works: list[weakref.ref[Work]] = []
    manager = manager_of(agent)
    run = await manager.start(ask(), OPTIONS)
    await run.wait()
    await asyncio.sleep(0)
    assert manager.get("r1") is run and run.task is None
    assert [work() for work in works] == [None]


async def test_a_number_that_was_never_given_is_refused():
    manager = manager_of(say)
    run = await manager.start(ask(), OPTIONS)
    await run.wait()
    with pytest.raises(RequestError, match="This run has no event"):
        run.events(run.log.last + 1)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("out_of_memory", "does not fit"), "out_of_memory"),
        (RequestError("invalid_request", "no such thing", "resume"), "invalid_request"),
        (ZeroDivisionError("secret detail"), "internal"),
    ],
)
async def test_whatever_is_raised_closes_what_is_open_and_becomes_one_error(error, code):
    async def fails(recorder: Recorder) -> Ending:
        recorder.emit(StepStarted(step_name="s"))
        recorder.emit(ReasoningStart(message_id="r"))
        recorder.emit(ReasoningMessageStart(message_id="r", role="reasoning"))
        recorder.emit(ToolCallStart(tool_call_id="c", tool_call_name="f"))
        raise error

    events = [event for _, event in await read_all(await manager_of(fails).start(ask(), OPTIONS))]
    assert [type(event).__name__ for event in events[5:]] == [
        "ToolCallEnd",
        "ReasoningMessageEnd",
        "ReasoningEnd",
        "StepFinished",
        "RunError",
    ]
    assert events[-1].code == code
    assert "secret" not in events[-1].message


async def test_cancel_closes_and_says_cancelled():
    manager = manager_of(forever)
    run = await manager.start(ask(), OPTIONS)
    reader = run.events()
    await anext(reader)
    assert await run.cancel()
    events = [event async for _, event in reader]
    assert isinstance(events[-2], TextMessageEnd)
    assert isinstance(events[-1].outcome, CancelledOutcome)
    assert events[-1].metadata["finishReason"] == "cancelled"
    assert not await run.cancel()


async def test_a_grace_of_zero_cancels_as_soon_as_the_last_reader_leaves():
    gone = asyncio.Event()

    async def notices(recorder: Recorder) -> Ending:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()
        return Ending()

    run = await manager_of(notices).start(ask(), OPTIONS, grace=0)
    first, second = run.events(), run.events()
    await anext(first), await anext(second)
    await first.aclose()
    await asyncio.sleep(0.01)
    assert not gone.is_set()
    await second.aclose()
    async with asyncio.timeout(30):  # how soon is measured in benchmarks/vanishing.py
        await gone.wait()


async def test_a_reader_that_comes_back_within_the_grace_keeps_the_run():
    go_on = asyncio.Event()

    async def waits(recorder: Recorder) -> Ending:
        await go_on.wait()
        return await say(recorder)

    run = await manager_of(waits).start(ask(), OPTIONS, grace=0.2)
    reader = run.events()
    await anext(reader)
    await reader.aclose()
    again = run.events(1)
    await asyncio.sleep(0.25)
    go_on.set()
    assert isinstance([event async for _, event in again][-1], RunFinished)


async def test_a_run_that_nobody_reads_within_its_grace_is_cancelled():
    run = await manager_of(forever).start(ask(), OPTIONS, grace=0.05)
    reader = run.events()
    await anext(reader)
    await reader.aclose()
    assert (await run.wait()).metadata["finishReason"] == "cancelled"
    assert run.stopped_by == "disconnected"


async def test_breaking_out_of_the_loop_counts_as_leaving():
    run = await manager_of(forever).start(ask(), OPTIONS, grace=0)

    async def looks() -> None:
        async for _ in run.events():
            break

    await looks()
    async with asyncio.timeout(30):  # how soon is measured in benchmarks/vanishing.py
        assert (await run.wait()).metadata["finishReason"] == "cancelled"


async def test_a_slow_reader_holds_nobody_back_and_is_told_when_it_fell_behind():
    limits = LogLimits(events=50, bytes=10**9)
    release = asyncio.Event()

    async def talks(recorder: Recorder) -> Ending:
        await release.wait()
        return await say(recorder, 5_000)

    run = await manager_of(talks, log=limits).start(ask(), OPTIONS)
    slow, fast = run.events(), run.events()
    first = await anext(slow)
    release.set()
    fast_items = [item async for item in fast]
    assert len(fast_items) == 5_000 + 4
    assert len(run.log.snapshot()) == 50
    rest = [item async for item in slow]
    assert first[0] == 1 and len(rest) == 1
    assert isinstance(rest[0][1], RunError) and rest[0][1].code == "connection"
    with pytest.raises(RequestError, match="no longer kept"):
        run.events(3)


async def test_the_log_is_bounded_in_bytes():
    async def shouts(recorder: Recorder) -> Ending:
        recorder.emit(TextMessageStart(message_id="m"))
        for _ in range(100):
            recorder.emit(TextMessageContent(message_id="m", delta="x" * 10_000))
        return Ending()

    run = await manager_of(shouts, log=LogLimits(bytes=100_000)).start(ask(), OPTIONS)
    await run.wait()
    assert run.log.bytes < 110_000


async def test_runs_on_one_thread_are_never_interleaved():
    manager = manager_of(say, queued_per_thread=3)
    runs = [await manager.start(ask(f"r{index}"), OPTIONS) for index in range(4)]
    with pytest.raises(RequestError) as refused:
        await manager.start(ask("r9"), OPTIONS)
    assert refused.value.kind == "conflict"
    order: list[str] = []

    async def watch(run) -> None:
        async for _, event in run.events():
            if not isinstance(event, RunStarted | Custom):  # those that wait say so at once
                order.append(run.id)

    await asyncio.gather(*map(watch, runs))
    assert [name for name, _ in itertools.groupby(order)] == ["r0", "r1", "r2", "r3"]


async def test_a_waiting_run_that_is_cancelled_does_not_let_the_next_one_pass():
    manager = manager_of(forever)
    first, second, third = [await manager.start(ask(f"r{index}"), OPTIONS) for index in range(3)]
    await asyncio.sleep(0)
    await second.cancel()
    assert isinstance((await second.wait()).outcome, CancelledOutcome)
    await asyncio.sleep(0.01)
    assert third.state == "queued"
    assert [type(event).__name__ for event in second.log.snapshot()] == ["RunStarted", "Custom", "RunFinished"]
    await first.cancel()
    await asyncio.sleep(0.01)
    assert third.state == "running"
    await third.cancel()


async def test_a_run_that_waits_for_its_thread_says_so_at_once_and_behind_which():
    manager = manager_of(forever)
    runs = [await manager.start(ask(f"r{index}"), OPTIONS) for index in range(3)]
    readers = [run.events() for run in runs]
    for reader, run, behind in zip(readers[1:], runs[1:], (["r0"], ["r0", "r1"]), strict=True):
        assert isinstance((await anext(reader))[1], RunStarted)
        assert (await anext(reader))[1] == Custom(name="agent_server.waiting", value={"behind": behind})
        assert run.state == "queued"
    await runs[0].cancel()
    assert isinstance((await anext(readers[1]))[1], TextMessageStart)
    await manager.close(0)


async def test_one_tenant_that_takes_what_it_gets_leaves_room_for_others():
    manager = manager_of(forever, runs=16, tenants=3)
    count = itertools.count()

    async def takes(tenant: str) -> int:
        for taken in itertools.count():
            try:
                await manager.start(ask(f"r{next(count)}", f"t{next(count)}"), OPTIONS, tenant=tenant)
            except RequestError as refused:
                assert refused.kind == "overloaded" and refused.retry_after
                return taken
        raise AssertionError

    assert await takes("greedy") == 12
    assert await takes("second") == 3
    assert await takes("third") == 1
    await manager.close(0)


async def test_queueing_can_be_off():
    manager = manager_of(forever, queued_per_thread=0)
    run = await manager.start(ask(), OPTIONS)
    with pytest.raises(RequestError, match="going on"):
        await manager.start(ask("r2"), OPTIONS)
    await manager.start(ask("r3", "another thread"), OPTIONS)
    await manager.close(0)
    assert run.finished


async def test_the_number_of_runs_is_bounded_and_the_refusal_says_when_to_come_back():
    manager = manager_of(forever, runs=2)
    for index in range(2):
        await manager.start(ask(f"r{index}", f"t{index}"), OPTIONS)
    with pytest.raises(RequestError) as refused:
        await manager.start(ask("r9", "t9"), OPTIONS)
    assert (refused.value.kind, refused.value.retry_after) == ("overloaded", 1.0)
    await manager.close(0)


async def test_one_tenant_cannot_take_every_run_and_cannot_see_anothers():
    manager = manager_of(forever, runs_per_tenant=1)
    mine = await manager.start(ask(), OPTIONS, tenant="a")
    with pytest.raises(RequestError, match="your limit of concurrent runs"):
        await manager.start(ask("r2", "t2"), OPTIONS, tenant="a")
    theirs = await manager.start(ask(), OPTIONS, tenant="b")
    assert manager.get("r1", "a") is mine and manager.get("r1", "b") is theirs
    with pytest.raises(RequestError) as foreign:
        manager.get("r1", "c")
    assert foreign.value.kind == "not_found"
    await manager.close(0)


async def test_an_unknown_agent_and_a_used_run_id_are_refused():
    manager = manager_of(forever)
    with pytest.raises(RequestError, match="no agent"):
        await manager.start(ask(), OPTIONS, agent="nobody")
    await manager.start(ask(), OPTIONS)
    with pytest.raises(RequestError, match="this id"):
        await manager.start(ask("r1", "another"), OPTIONS)
    await manager.close(0)


async def test_finished_runs_are_forgotten_by_age_and_by_bytes():
    manager = manager_of(say, replay_seconds=0.05)
    await (await manager.start(ask(), OPTIONS)).wait()
    await asyncio.sleep(0)
    assert manager.get("r1").finished
    await asyncio.sleep(0.06)
    with pytest.raises(RequestError, match="no such run"):
        manager.get("r1")
    small = manager_of(say, replay_bytes=4_000)
    for index in range(10):
        await (await small.start(ask(f"r{index}", f"t{index}"), OPTIONS)).wait()
        await asyncio.sleep(0)
    with pytest.raises(RequestError, match="no such run"):
        small.get("r0")
    assert small.get("r9").finished


async def test_shutdown_waits_for_runs_that_end_in_time():
    manager = manager_of(say)
    run = await manager.start(ask(), OPTIONS)
    await manager.close(5)
    assert isinstance(run.terminal, RunFinished)


async def test_a_run_has_a_time_limit():
    run = await manager_of(forever, run_seconds=0.02).start(ask(), OPTIONS)
    terminal = await run.wait()
    assert (terminal.code, terminal.metadata["retryable"]) == ("timeout", False)


async def test_sampling_changes_are_checked():
    run = await manager_of(forever).start(ask(), OPTIONS)
    with pytest.raises(RequestError, match="sampling parameter"):
        await run.modify({"temperatur": 1})
    with pytest.raises(RequestError, match="type"):
        await run.modify({"temperature": "hot"})
    with pytest.raises(RequestError, match="temperature"):
        await run.modify({"temperature": -1})
    assert await run.modify({"temperature": 0.5})
    assert run.controls.sampling(OPTIONS.sampling).temperature == 0.5
    await run.cancel()
    await run.wait()
    assert not await run.modify({"temperature": 0.1})


class Notebook:
    """A store that fails where it is told to."""

    owner, durable, fault = 1, False, None

    def __init__(self, *, begin: Exception | None = None, end: Exception | None = None) -> None:
        self.begin, self.end = begin, end
        self.ended: list[Event] = []

    async def begin_run(self, *_, **__) -> ThreadState:
        if self.begin:
            raise self.begin
        return ThreadState()

    async def end_run(self, ended: Conclusion) -> None:
        assert not self.manager.get(ended.run_id).finished
        if self.end:
            raise self.end
        self.ended.append(ended.terminal)


async def run_with(store: Notebook) -> list[Event]:
    manager = manager_of(say)
    manager.store = store
    store.manager = manager
    return [event for _, event in await read_all(await manager.start(ask(), GenerationOptions()))]


async def test_an_ending_is_kept_before_anyone_is_told():
    store = Notebook()
    events = await run_with(store)
    assert store.ended == events[-1:]


async def test_a_store_that_cannot_begin_a_run_is_a_run_error_and_nothing_else():
    (event,) = await run_with(Notebook(begin=OSError("disk full at /secret")))
    assert event.code == "internal" and "secret" not in event.message


async def test_a_success_that_could_not_be_kept_is_not_called_one():
    events = await run_with(Notebook(end=OSError("disk full at /secret")))
    assert isinstance(events[-1], RunError) and "could not be saved" in events[-1].message
    assert isinstance(events[-2], TextMessageEnd)


async def test_a_run_that_is_being_written_down_cannot_be_cancelled_any_more():
    writing, go_on = asyncio.Event(), asyncio.Event()

    class Slow(Notebook):
        async def end_run(self, ended: Conclusion) -> None:
            writing.set()
            await go_on.wait()

    manager = manager_of(say)
    manager.store = Slow()
    run = await manager.start(ask(), GenerationOptions())
    await writing.wait()
    assert not await run.cancel()
    closing = asyncio.create_task(manager.close(0))
    await asyncio.sleep(0.01)
    go_on.set()
    await closing
    assert isinstance(run.terminal, RunFinished) and run.terminal.metadata["finishReason"] == "stop"


async def test_ten_thousand_events_are_read_by_two_readers_alike():
    run = await manager_of(lambda recorder: say(recorder, 10_000)).start(ask(), OPTIONS)
    one, two = await asyncio.gather(read_all(run), read_all(run))
    assert one == two and len(one) == 10_004
