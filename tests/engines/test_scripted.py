"""The scripted engine keeps the contract, and breaks it exactly where its script says so."""

import asyncio

import pytest

from agent_server.engine_protocol.protocol import Control, Delta, EngineError, Finished, GenerationRequest
from agent_server.engines.scripted import Fault, Script, ScriptedEngine, load_scripts
from events.options import SamplingParams


def request(name="one", prompt=(1, 2, 3), **sampling):
    return GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**sampling))


async def engine(*scripts, **options):
    made = ScriptedEngine(scripts, **options)
    await made.start()
    return made


async def collect(made, asked):
    return [item async for item in made.generate(asked)]


def text(items):
    return "".join(token.text for item in items if isinstance(item, Delta) for token in item.tokens)


async def test_a_script_is_replayed_with_its_end_and_usage():
    made = await engine(Script(text="Hi é", chunk=2, cached_tokens=2))
    items = await collect(made, request())
    assert text(items) == "Hi é"
    assert [len(item.tokens) for item in items[:-1]] == [2, 2, 1]
    assert items[-1].reason == "stop"
    assert (items[-1].usage.prompt_tokens, items[-1].usage.completion_tokens, items[-1].usage.cached_tokens) == (
        3,
        5,
        2,
    )


async def test_max_tokens_and_repetition():
    made = await engine(Script(text="ab", reason=None))
    items = await collect(made, request(max_tokens=5))
    assert (text(items), items[-1].reason) == ("ababa", "length")


async def test_stop_strings_stop_tokens_and_logprobs():
    made = await engine(Script(text="one two three"))
    items = await collect(made, request(stop=("two",)))
    assert (text(items), items[-1].stop) == ("one ", "two")
    items = await collect(made, request(stop_token_ids=(ord("t"),), logprobs=2))
    assert (text(items), items[-1].stop, items[-1].usage.completion_tokens) == ("one ", ord("t"), 5)
    token = items[0].tokens[0]
    assert token.logprob == -0.5
    assert [alternative.text for alternative in token.alternatives] == ["o", "p"]


async def test_a_held_stop_prefix_comes_out_at_the_end():
    items = await collect(await engine(Script(text="one tw")), request(stop=("two",)))
    assert (text(items), items[-1].stop) == ("one tw", None)


@pytest.mark.parametrize("action", ["error", "crash"])
async def test_faults_that_raise(action):
    made = await engine(Script(text="abcdef", fault=Fault(action=action, after=3, kind="connection", retryable=True)))
    seen = []
    with pytest.raises(EngineError if action == "error" else RuntimeError) as raised:
        async for item in made.generate(request()):
            seen += [item]
    assert text(seen) == "abc"
    if action == "error":
        assert (raised.value.kind, raised.value.retryable) == ("connection", True)


async def test_an_end_without_a_word_and_an_unasked_cancel():
    made = await engine(
        Script(text="abcdef", fault=Fault(action="end", after=2)),
        Script(text="abcdef", fault=Fault(action="cancelled", after=2)),
    )
    assert not any(isinstance(item, Finished) for item in await collect(made, request()))
    assert (await collect(made, request()))[-1].reason == "cancelled"


async def test_a_hang_ends_when_the_engine_crashes():
    made = await engine(Script(text="abc", fault=Fault(action="hang", after=1)))
    task = asyncio.create_task(collect(made, request()))
    await asyncio.sleep(0.01)
    assert not task.done()
    made.crash()
    with pytest.raises(EngineError) as raised:
        await task
    assert raised.value.kind == "connection"


async def test_pause_resume_and_modify_are_acknowledged_in_the_stream():
    made = await engine(Script(text="ab", reason=None))
    stream = made.generate(request())
    assert text([await anext(stream)]) == "a"
    assert await made.pause("one")
    assert await anext(stream) == Control(action="paused", position=1)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    assert await made.resume("one")
    assert await waiting == Control(action="resumed", position=1)
    assert text([await anext(stream)]) == "b"
    assert await made.modify("one", {"max_tokens": 3})
    assert await anext(stream) == Control(action="modified", position=2)
    assert text([await anext(stream)]) == "a"
    assert (await anext(stream)).reason == "length"
    assert not await made.pause("unknown")


async def test_a_modification_out_of_range_is_refused_and_changes_nothing():
    made = await engine(Script(text="ab", reason=None))
    stream = made.generate(request())
    await anext(stream)
    for changes, param in (({"temperature": -1}, "temperature"), ({"nonsense": 1}, "nonsense")):
        with pytest.raises(EngineError) as raised:
            await made.modify("one", changes)
        assert raised.value.param == param
    await stream.aclose()


async def test_closing_the_stream_frees_the_slot():
    made = await engine(Script(text="ab", reason=None), max_running=1)
    stream = made.generate(request())
    await anext(stream)
    await stream.aclose()
    assert made.cancelled == ["one"]
    assert made.metrics()["num_requests_running"] == 0
    assert (await collect(made, request(max_tokens=1)))[-1].reason == "length"


async def test_a_full_queue_is_overload():
    made = await engine(Script(text="ab", reason=None), max_running=1, max_queued=1)
    first, second = made.generate(request("one")), made.generate(request("two"))
    await anext(first)
    waiting = asyncio.ensure_future(anext(second))
    await asyncio.sleep(0)
    with pytest.raises(EngineError) as raised:
        await collect(made, request("three"))
    assert (raised.value.kind, raised.value.retryable) == ("overloaded", True)
    await first.aclose()
    assert text([await waiting]) == "a"
    await second.aclose()


async def test_length_errors_name_the_parameter():
    made = await engine(Script(text="ab"), context_length=4)
    for asked, param in ((request(prompt=(1,) * 4), "prompt"), (request(max_tokens=2), "max_tokens")):
        with pytest.raises(EngineError) as raised:
            await collect(made, asked)
        assert (raised.value.kind, raised.value.param) == ("context_length_exceeded", param)


async def test_loading_failing_and_closing():
    made = ScriptedEngine([Script(text="ab", reason=None)], load_seconds=0.01)
    with pytest.raises(EngineError, match="starting"):
        await collect(made, request())
    await made.start()
    stream = made.generate(request())
    await anext(stream)
    await made.close()
    with pytest.raises(EngineError) as raised:
        async for _ in stream:
            pass
    assert raised.value.kind == "unavailable"
    broken = ScriptedEngine(failure=EngineError("out_of_memory", "Too little memory."))
    with pytest.raises(EngineError, match="Too little memory"):
        await broken.start()
    assert broken.status.state == "failed"


def test_scripts_from_a_file():
    assert load_scripts(b'{"text": "x", "fault": {"action": "hang"}}')[0].fault.action == "hang"
    assert len(load_scripts(b'[{"text": "x"}, {"tokens": [1, 2]}]')) == 2


class Steps:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0
        self.waiting = []

    def time(self):
        return self.now

    def call_later(self, delay, callback):
        self.waiting.append(callback)
        return asyncio.Handle(callback, (), asyncio.get_running_loop())

    def pass_to(self, now):
        self.now = now
        waiting, self.waiting = self.waiting, []
        for wake in waiting:
            wake()


async def take(items, clock, now):
    """The next item, at that time."""
    taking = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    clock.pass_to(now)
    return await taking


async def test_a_paced_engine_does_not_wait_for_who_takes_its_tokens():
    clock = Steps()
    made = await engine(Script(text="abcdefghij", delay=1.0, paced=True), clock=clock)
    items = made.generate(request())
    assert text([await take(items, clock, 0.0)]) == "a"
    assert text([await take(items, clock, 1.0)]) == "b"
    assert text([await take(items, clock, 4.5)]) == "cde"
    assert text([await take(items, clock, 5.0)]) == "f"
    assert text([await take(items, clock, 99.0)]) == "ghij"
    assert (await anext(items)).reason == "stop"


async def test_a_paused_engine_makes_nothing_meanwhile():
    clock = Steps()
    made = await engine(Script(text="abcd", delay=1.0, paced=True), clock=clock)
    items = made.generate(request())
    assert text([await take(items, clock, 0.0)]) == "a"
    assert await made.pause("one")
    assert await anext(items) == Control(action="paused", position=1)
    taking = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    clock.now = 50.0
    assert await made.resume("one")
    assert await taking == Control(action="resumed", position=1)
    assert text([await anext(items)]) == "b"
    await items.aclose()


async def test_a_long_life_keeps_the_last_requests_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("agent_server.engines.scripted.MAX_RECORDED_REQUESTS", 3)
    made = await engine(*[Script(text="a")] * 9)
    for number in range(9):
        await collect(made, request(f"r{number}"))
    assert [each.request_id for each in made.requests] == ["r6", "r7", "r8"]
