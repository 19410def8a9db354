"""A worker over real HTTP: its stream, its last word, its errors, its controls and its end."""

import asyncio
import contextlib

import httpx
import msgspec
import pytest

from agent_server.engine_protocol.protocol import Control, Delta, EngineError, Finished
from agent_server.engines.scripted import Fault, Script, ScriptedEngine
from agent_server.engines.upstream import parse_address
from agent_server.engines.worker.client import DiscoveredEngine, WorkerEngine
from agent_server.engines.worker.frames import WorkerFrames, fields, item_of
from agent_server.http.auth import Keys
from agent_server.http.worker_app import Worker, worker_app
from agent_server.settings import UpstreamSettings
from tests.contract.engines import listening
from tests.engines.replicas.scripts import TEXT, collect, controls, request, text

PLAIN = (Script(text=TEXT),)
SETTINGS = UpstreamSettings(connect=2.0, idle=1.0, first=5.0)


@contextlib.asynccontextmanager
async def serving(scripts=PLAIN, keys=(), drain=0.5, **options):
    """A worker and a started client of it."""
    worker = Worker(ScriptedEngine(scripts, **options), drain=drain)
    async with listening(worker_app(worker, Keys(keys))) as url:
        await worker.load()
        client = WorkerEngine(parse_address(f"worker+{url}", keys[0] if keys else ""), SETTINGS)
        await client.start()
        try:
            yield worker, client
        finally:
            await client.close()
            await worker.close()


async def until(condition, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def raw(client, path, method="GET", **options):
    async with httpx.AsyncClient() as http:
        return await http.request(method, client.address.url + path, **options)


async def test_what_the_engine_says_arrives_as_it_was_said():
    scripts = (Script(text=TEXT, cached_tokens=2),)
    async with serving(scripts) as (worker, client):
        asked = request(stop=("😀",), logprobs=1, logit_bias={7: 1.5}, tenant="t", generated=tuple(b"A sh"))
        direct = ScriptedEngine(scripts)
        await direct.start()
        there, here = await collect(client, asked), await collect(direct, asked)
        assert there[:-1] == here[:-1]
        assert msgspec.structs.replace(there[-1], timings=here[-1].timings) == here[-1]
        assert worker.engine.requests == [asked]
        assert client.info == worker.engine.info
        assert client.metrics()["num_requests_running"] == 0


async def test_the_last_frame_is_complete_final_and_holds_nothing():
    async with serving() as (_, client):
        answer = await raw(client, "/engine/generate", "POST", content=msgspec.json.encode(request()))
        assert answer.headers["content-type"] == "text/event-stream"
        frames = [fields(frame) for frame in WorkerFrames().feed(answer.content)]
        assert frames[-1] == (b"complete_final", b"")
        assert {event for event, _ in frames[:-1]} == {b""}
        items = [item_of(data) for _, data in frames[:-1]]
        assert isinstance(items[-1], Finished) and text(items) == TEXT


@pytest.mark.parametrize("cut", range(1, 100, 7))
def test_frames_do_not_depend_on_how_the_bytes_are_cut(cut):
    whole = b'data: {"a":1}\n\nevent: ping\n\nevent: error\ndata: {"kind":"x"}\n\nevent: complete_final\n\n'
    splitter = WorkerFrames()
    frames = [f for at in range(0, len(whole), cut) for f in splitter.feed(whole[at : at + cut])]
    assert [fields(frame) for frame in frames] == [
        (b"", b'{"a":1}'),
        (b"ping", b""),
        (b"error", b'{"kind":"x"}'),
        (b"complete_final", b""),
    ]


@pytest.mark.parametrize(
    "fault, kind, retryable",
    [
        (Fault(action="error", after=3, kind="out_of_memory"), "out_of_memory", False),
        (Fault(action="error", after=3, kind="overloaded", retryable=True), "overloaded", True),
        (Fault(action="crash", after=3), "internal", True),
        (Fault(action="end", after=3), "connection", True),
    ],
)
async def test_every_failure_arrives_as_what_it_is(fault, kind, retryable):
    async with serving([Script(text=TEXT, fault=fault)]) as (_, client):
        items = []
        with pytest.raises(EngineError) as raised:
            await collect(client, request(), items)
        assert (text(items), raised.value.kind, raised.value.retryable) == (TEXT[:3], kind, retryable)


async def test_a_request_that_cannot_be_is_refused_with_its_reason():
    async with serving(context_length=10) as (_, client):
        with pytest.raises(EngineError) as raised:
            await collect(client, request(prompt=range(20)))
        assert (raised.value.kind, raised.value.param) == ("context_length_exceeded", "prompt")
        for body in (b"", b"{", b'{"request_id": 1}', b"\xff"):
            answer = await raw(client, "/engine/generate", "POST", content=body)
            assert (answer.status_code, answer.json()["kind"]) == (400, "invalid_request")


async def test_finished_without_the_last_word_is_a_lost_stream(monkeypatch):
    monkeypatch.setattr("agent_server.http.worker_app.COMPLETE_FINAL", b"")
    async with serving() as (_, client):
        items = []
        with pytest.raises(EngineError) as raised:
            await collect(client, request(), items)
        assert (raised.value.kind, raised.value.retryable) == ("connection", True)
        assert text(items) == TEXT and not any(isinstance(item, Finished) for item in items)


async def test_leaving_the_stream_frees_the_slot():
    async with serving([Script(text="ab", reason=None, delay=0.01)]) as (worker, client):
        stream = client.generate(request())
        await anext(stream)
        assert (await raw(client, "/engine/status")).json()["running"] == 1
        await stream.aclose()
        await until(lambda: not worker.engine.running, 1.0)
        assert worker.engine.cancelled == ["one"]


async def test_silence_is_told_from_work(monkeypatch):
    """A worker that says nothing at all is lost; one that is paused, or waits for its first token, is not."""
    monkeypatch.setattr("agent_server.http.worker_app.PING_SECONDS", 0.2)
    async with serving([Script(text="ab", first_delay=1.5, reason=None, delay=0.01)]) as (_, client):
        stream = client.generate(request())
        seen = [await anext(stream)]
        assert await client.pause("one")
        while not controls(seen):
            seen.append(await anext(stream))
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(1.5)
        assert not reading.done()
        assert await client.resume("one")
        assert await reading == Control(action="resumed", position=controls(seen)[0][1])
        assert await client.modify("one", {"max_tokens": 500})
        with pytest.raises(EngineError):
            await client.modify("one", {"temperature": -1})
        await stream.aclose()
        assert not await client.pause("unknown")


async def test_a_worker_that_hangs_is_given_up():
    async with serving([Script(text="ab", fault=Fault(action="hang", after=1))]) as (_, client):
        items = []
        with pytest.raises(EngineError) as raised:
            await collect(client, request(), items)  # the worker's pings come every 5 s, the limit is 1 s
        assert (text(items), raised.value.kind, raised.value.retryable) == ("a", "timeout", True)


async def test_cancel_at_the_worker_ends_the_stream_properly():
    async with serving([Script(text="ab", reason=None, delay=0.01)]) as (worker, client):
        reading = asyncio.create_task(collect(client, request()))
        await until(lambda: worker.engine.running)
        await asyncio.sleep(0.05)
        command = {"request_id": "one", "action": "cancel"}
        assert (await raw(client, "/engine/control", "POST", json=command)).json() == {"done": True}
        items = await reading
        count = sum(len(item.tokens) for item in items if isinstance(item, Delta))
        assert (items[-1].reason, items[-1].usage.completion_tokens) == ("cancelled", count)
        assert (await raw(client, "/engine/control", "POST", json=command)).json() == {"done": False}


async def test_draining_refuses_what_is_new_and_ends_what_is_not():
    async with serving([Script(text=TEXT, delay=0.01)]) as (worker, client):
        running = asyncio.create_task(collect(client, request()))
        await until(lambda: worker.engine.running)
        answer = await raw(client, "/engine/drain", "POST")
        assert (answer.json()["draining"], answer.json()["status"]["state"]) == (True, "stopped")
        assert (await raw(client, "/ready")).status_code == 503
        with pytest.raises(EngineError) as raised:
            await collect(client, request("late"))
        assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)
        assert text(await running) == TEXT
        await until(lambda: client.status.state == "stopped")
        await raw(client, "/engine/undrain", "POST")
        await until(lambda: client.status.state == "ready")
        assert text(await collect(client, request("again"))) == TEXT


async def test_a_worker_told_to_stop_lets_go_of_what_takes_too_long():
    async with serving([Script(text="ab", reason=None, delay=0.01)], drain=0.2) as (worker, client):
        running = asyncio.create_task(collect(client, request()))
        await until(lambda: worker.engine.running)
        worker.begin_shutdown()
        with pytest.raises(EngineError) as raised:
            await running
        assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)


async def test_a_second_signal_does_not_wait_for_the_drain_time():
    async with serving([Script(text="ab", reason=None, delay=0.01)], drain=3600.0) as (worker, client):
        running = asyncio.create_task(collect(client, request()))
        await until(lambda: worker.engine.running)
        worker.begin_shutdown()
        await until(lambda: client.status.state == "stopped")
        assert worker.engine.running and not running.done()
        worker.begin_shutdown()
        with pytest.raises(EngineError) as raised:
            async with asyncio.timeout(10):
                await running
        assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)


async def test_keys():
    async with serving(keys=("secret",)) as (_, client):
        assert text(await collect(client, request())) == TEXT
        for path in ("/engine/status", "/engine/info", "/metrics"):
            assert (await raw(client, path)).status_code == 401
        assert (await raw(client, "/engine/generate", "POST", content=b"{}")).status_code == 401
        assert (await raw(client, "/health")).status_code == (await raw(client, "/ready")).status_code == 200
        stranger = WorkerEngine(parse_address(f"worker+{client.address.url}", "wrong"), SETTINGS)
        with pytest.raises(EngineError) as raised:
            await stranger.start()
        assert not raised.value.retryable and "refuses this server's key" in raised.value.message


async def test_a_worker_is_found_by_asking():
    async with serving() as (_, client):
        found = DiscoveredEngine(parse_address(client.address.url), lambda: pytest.fail("it is a worker"), SETTINGS)
        with pytest.raises(EngineError):
            _ = found.info
        await found.start()
        assert isinstance(found.engine, WorkerEngine)
        assert text(await collect(found, request())) == TEXT
        assert (found.status.state, found.info.model) == ("ready", "scripted")
        await found.close()


async def test_a_lost_worker_is_noticed_and_so_is_its_return():
    worker = Worker(ScriptedEngine([Script(text=TEXT)]))
    await worker.load()
    async with listening(worker_app(worker, Keys(()))) as url:
        client = WorkerEngine(parse_address(f"worker+{url}"), SETTINGS)
        await client.start()
    with pytest.raises(EngineError) as raised:
        await collect(client, request())
    assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)
    await until(lambda: client.status.state == "starting")
    assert "cannot be reached" in client.status.message
    await client.close()


async def test_another_model_at_the_same_address_is_not_taken_for_the_first():
    async with serving() as (worker, client):
        worker.engine._info = msgspec.structs.replace(worker.engine.info, model="another")
        await until(lambda: client.status.state == "failed")
        assert client.info.model == "scripted"


async def test_metrics_are_prometheus_text():
    async with serving() as (_, client):
        await collect(client, request())
        lines = (await raw(client, "/metrics")).text.splitlines()
        assert "agent_server:worker_generations_running 0.0" in lines
        assert f"agent_server:generation_tokens_total {float(len(TEXT.encode()))}" in lines
