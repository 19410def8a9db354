"""Run managers that share through a real Redis: what goes wrong, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets

import pytest
from ag_ui.core import RunAgentInput

from adapters.errors import RequestError
from agent_server.runs import Ending, RunContext, RunManager
from agent_server.runs.sharing import Gateway
from agent_server.runs.sharing.streams import RedisKeys, RunPlace
from agent_server.settings import LogLimits, RunLimits, SharingLimits
from events.lifecycle import Verifier
from events.options import GenerationOptions
from events.vocabulary import Event, RunError, RunFinished, TextMessageContent, TextMessageEnd, TextMessageStart
from tests.blocking import nothing_blocks
from tests.gateways.redis_server import RedisServer, installed
from tests.runs.agents import read_all

OPTIONS = GenerationOptions(store=False)
LEASE = 0.6


class Talker:
    """An agent that says a word whenever it is let, until it is told to end."""

    name = "default"

    def __init__(self) -> None:
        self.words: asyncio.Queue[str | None] = asyncio.Queue()
        self.begun: list[str] = []

    async def run(self, context: RunContext) -> Ending:
        recorder = context.recorder
        self.begun.append(context.input.run_id)
        recorder.emit(TextMessageStart(message_id="m"))
        while (word := await self.words.get()) is not None:
            recorder.emit(TextMessageContent(message_id="m", delta=word))
        recorder.emit(TextMessageEnd(message_id="m"))
        return Ending()

    async def close(self) -> None:
        pass

    def say(self, *words: str | None) -> None:
        for word in words:
            self.words.put_nowait(word)


class Together:
    """Managers over one Redis, each with its talker."""

    def __init__(self, url: str) -> None:
        self.url, self.prefix = url, secrets.token_hex(4)
        self.managers: list[RunManager] = []
        self.talkers: list[Talker] = []

    async def add(
        self, *, logs: LogLimits | None = None, grace: float = 30.0, replay_runs: int = 4096, **limits
    ) -> RunManager:
        talker = Talker()
        wanted = {"redis_url": self.url, "redis_prefix": self.prefix, "lease": LEASE, "answer": 1.0, **limits}
        sharing = Gateway(SharingLimits(**wanted))
        manager = RunManager(
            {"default": talker},
            limits=RunLimits(grace=grace, log=logs or LogLimits(), replay_runs=replay_runs),
            new_id=lambda prefix: prefix + secrets.token_hex(4),
            sharing=sharing,
        )
        await manager.open()
        self.managers.append(manager)
        self.talkers.append(talker)
        return manager

    async def close(self) -> None:
        await asyncio.gather(*(manager.close(0) for manager in self.managers))


@pytest.fixture
def redis():
    """One that can be killed."""
    if not installed():
        pytest.skip("no redis-server on this machine")
    server = RedisServer().start()
    yield server
    server.close()


@pytest.fixture
async def together(redis):
    found = Together(redis.url)
    with nothing_blocks():
        yield found
    await found.close()


def ask(run: str = "r", thread: str = "t") -> RunAgentInput:
    return RunAgentInput(thread_id=thread, run_id=run, messages=[])


async def until(condition, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def die(manager: RunManager) -> None:
    """As kill -9 leaves it: nothing is said any more."""
    for task in manager.sharing._tasks:
        task.cancel()
    await asyncio.gather(*manager.sharing._tasks, return_exceptions=True)
    manager.sharing._tasks = []


async def elsewhere(manager: RunManager, run: str = "r"):
    """A run as another gateway knows it, once it does."""
    async with asyncio.timeout(10):
        while True:
            with contextlib.suppress(RequestError):
                return await manager.find(run)
            await asyncio.sleep(0.005)


def said(items: list[tuple[int, Event]]) -> str:
    return "".join(event.delta for _, event in items if isinstance(event, TextMessageContent))


async def test_a_foreign_tenant_finds_nothing(together):
    a, b = await together.add(), await together.add()
    await a.start(ask(), OPTIONS, tenant="x:y")
    assert (await b.find("r", "x:y")).id == "r"
    for tenant in ("", "x", "x:y:", "x%3Ay"):
        with pytest.raises(RequestError, match="no such run"):
            await b.find("r", tenant)
        assert await b.going_on("t", tenant) == [] and await b.ids_on_thread("t", tenant) == []


async def test_runs_go_on_while_redis_is_down_and_are_shared_again_afterwards(together, redis):
    a, b = await together.add(lease=10.0), await together.add(lease=10.0)
    run = await a.start(ask(), OPTIONS)
    together.talkers[0].say("one ")
    follower = asyncio.create_task(read_all(await elsewhere(b)))
    local = asyncio.create_task(read_all(run))
    await asyncio.sleep(0.1)
    redis.kill()
    together.talkers[0].say("two ")
    await until(lambda: not a.sharing.link.up and not b.sharing.link.up)
    alone = await a.start(ask("alone", "t2"), OPTIONS)
    await until(lambda: "alone" in together.talkers[0].begun)
    with pytest.raises(RequestError) as refused:
        await b.find("alone")
    assert (refused.value.kind, refused.value.retry_after) == ("unavailable", 1.0)
    with pytest.raises(RequestError, match="cannot reach each other"):
        await (b.sharing._follower.runs[("", "r")]).cancel()
    redis.start()  # empty
    found = await elsewhere(b, "alone")
    await found.cancel()
    assert alone.stopped_by == "cancelled"
    together.talkers[0].say("three", None)
    assert said(await follower) == said(await local) == "one two three"
    assert await follower == await local == await read_all(await b.find("r"))


async def test_a_reader_is_cut_when_redis_stays_away_and_told_where_to_read_on(together, redis):
    a, b = await together.add(), await together.add()
    await a.start(ask(), OPTIONS)
    together.talkers[0].say("one")
    run = await elsewhere(b)
    await until(lambda: run.log.last == 3)
    follower = asyncio.create_task(read_all(run))
    redis.kill()
    *seen, (number, word) = await follower
    assert [number for number, _ in seen] == [1, 2, 3]
    assert number == 3 and isinstance(word, RunError)
    assert (word.code, word.metadata) == ("connection", {"retryable": True, "nextEvent": 4})
    with pytest.raises(RequestError, match="can no longer be followed"):
        await run.wait()
    redis.start()
    together.talkers[0].say("two", None)
    assert said(await read_all(await elsewhere(b), 3)) == "two"


async def test_a_gateway_that_dies_is_ended_once_and_its_thread_passes_on(together):
    a, b, c = await together.add(), await together.add(), await together.add()
    await a.start(ask(), OPTIONS)
    together.talkers[0].say("one")
    followed = [await elsewhere(manager) for manager in (b, c)]
    readers = [asyncio.create_task(read_all(run)) for run in followed]
    await until(lambda: all(run.log.last == 3 for run in followed))
    second = await b.start(ask("second"), OPTIONS)
    assert [run.id for run in await c.going_on("t")] == ["r", "second"]
    await die(a)
    first, other = [await reader for reader in readers]
    assert first == other and [number for number, _ in first] == list(range(1, 6))
    verifier = Verifier(strict=True)
    for _, event in first:
        verifier.check(event)
    assert isinstance(first[-1][1], RunError) and first[-1][1].metadata["retryable"] is True
    await until(lambda: together.talkers[1].begun == ["second"])
    together.talkers[1].say(None)
    assert isinstance(await second.wait(), RunFinished)
    await until(lambda: not b.sharing._runs)
    assert await c.ids_on_thread("t") == []


async def test_a_gateway_that_was_only_slow_goes_on_alone_where_it_was_declared_dead(together):
    a, b = await together.add(), await together.add()
    run = await a.start(ask(), OPTIONS)
    await elsewhere(b)
    await die(a)
    assert isinstance((await read_all(await b.find("r")))[-1][1], RunError)
    await a.open()
    together.talkers[0].say("late", None)
    assert said(await read_all(run)) == "late" and isinstance(run.terminal, RunFinished)
    await asyncio.sleep(0.1)
    assert isinstance((await read_all(await b.find("r")))[-1][1], RunError)
    another = await a.start(ask("next"), OPTIONS)
    assert (await elsewhere(b, "next")).id == another.id


async def test_a_gateway_that_comes_back_before_it_was_missed_is_followed_on(together):
    a, b = await together.add(), await together.add()
    await a.start(ask(), OPTIONS)
    follower = asyncio.create_task(read_all(await elsewhere(b)))
    await a.sharing.link.call("DEL", RedisKeys(together.prefix).lease(a.sharing.id))
    together.talkers[0].say("still here", None)
    assert said(await follower) == "still here"


async def test_what_redis_keeps_of_a_run_is_bounded_and_the_rest_is_refused(together):
    a, b = await together.add(bytes=4000, entry=1000), await together.add()
    run = await a.start(ask(), OPTIONS)
    for _ in range(40):
        together.talkers[0].say("x" * 500)
        await asyncio.sleep(0.03)
    found = await elsewhere(b)
    await until(lambda: found.log.last == run.log.last)
    assert found.log.oldest > 30
    with pytest.raises(RequestError, match="no longer kept"):
        found.events(0)
    await die(a)
    items = await read_all(found, found.log.last - 1)
    assert [type(event) for _, event in items] == [TextMessageContent, TextMessageEnd, RunError]


async def test_a_gap_cuts_readers_instead_of_hiding_it(together):
    a, b = await together.add(logs=LogLimits(events=10)), await together.add()
    run = await a.start(ask(), OPTIONS)
    found = await elsewhere(b)
    follower = asyncio.create_task(read_all(found))
    together.talkers[0].say("a")
    await until(lambda: found.log.last == 3)
    await asyncio.sleep(0)
    for _ in range(50):  # faster than the publisher is given time for
        run.log.append(TextMessageContent(message_id="m", delta="b"))
    number, word = (await follower)[-1]
    assert (number, word.code, word.metadata["nextEvent"]) == (3, "connection", 4)


async def test_an_id_may_be_used_again_elsewhere_once_its_run_ended(together):
    a, b = await together.add(), await together.add()
    first = await a.start(ask(), OPTIONS)
    with pytest.raises(RequestError, match="this id is going on"):
        await b.start(ask(thread="other"), OPTIONS)
    assert b.active == 0
    together.talkers[0].say("first", None)
    await first.wait()
    await until(lambda: not a.sharing._runs)
    again = await b.start(ask(), OPTIONS)
    together.talkers[1].say("second", None)
    await again.wait()
    await until(lambda: not b.sharing._runs)
    assert said(await read_all(await a.find("r"))) == said(await read_all(await b.find("r"))) == "second"


async def test_a_shut_down_gateway_is_not_taken_for_dead_and_its_readers_are_told(together):
    a, b = await together.add(), await together.add()
    run = await a.start(ask(), OPTIONS)
    followed = asyncio.create_task(read_all(await elsewhere(b)))
    await asyncio.sleep(0.1)
    await b.close(0)
    assert (await followed)[-1][1].code == "connection"
    assert not run.finished and await a.sharing.link.call("SMEMBERS", RedisKeys(together.prefix).gateways) == {
        a.sharing.id.encode()
    }
    c = await together.add()
    ending = asyncio.create_task(read_all(await elsewhere(c)))
    await a.close(0)
    terminal = (await ending)[-1][1]
    assert (terminal.code, terminal.message) == ("unavailable", "The server stopped before the run was complete.")
    assert await c.sharing.link.call("SMEMBERS", RedisKeys(together.prefix).gateways) == {c.sharing.id.encode()}


async def test_a_control_that_nobody_answers_says_so(together):
    a, b = await together.add(), await together.add()
    await a.start(ask(), OPTIONS)
    run = await elsewhere(b)
    a.sharing._tasks[3].cancel()
    with pytest.raises(RequestError, match="does not answer"):
        await run.cancel()


async def test_a_run_forgotten_for_its_size_is_forgotten_in_redis_too(together):
    a, b = await together.add(replay_runs=1), await together.add()
    for name in ("r1", "r2"):
        run = await a.start(ask(name), OPTIONS)
        together.talkers[0].say("x", None)
        await run.wait()
    await until(lambda: not a.sharing._runs)
    await asyncio.sleep(0.1)
    assert said(await read_all(await b.find("r2"))) == "x"
    with pytest.raises(RequestError, match="no such run"):
        await b.find("r1")


async def test_whatever_is_kept_in_redis_dies_by_itself(together):
    a, b = await together.add(), await together.add()
    run = await a.start(ask(), OPTIONS)
    reader = asyncio.create_task(read_all(await elsewhere(b)))
    await asyncio.sleep(0.1)
    together.talkers[0].say(None)
    await run.wait()
    await reader
    await until(lambda: not a.sharing._runs)
    names = await a.sharing.link.call("KEYS", "*")
    lives = dict(zip(names, await a.sharing.link.all([("TTL", name) for name in names]), strict=True))
    assert {name for name, seconds in lives.items() if seconds < 0} == {RedisKeys(together.prefix).gateways.encode()}
    kept = [lives[RedisKeys(together.prefix).record("", "r").encode()]]
    kept += [seconds for name, seconds in lives.items() if b"events:" in name]
    assert len(kept) == 2 and max(kept) <= 600


def test_names_cannot_be_mistaken_for_one_another():
    keys = RedisKeys("p")
    assert keys.record("a:b", "c") != keys.record("a", "b:c") != keys.record("a%3Ab", "c")
    assert keys.events(RunPlace("g", "a", "b:c", "t", "d")) != keys.events(RunPlace("g", "a", "b", "t", "c:d"))


async def test_a_word_to_another_gateway_is_sent_however_busy_the_line_is(together):
    """One that comes while something is being sent goes out with the next round, without waiting for anything."""
    a, b = await together.add(), await together.add()
    for number in range(60):
        run = await a.start(ask(f"r{number}", f"t{number}"), OPTIONS)
        found = await elsewhere(b, run.id)
        reader = found.events()  # tells the run's gateway, and the control follows while that is being sent
        for _ in range(number % 6):
            await asyncio.sleep(0)
        assert await found.cancel()
        await reader.aclose()
