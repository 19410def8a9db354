"""The embedded engine behind the Engine protocol: in a thread, and in a process of its own that may die."""

import asyncio
import gc
import json
import os
import signal

import pytest
import torch

from agent_server.engine_protocol.protocol import Control, Delta, EngineError, Finished, GenerationRequest
from agent_server.engines.embedded import EmbeddedEngine, EngineConfig
from events.options import SamplingParams
from tests.generation.tiny_models import make_model, save

PROMPT = (5, 6, 7, 8, 9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(make_model("llama"), tmp_path_factory.mktemp("tiny"))


def config(folder, **options):
    return EngineConfig(**{"model": str(folder), "name": "tiny", "max_batch": 4, "threads": 1, **options})


def request(name="one", prompt=PROMPT, **sampling):
    sampling = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 8, **sampling}
    return GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling=SamplingParams(**sampling))


async def collect(engine, asked):
    return [item async for item in engine.generate(asked)]


def ids(items):
    return [token.id for item in items if isinstance(item, Delta) for token in item.tokens]


@pytest.fixture
async def engine(folder):
    made = EmbeddedEngine(config(folder), process=False)
    await made.start()
    yield made
    await made.close()


async def until(condition, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_stream_ends_with_its_usage_and_times(engine):
    observed = []
    engine._observe = lambda name, seconds: observed.append(name)
    items = await collect(engine, request())
    end = items[-1]
    assert isinstance(end, Finished) and end.reason == "length"
    assert (end.usage.prompt_tokens, end.usage.completion_tokens, len(ids(items))) == (5, 8, 8)
    assert 0 <= end.timings.queued <= end.timings.first_token <= end.timings.total
    assert observed == ["time_to_first_token_seconds", "time_per_output_token_seconds"]
    assert (engine.info.model, engine.info.context_length, engine.info.vocab_size) == ("tiny", 1024, 320)


async def test_control_from_outside_is_acknowledged_inside_the_stream(engine):
    whole = ids(await collect(engine, request(max_tokens=200)))
    stream = engine.generate(request(max_tokens=200))
    seen = [await anext(stream)]
    assert await engine.pause("one")
    while not isinstance(seen[-1], Control):
        seen.append(await anext(stream))
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert await engine.resume("one")
    seen.append(await waiting)
    assert [item.action for item in seen if isinstance(item, Control)] == ["paused", "resumed"]
    assert await engine.modify("one", {"max_tokens": 190})
    seen += [item async for item in stream]
    assert ids(seen) == whole[:190]
    assert [item.action for item in seen if isinstance(item, Control)] == ["paused", "resumed", "modified"]
    assert not await engine.pause("one") and not await engine.modify("one", {"max_tokens": 3})


async def test_a_modification_that_does_not_hold_is_refused(engine):
    stream = engine.generate(request(max_tokens=100))
    await anext(stream)
    for changes, param in (({"top_p": 2}, "top_p"), ({"max_tokens": 5000}, "max_tokens"), ({"colour": 1}, "colour")):
        with pytest.raises(EngineError) as raised:
            await engine.modify("one", changes)
        assert raised.value.param == param
    await stream.aclose()


async def test_closing_the_stream_frees_everything(engine):
    stream = engine.generate(request(max_tokens=1000))
    await anext(stream)
    await stream.aclose()
    await until(lambda: engine.metrics().get("num_requests_running") == 0)
    assert engine.metrics()["kv_cache_usage_perc"] == 0
    assert not engine._streams and not engine._by_id


async def test_errors_of_a_request_are_its_own(engine):
    running = asyncio.create_task(collect(engine, request("long", max_tokens=100)))
    for asked, kind in (
        (request("a", prompt=(5,) * 2000), "context_length_exceeded"),
        (request("b", prompt=(999,)), "invalid_request"),
    ):
        with pytest.raises(EngineError) as raised:
            await collect(engine, asked)
        assert raised.value.kind == kind
    with pytest.raises(EngineError, match="already running"):
        await collect(engine, request("long"))
    assert len(ids(await running)) == 100


async def test_closing_the_engine_ends_what_is_open(folder):
    engine = EmbeddedEngine(config(folder), process=False)
    with pytest.raises(EngineError) as raised:
        await collect(engine, request())
    assert raised.value.kind == "unavailable"
    await engine.start()
    task = asyncio.create_task(collect(engine, request(max_tokens=1000)))
    await asyncio.sleep(0.05)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError) as raised:
        await task
    assert (raised.value.kind, engine.status.state) == ("unavailable", "stopped")


BROKEN = {
    "no such folder": (lambda path: path / "nothing", "is not a folder with a model"),
    "a folder without a model": (lambda path: path, "has no config.json"),
    "an unknown architecture": (
        lambda path: (path / "config.json").write_text(json.dumps({"model_type": "imaginary"})) and path,
        "is of an architecture that transformers",
    ),
    "no weights": (
        lambda path: (path / "config.json").write_text(json.dumps({"model_type": "llama"})) and path,
        "has no weights",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_model_that_does_not_load_ends_with_one_sentence(name, tmp_path):
    make, expected = BROKEN[name]
    engine = EmbeddedEngine(config(make(tmp_path)), process=False)
    with pytest.raises(EngineError, match=expected) as raised:
        await engine.start()
    assert "\n" not in raised.value.message and "Traceback" not in raised.value.message
    assert (engine.status.state, engine.status.message) == ("failed", raised.value.message)
    await engine.close()


async def test_too_little_memory_is_noticed_before_loading(folder, monkeypatch):
    from agent_server.generation.loading import weights

    monkeypatch.setattr(weights, "free_bytes", lambda device: 1000)
    engine = EmbeddedEngine(config(folder), process=False)
    with pytest.raises(EngineError, match="GiB for its weights alone") as raised:
        await engine.start()
    assert raised.value.kind == "out_of_memory"
    await engine.close()


def test_a_model_beyond_one_gpu_is_told_where_several_compute_it(folder, monkeypatch):
    from agent_server.generation.loading import weights

    monkeypatch.setattr(weights, "free_bytes", lambda device: 1000)
    with pytest.raises(EngineError, match=r"on cuda:1\..* --engine vllm .*tensor_parallel_size"):
        weights.check_memory(config(folder), torch.bfloat16, torch.device("cuda:1"))


async def test_loading_shows_its_progress(folder):
    engine = EmbeddedEngine(config(folder), process=False)
    seen = []
    take = engine._take
    engine._take = lambda link, report: (take(link, report), seen.append(engine.status))[0]
    await engine.start()
    shares = [status.progress for status in seen if status.state == "loading"]
    assert shares == sorted(shares) and len(shares) > 5
    assert engine.status.state == "ready"
    await engine.close()


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
async def test_an_adapter_changes_what_is_said(folder, tmp_path, engine):
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    adapted = get_peft_model(make_model("llama"), LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=1.0)
    adapted.save_pretrained(tmp_path)
    with torch.inference_mode():
        prompt = torch.tensor([PROMPT])
        wanted = adapted.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
    other = EmbeddedEngine(config(folder, adapter=str(tmp_path)), process=False)
    await other.start()
    found = ids(await collect(other, request()))
    await other.close()
    assert found == wanted[0, 5:].tolist()
    assert found != ids(await collect(engine, request()))


async def test_a_process_that_dies_ends_its_runs_and_comes_back(folder, engine):
    """Killed in mid-stream: every stream ends, the engine is not ready, and then it works again."""
    own = EmbeddedEngine(config(folder, max_batch=2), restart_seconds=0.05)
    await own.start()
    try:
        assert own.pid not in (None, os.getpid())
        assert ids(await collect(own, request())) == ids(await collect(engine, request()))
        tasks = [asyncio.create_task(collect(own, request(str(n), max_tokens=1000))) for n in range(4)]
        await until(lambda: sum(stream.started for stream in own._streams.values()) == 2)
        os.kill(own.pid, signal.SIGKILL)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(error.kind for error in results) == ["connection", "connection", "unavailable", "unavailable"]
        assert all(error.retryable for error in results)
        assert own.status.state in ("starting", "loading")
        with pytest.raises(EngineError) as raised:
            await collect(own, request())
        assert (raised.value.kind, raised.value.retryable) == ("unavailable", True)
        await until(lambda: own.status.state == "ready", 60)
        assert ids(await collect(own, request())) == ids(await collect(engine, request()))
        assert not own._streams
    finally:
        pid = own.pid
        await own.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_process_that_hangs_is_killed_and_comes_back(folder):
    """Stopped in the middle of a step, it holds its sockets and says nothing: only the time tells."""
    own = EmbeddedEngine(config(folder), restart_seconds=0.05, step_time_limit=1.0)
    await own.start()
    try:
        whole = ids(await collect(own, request()))
        task = asyncio.create_task(collect(own, request("hung", max_tokens=1000)))
        await until(lambda: any(stream.started for stream in own._streams.values()))
        hung = own.pid
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: own.status.silent)
        assert own.pid == hung and own.restarts == 0 and "does not answer" in own.status.message
        with pytest.raises(EngineError) as raised:
            await asyncio.wait_for(task, 10)
        assert (raised.value.kind, raised.value.retryable) == ("connection", True)
        assert "did not finish a step within 1 seconds" in own.status.message
        await until(lambda: own.status.state == "ready", 60)
        assert own.pid != hung and own.metrics()["engine_restarts_total"] == 1
        assert ids(await collect(own, request())) == whole
    finally:
        await own.close()


async def test_a_process_with_nothing_to_do_is_let_alone(folder):
    """A paused generation is open and gets no tokens; the process answers all the same."""
    own = EmbeddedEngine(config(folder), step_time_limit=0.3)
    await own.start()
    try:
        before = own.pid
        stream = own.generate(request(max_tokens=1000))
        await anext(stream)
        await own.pause("one")
        async for item in stream:
            if isinstance(item, Control):
                break
        await asyncio.sleep(1.5)
        assert own.pid == before and own.status.state == "ready"
        await stream.aclose()
    finally:
        await own.close()


async def test_garbage_is_collected_once_the_model_is_loaded(folder):
    gc.disable()  # as the engine's process does before it loads
    engine = EmbeddedEngine(config(folder), process=False)
    try:
        await engine.start()
        assert gc.isenabled()
    finally:
        gc.enable()
        await engine.close()
