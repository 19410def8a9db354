"""Threads and turns of the event loop that tenants share: one with a lot of work delays the others by a piece of it."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
from ag_ui.core import UserMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.fair_threads import FairThreads
from agent_server.pacing import PART, collect_yielding
from agent_server.user import User, current_user


@contextmanager
def asked_by(tenant: str) -> Iterator[None]:
    token = current_user.set(User(tenant=tenant))
    try:
        yield
    finally:
        current_user.reset(token)


def start(tenant: str, work: Callable[[], Awaitable[object]]) -> asyncio.Task[object]:
    async def awaited() -> object:
        return await work()

    with asked_by(tenant):
        return asyncio.create_task(awaited())


async def test_a_tenant_with_a_queue_leaves_a_thread_for_another() -> None:
    threads, may_end = FairThreads("test"), threading.Event()
    many = [start("a", lambda: threads.run(may_end.wait, 30)) for _ in range(50)]
    await asyncio.sleep(0.05)
    assert await start("b", lambda: threads.run(lambda: current_user.get().tenant)) == "b"
    assert not any(task.done() for task in many)
    may_end.set()
    assert await asyncio.gather(*many) == [True] * 50


async def test_the_server_is_busy_while_any_threads_have_work() -> None:
    """A prompt that is rendered in a model's own threads delays a full garbage collection like any other work."""
    threads, may_end = FairThreads("test"), threading.Event()
    work = start("a", lambda: threads.run(may_end.wait, 30))
    await asyncio.sleep(0.05)
    assert FairThreads.any_is_busy()
    may_end.set()
    await work
    async with asyncio.timeout(30):
        while FairThreads.any_is_busy():
            await asyncio.sleep(0.01)


async def test_work_that_was_cancelled_while_it_waited_is_not_done() -> None:
    threads, may_end, done = FairThreads("test", threads=1), threading.Event(), list[int]()
    first = start("a", lambda: threads.run(may_end.wait, 30))
    others = [start("a", lambda number=number: threads.run(done.append, number)) for number in range(4)]  # type: ignore[misc]
    await asyncio.sleep(0.05)
    others[1].cancel()
    await asyncio.sleep(0)
    may_end.set()
    await first
    await asyncio.gather(*others, return_exceptions=True)
    assert done == [0, 2, 3] and others[1].cancelled()


async def test_an_exception_reaches_the_caller_and_frees_the_thread() -> None:
    threads = FairThreads("test", threads=1)
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    assert await threads.run(lambda: 2) == 2


async def test_closing_cancels_what_waits() -> None:
    threads, may_end = FairThreads("test", threads=1), threading.Event()
    first = start("a", lambda: threads.run(may_end.wait, 30))
    second = start("a", lambda: threads.run(list))
    await asyncio.sleep(0.05)
    threads.close()
    with pytest.raises(asyncio.CancelledError):
        await second
    may_end.set()
    assert await first is True


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 4))
def test_all_work_is_done_once_within_the_limits(tenants: list[str], count: int) -> None:
    threads, lock = FairThreads("test", threads=count), threading.Lock()
    running, most, most_of_one = Counter[str](), 0, 0
    done: list[int] = []

    def work(number: int, tenant: str) -> None:
        nonlocal most, most_of_one
        with lock:
            running[tenant] += 1
            most, most_of_one = max(most, running.total()), max(most_of_one, running[tenant])
        threading.Event().wait(0.001)
        with lock:
            running[tenant] -= 1
            done.append(number)

    async def main() -> None:
        work_of = [(lambda n=n, tenant=tenant: threads.run(work, n, tenant)) for n, tenant in enumerate(tenants)]
        await asyncio.gather(*(start(tenant, each) for tenant, each in zip(tenants, work_of, strict=True)))

    asyncio.run(main())
    assert sorted(done) == list(range(len(tenants))) and most <= count and most_of_one <= 1


async def test_long_work_on_the_event_loop_is_done_by_tenants_in_turn() -> None:
    parts: list[str] = []

    def lazy(tenant: str, count: int) -> Iterator[int]:
        for number in range(count * PART):
            if number % PART == 1:
                parts.append(tenant)
            yield number

    tasks = [start("a", lambda: collect_yielding(lazy("a", 4))) for _ in range(20)]
    await asyncio.sleep(0)
    assert parts == ["a"] * 20
    small = start("b", lambda: collect_yielding(lazy("b", 4)))
    assert await small == list(range(4 * PART))
    assert parts[20:].count("a") <= 2 * 4 + 2, "two parts at most before each of the other tenant's"
    turns = 0
    while not all(task.done() for task in tasks):
        before = len(parts)
        await asyncio.sleep(0)
        assert len(parts) <= before + 1, "one part in a turn of the event loop"
        turns += 1
    assert turns > 20 and parts.count("a") == 20 * 4
    await asyncio.gather(*tasks)


async def test_parts_of_messages_count_as_work() -> None:
    parts = [{"type": "text", "text": "a"}] * (PART - 1)
    messages = [UserMessage(id=str(number), content=parts) for number in range(6)]
    task, turns = asyncio.create_task(collect_yielding(messages)), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert await task == messages and turns >= len(messages)
