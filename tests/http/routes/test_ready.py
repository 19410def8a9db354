"""What `/ready` says of the engine."""

import httpx
import msgspec
import torch

from agent_server.http.openapi.answers import Readiness
from tests.server import scripted, serving


async def test_a_loaded_engine_says_how_it_computes(monkeypatch):
    monkeypatch.setenv("CC", "/usr/bin/some-cc")
    async with serving(local=True, device="cpu") as running, httpx.AsyncClient(base_url=running.url) as client:
        body = (await client.get("/ready")).json()
    assert body == {
        "ready": True,
        "state": "ready",
        "message": "",
        "progress": 1.0,
        "engine": {
            "engine": "embedded",
            "device": "cpu",
            "dtype": str(torch.float32).removeprefix("torch."),
            "attention": "torch",
            "fused_layers": False,
            "cuda_graphs": False,
            "fused_sampler": False,
            "compiler": "some-cc",
            "slow": [],
        },
    }
    assert msgspec.convert(body, Readiness).engine.slow == []


async def test_an_engine_without_such_details_says_nothing():
    async with serving(scripted("Hello")) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert "engine" not in (await client.get("/ready")).json()
