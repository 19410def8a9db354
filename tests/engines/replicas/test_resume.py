"""A generation outlives its engine: begun again before its first token, continued after it, never twice the same."""

import asyncio

import pytest

from agent_server.engine_protocol.protocol import Constraint, Delta, EngineError, Finished
from agent_server.engines.replicas import ReplicaSet
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from agent_server.settings import ReplicaSettings
from tests.engines.replicas.scripts import TEXT, Mute, attempt_of, collect, controls, failing, request, started, text
from tests.engines.replicas.virtual import run

FAULTS = {
    "error": Fault(action="error", kind="connection", retryable=True),
    "end": Fault(action="end"),
    "hang": Fault(action="hang"),
    "cancelled": Fault(action="cancelled"),
    "crash": Fault(action="crash"),
}


def at(fault, after):
    return Fault(action=fault.action, after=after, kind=fault.kind, retryable=fault.retryable)


@pytest.mark.parametrize("after", [0, 1, 20, len(TEXT.encode()) - 1])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_survived_at_every_place(fault, after):
    async def work():
        engines = await started(failing({0: at(FAULTS[fault], after)}))
        items = await collect(engines, request(max_tokens=100))
        end = items[-1]
        assert text(items) == TEXT
        assert isinstance(end, Finished) and sum(isinstance(item, Finished) for item in items) == 1
        assert (end.reason, end.resumed) == ("stop", int(after > 0))
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (3, len(TEXT.encode()))
        asked = [each for replica in engines.replicas for each in replica.engine.requests]
        assert sorted(each.request_id for each in asked) == ["one", "one.1"]
        counts = [replica.counts for replica in engines.replicas]
        assert (sum(c.retries for c in counts), sum(c.resumes for c in counts)) == (int(not after), int(after > 0))
        await engines.close()

    run(work())


@pytest.mark.parametrize(
    "sampling", [{}, {"stop": ("with",)}, {"stop": ("😀",)}, {"max_tokens": 7}, {"stop_token_ids": (ord("w"),)}]
)
def test_an_end_that_was_lost_is_found_without_another_token(sampling):
    """Everything came but the word of the end: the stop string, the limit or the stop token says it again."""

    async def work():
        whole = await collect(await started([Script(text=TEXT)], 1), request(**sampling))
        engines = await started([Script(text=TEXT)], engine={"made": Mute})
        items = await collect(engines, request(**sampling))
        assert items[:-1] == whole[:-1]
        assert (items[-1].reason, items[-1].stop, items[-1].usage, items[-1].resumed) == (
            whole[-1].reason,
            whole[-1].stop,
            whole[-1].usage,
            1,
        )

    run(work())


def test_a_stop_string_across_the_seam():
    async def work():
        stopping = "an é and"
        for after in range(1, 30):
            engines = await started(failing({0: Fault(action="end", after=after)}))
            items = await collect(engines, request(stop=(stopping,)))
            assert (text(items), items[-1].stop) == (TEXT[: TEXT.index(stopping)], stopping), after

    run(work())


def test_what_may_not_go_on_ends_with_the_error_and_all_that_it_had():
    async def work(asked, **settings):
        engines = await started(failing({0: Fault(action="end", after=5)}), **settings)
        for replica in engines.replicas:
            replica.engine._info = plain(replica.engine.info)
        items = []
        with pytest.raises(EngineError) as raised:
            await collect(engines, asked, items)
        assert (text(items), raised.value.kind, raised.value.retryable) == (TEXT[:5], "connection", True)

    import msgspec

    def plain(info):
        return msgspec.structs.replace(info, continues="plain", supports_constraints=True)

    run(work(request(constraint=Constraint(kind="regex", value=".*"))))
    run(work(request(seed=1, temperature=1.0)))
    run(work(request(presence_penalty=1.0)))
    run(work(request(), resume=False))


def test_what_never_works_is_given_up():
    async def work():
        tries = []

        def script(asked):
            tries.append(asked.request_id)
            return Script(text=TEXT, fault=Fault(action="crash", after=3))

        engines = await started(script, count=5, attempts=3)
        with pytest.raises(EngineError) as raised:
            await collect(engines, request())
        assert raised.value.kind == "internal"
        assert tries == ["one", "one.1", "one.2"]

    run(work())


def test_a_request_at_fault_is_not_tried_again():
    async def work():
        engines = await started([Script(text=TEXT)])
        with pytest.raises(EngineError) as raised:
            await collect(engines, request(prompt=()))
        assert raised.value.kind == "invalid_request"
        assert all(replica.breaker.state == "closed" and not replica.counts.failures for replica in engines.replicas)

    run(work())


def test_a_cancel_is_never_tried_again():
    async def work():
        engines = await started([Script(text=TEXT, delay=1.0)])
        stream = engines.generate(request())
        await anext(stream)
        await stream.aclose()
        waiting = asyncio.create_task(collect(engines, request("two")))
        await asyncio.sleep(2.5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(5)
        assert [each.request_id for r in engines.replicas for each in r.engine.requests] == ["one", "two"]
        assert [name for r in engines.replicas for name in r.engine.cancelled] == ["one", "two"]
        assert [replica.in_flight for replica in engines.replicas] == [0, 0]
        assert not engines._flows and not engines._attempts

    run(work())


def test_a_pause_a_modification_and_their_words_survive():
    """Asked before the fault, during it and after it: acknowledged once each, in order, at the right place."""

    async def work():
        engines = await started(failing({0: Fault(action="hang", after=4)}), idle=10.0)
        stream = engines.generate(request())
        seen = [await anext(stream) for _ in range(4)]
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        engines._attempts[engines._flows["one"]].replica.engine.running["one"].pending.clear()
        assert await engines.modify("one", {"max_tokens": 12})
        assert await engines.pause("one")
        await asyncio.sleep(60)
        assert not reading.done()  # it is paused: silence is no fault
        first = next(r.engine for r in engines.replicas if "one" in r.engine.running)
        first.crash()
        seen.append(await reading)
        seen.append(await anext(stream))
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(60)
        assert not reading.done()
        assert await engines.resume("one")
        seen.append(await reading)
        seen += [item async for item in stream]
        assert controls(seen) == [("modified", 4), ("paused", 4), ("resumed", 4)]
        assert text(seen) == TEXT[:12]
        assert (seen[-1].reason, seen[-1].resumed) == ("length", 1)

    run(work())


def test_controls_reach_the_replica_that_generates():
    async def work():
        engines = await started([Script(text="ab", reason=None, delay=0.5)], 3)
        stream = engines.generate(request())
        assert not await engines.pause("one")
        seen = [await anext(stream)]
        assert await engines.pause("one")
        seen.append(await anext(stream))
        assert await engines.pause("one")
        assert await engines.resume("one")
        seen += [await anext(stream), await anext(stream)]
        assert await engines.modify("one", {"max_tokens": 3})
        seen += [item async for item in stream]
        assert controls(seen) == [("paused", 1), ("resumed", 1), ("modified", 2)]
        assert text(seen) == "aba"
        with pytest.raises(EngineError):
            stream = engines.generate(request("two"))
            await anext(stream)
            await engines.modify("two", {"temperature": -1})

    run(work())


def test_a_set_of_sets_goes_on_too():
    async def work():
        inner = [
            ReplicaSet(
                [ScriptedEngine(failing({0: Fault(action="end", after=5), 1: Fault(action="end", after=9)}))],
                ReplicaSettings(attempts=1),
            )
            for _ in range(3)
        ]
        engines = ReplicaSet(inner)
        await engines.start()
        await asyncio.sleep(1)
        items = await collect(engines, request())
        assert (text(items), items[-1].resumed) == (TEXT, 2)

    run(work())


def test_logprobs_and_tokens_are_those_of_an_undisturbed_run():
    async def work():
        whole = await collect(await started([Script(text=TEXT)], 1), request(logprobs=2))
        engines = await started(
            lambda asked: Script(text=TEXT, chunk=3, fault=None if attempt_of(asked) else Fault(action="end", after=7))
        )
        items = await collect(engines, request(logprobs=2))

        def tokens(found):
            return [token for item in found if isinstance(item, Delta) for token in item.tokens]

        assert tokens(items) == tokens(whole)

    run(work())
