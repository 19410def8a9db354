"""Which replica gets a generation: load, cached prefixes, caps, queue, circuits, draining, health."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.replicas import ReplicaSet, distinct
from agent_server.engines.replicas.balancer import BLOCK_TOKENS, MAX_BITS, Prefixes, chain_of
from agent_server.engines.replicas.replica import Breaker
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from agent_server.settings import ReplicaSettings
from tests.engines.replicas.scripts import TEXT, collect, request, started, text
from tests.engines.replicas.virtual import run

LONG = Script(text="x", reason=None, delay=1.0)
PROMPT = tuple(range(100, 100 + 4 * BLOCK_TOKENS))


def in_flight(engines):
    return [replica.in_flight for replica in engines.replicas]


def begin(engines, *names, **options):
    """Generations that stay open, as tasks."""
    return [asyncio.create_task(collect(engines, request(name, **options))) for name in names]


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# prefixes


@given(st.lists(st.integers(0, 2**31), max_size=200), st.lists(st.integers(0, 2**31), max_size=200))
def test_chains_agree_exactly_as_far_as_whole_blocks_do(left, right):
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    pairs = list(zip(chain_of("", left), chain_of("", right), strict=False))
    assert [a == b for a, b in pairs] == [number < common // BLOCK_TOKENS for number in range(len(pairs))]
    assert len(chain_of("", left)) == len(left) // BLOCK_TOKENS


def test_tenants_share_no_prefix():
    assert not set(chain_of("a", PROMPT)) & set(chain_of("b", PROMPT))


def test_prefixes_are_known_by_replica_bounded_and_forgotten():
    prefixes = Prefixes(6)
    chain = chain_of("", PROMPT)
    prefixes.add(chain, 0)
    prefixes.add(chain[:2], 2)
    assert prefixes.shares(chain, 3) == [1.0, 0.0, 0.5]
    prefixes.add(chain_of("other", PROMPT), 1)
    assert len(prefixes) == 6
    assert prefixes.shares(chain, 3) == [0.5, 0.0, 0.5]  # the ends of prompts go first
    prefixes.forget(2)
    assert prefixes.shares(chain, 3) == [0.5, 0.0, 0.0]
    prefixes.add(chain, 2)
    assert prefixes.shares(chain, 3) == [0.5, 0.0, 1.0]
    for _ in range(MAX_BITS):
        prefixes.forget(1)
        prefixes.add(chain, 1)
    assert prefixes.shares(chain, 3) == [0.0, 1.0, 0.0]
    assert prefixes.shares((), 2) == [0.0, 0.0]


def test_a_conversation_goes_back_to_where_its_prefix_is():
    async def work():
        engines = await started([Script(text=TEXT)], 4)
        first = request("first", PROMPT)
        await collect(engines, first)
        (home,) = [r.number for r in engines.replicas if r.engine.requests]
        for turn in range(6):
            longer = (*PROMPT, *TEXT.encode(), *range(turn * 40))
            await collect(engines, request(f"turn-{turn}", longer))
        assert [len(r.engine.requests) for r in engines.replicas] == [7 if n == home else 0 for n in range(4)]
        strangers = [request(f"other-{n}", tuple(range(n, n + 200)), tenant=str(n)) for n in range(8)]
        for stranger in strangers:
            await collect(engines, stranger)
        assert sorted(len(r.engine.requests) for r in engines.replicas) != [0, 0, 0, 15]

    run(work())


def test_a_cached_prefix_is_worth_so_many_generations_and_no_more():
    async def work():
        engines = await started([LONG], 2, affinity=3.0)
        tasks = begin(engines, *(f"{n}" for n in range(6)), prompt=PROMPT)
        await asyncio.sleep(0.1)
        assert sorted(in_flight(engines)) == [2, 4] or sorted(in_flight(engines)) == [3, 3]
        await end(tasks)
        engines = await started([LONG], 2, affinity=0.0)
        tasks = begin(engines, *(f"{n}" for n in range(6)), prompt=PROMPT)
        await asyncio.sleep(0.1)
        assert in_flight(engines) == [3, 3]
        await end(tasks)
        assert in_flight(engines) == [0, 0]

    run(work())


# caps and the queue


def test_a_full_replica_gets_no_more_and_who_waits_comes_in_order():
    async def work():
        engines = await started([Script(text="abcd", delay=1.0)], 2, in_flight=2, queued=3)
        order = []

        async def one(name):
            await collect(engines, request(name))
            order.append(name)

        tasks = [asyncio.create_task(one(str(n))) for n in range(7)]
        await asyncio.sleep(0.1)
        assert (in_flight(engines), engines.balancer.waiting) == ([2, 2], 3)
        with pytest.raises(EngineError) as raised:
            await collect(engines, request("too many"))
        assert (raised.value.kind, raised.value.retryable) == ("overloaded", True)
        tasks[5].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (sorted(order[:4]), sorted(order[4:])) == (["0", "1", "2", "3"], ["4", "6"])
        assert (in_flight(engines), engines.balancer.waiting) == ([0, 0], 0)
        assert max(len(r.engine.requests) for r in engines.replicas) == 3

    run(work())


def test_an_overloaded_replica_sends_it_elsewhere_and_keeps_its_circuit():
    async def work():
        engines = ReplicaSet([ScriptedEngine([LONG], max_running=1, max_queued=0), ScriptedEngine([Script(text=TEXT)])])
        await engines.start()
        await asyncio.sleep(0)
        tasks = begin(engines, "a")
        await asyncio.sleep(0.1)
        engines.drain("1")
        waiting = asyncio.create_task(collect(engines, request("b")))
        await asyncio.sleep(0.05)
        engines.drain("1", False)
        assert text(await waiting) == TEXT
        assert engines.replicas[0].breaker.state == "closed"
        await end(tasks)

    run(work())


# circuits


def test_a_circuit_opens_tries_once_and_closes():
    breaker = Breaker(3, 1.0, 3.0)
    for _ in range(2):
        breaker.record_failure(0.0)
    assert breaker.allows(0.0)
    breaker.record_failure(0.0)
    breaker.record_failure(0.0)
    assert (breaker.state, breaker.allows(0.9), breaker.allows(1.0)) == ("open", False, True)
    assert breaker.begin()
    assert not breaker.allows(1.0)  # one on trial
    breaker.give_up()
    assert breaker.allows(1.0) and breaker.begin()
    breaker.record_failure(1.0)
    assert (breaker.allows(2.9), breaker.allows(3.0)) == (False, True)  # twice as long
    breaker.begin()
    breaker.record_failure(3.0)
    assert (breaker.allows(5.9), breaker.allows(6.0)) == (False, True)  # but never longer than that
    breaker.begin()
    breaker.record_first_token()
    assert breaker.state == "closed" and breaker.allows(6.0)
    breaker.record_failure(6.0)
    assert breaker.state == "open"  # one more failure, and it opens again
    breaker.record_success()
    breaker.record_failure(7.0)
    assert (breaker.state, breaker.begin()) == ("closed", False)


def test_a_replica_that_loses_everything_is_left_alone_and_tried_again():
    broken = True

    def script(asked):
        return Script(text=TEXT, fault=Fault(action="end") if broken else None)

    async def work():
        nonlocal broken
        engines = ReplicaSet(
            [ScriptedEngine(script), ScriptedEngine([Script(text=TEXT)])], ReplicaSettings(cooldown=5.0, attempts=9)
        )
        await engines.start()
        await asyncio.sleep(0)
        for number in range(12):
            assert text(await collect(engines, request(str(number)))) == TEXT
        bad = engines.replicas[0]
        assert (bad.breaker.state, bad.counts.failures, bad.counts.retries) == ("open", 3, 3)
        assert engines.status.state == "degraded" and "left alone" in engines.status.message
        broken = False
        await asyncio.sleep(5.0)
        for number in range(4):
            await collect(engines, request(f"later-{number}"))
        assert bad.breaker.state == "closed" and engines.status.state == "ready"

    run(work())


# draining and health


def test_a_draining_replica_ends_what_it_is_at_and_gets_nothing_new():
    async def work():
        engines = await started([Script(text=TEXT, delay=0.1)], 2, names=("a", "b"))
        tasks = begin(engines, "1", "2")
        await asyncio.sleep(0.05)
        assert engines.drain("a") and not engines.drain("unknown")
        for number in range(3):
            await collect(engines, request(f"more-{number}"))
        answers = await asyncio.gather(*tasks)
        assert all(text(items) == TEXT and items[-1].resumed == 0 for items in answers)
        assert [len(r.engine.requests) for r in engines.replicas] == [1, 4]
        assert [row["condition"] for row in engines.describe()] == ["draining", "ready"]
        assert (engines.status.state, engines.status.message) == ("degraded", "1 of 2 replicas are ready. a: draining")
        engines.drain("b")
        assert engines.status.state == "starting"
        engines.drain("a", False)
        engines.drain("b", False)
        assert engines.status.state == "ready"

    run(work())


def test_without_any_replica_a_generation_waits_and_then_is_told():
    async def work():
        engines = await started([Script(text=TEXT)], 2, wait=5.0)
        for replica in engines.replicas:
            replica.engine.crash()
        assert engines.status.state == "starting"
        waiting = asyncio.create_task(collect(engines, request("patient")))
        await asyncio.sleep(3.0)
        await engines.replicas[1].engine.start()
        assert text(await waiting) == TEXT
        engines.replicas[1].engine.crash()
        began = asyncio.get_running_loop().time()
        with pytest.raises(EngineError) as raised:
            await collect(engines, request("in vain"))
        assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)
        assert 5.0 <= asyncio.get_running_loop().time() - began <= 8.0

    run(work())


def test_a_set_starts_with_its_first_replica_and_keeps_trying_the_others():
    class Late(ScriptedEngine):
        tries = 0

        async def start(self):
            self.tries += 1
            if self.tries < 4:
                raise EngineError("unavailable", "Connection refused.", retryable=True)
            await super().start()

    async def work():
        engines = ReplicaSet(
            [Late([Script(text=TEXT)]), ScriptedEngine([Script(text=TEXT)], load_seconds=2.0)], names=("late", "slow")
        )
        loading = asyncio.create_task(engines.start())
        await asyncio.sleep(0.5)
        with pytest.raises(EngineError):
            _ = engines.info
        assert engines.status.state == "loading" and 0 < engines.status.progress < 1
        assert "late: starting: Connection refused." in engines.status.message
        await loading
        assert engines.status.state == "degraded"
        assert engines.info.model == "scripted"
        await asyncio.sleep(10)
        assert engines.status.state == "ready"
        await engines.close()
        assert engines.status.state == "stopped"
        with pytest.raises(EngineError):
            await collect(engines, request())

    run(work())


def test_a_set_that_can_never_work_says_so():
    async def work():
        failure = EngineError("unavailable", "There is no such model.")
        engines = ReplicaSet([ScriptedEngine(failure=failure), ScriptedEngine(failure=failure)])
        with pytest.raises(EngineError) as raised:
            await engines.start()
        assert raised.value.message == "0: failed: There is no such model.; 1: failed: There is no such model."
        assert engines.status.state == "failed"

    run(work())


def test_replicas_of_another_vocabulary_are_not_used_and_the_least_is_promised():
    from agent_server.engine_protocol.detokenizer import ByteVocabulary

    async def work():
        engines = ReplicaSet(
            [
                ScriptedEngine(context_length=500, supports_constraints=True),
                ScriptedEngine(context_length=300),
                ScriptedEngine(vocabulary=ByteVocabulary(())),
            ]
        )
        await engines.start()
        await asyncio.sleep(1)
        assert (engines.info.context_length, engines.info.supports_constraints, engines.info.continues) == (
            300,
            False,
            "exact",
        )
        assert engines.status.state == "degraded" and "256 tokens" in engines.status.message

    run(work())


def test_closing_ends_what_runs_and_what_waits():
    async def work():
        engines = await started([LONG], 1, in_flight=1)
        tasks = begin(engines, "runs", "waits")
        await asyncio.sleep(0.5)
        await engines.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [result.kind for result in results] == ["unavailable", "unavailable"]

    run(work())


def test_names_are_told_apart():
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]
