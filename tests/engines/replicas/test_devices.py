"""One model on several devices of this machine: a replica on each."""

import asyncio

import pytest

from agent_server.engine_protocol.protocol import Finished, GenerationRequest
from agent_server.engines.embedded import EmbeddedEngine
from agent_server.engines.replicas import ReplicaSet
from agent_server.http.engine_choice import StartupError, choose_engine
from agent_server.settings import Settings
from events.options import SamplingParams
from tests.generation.tiny_models import make_model, save


def engine(device, source="tiny"):
    settings = Settings(device=device, engine_process=False, kv_cache_bytes=2**22, max_batch=2)
    return choose_engine(settings, str(source), "tiny")


def test_every_device_gets_a_replica_of_its_own():
    both = engine("cuda:0, cuda:1")
    assert isinstance(both, ReplicaSet)
    assert [replica.name for replica in both.replicas] == ["cuda:0", "cuda:1"]
    assert [replica.engine.config.device for replica in both.replicas] == ["cuda:0", "cuda:1"]
    assert isinstance(engine("cuda:1"), EmbeddedEngine)


def test_a_device_without_a_name_is_refused():
    with pytest.raises(StartupError, match="names an empty device"):
        engine("cuda:0,")


async def test_each_replica_computes_and_the_set_hands_out(tmp_path):
    both = engine("cpu,cpu", save(make_model("llama"), tmp_path))
    await both.start()  # the first that is ready is enough for it
    while any(replica.engine.status.state != "ready" for replica in both.replicas):
        await asyncio.sleep(0.01)
    asked = [
        GenerationRequest(request_id=str(n), prompt_token_ids=(5, 6, n + 7), sampling=SamplingParams(max_tokens=3))
        for n in range(6)
    ]

    async def last(engine, request):
        return [item async for item in engine.generate(request)][-1]

    try:
        ends = await asyncio.gather(*(last(both, request) for request in asked))
        assert sum(replica.counts.generations for replica in both.replicas) == len(asked)
        ends += await asyncio.gather(*(last(replica.engine, asked[0]) for replica in both.replicas))
        assert all(isinstance(end, Finished) for end in ends)
    finally:
        await both.close()
