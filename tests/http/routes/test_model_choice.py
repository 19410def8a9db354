"""The page's choice of a model: what may be asked for, a download that is paused, and a switch that works or fails."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from huggingface_hub import constants

from agent_server.http.assemble import build_server
from agent_server.http.server import BUNDLED, BUNDLED_NAME
from tests.model_files.hub import Hub
from tests.server import serving, settings

ASK = {"model": "default", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "models_change": "on"}, True),
        ({"api_keys": ("k",)}, False),
        ({"api_keys": ("k",), "models_change": "on"}, True),
        ({"models_change": "off"}, False),
        ({"listen": ("127.0.0.1:8000", "unix:/tmp/x")}, True),
        ({"listen": ("127.0.0.1:8000", "10.0.0.1:8000")}, False),
        ({"engine": ("http://127.0.0.1:9",)}, False),
    ],
)
def test_models_are_changed_by_whom_the_operator_lets(changes: dict[str, object], may: bool):
    server = build_server(settings(**{"engine": (), **changes}))
    assert (server.make_model is not None) is may


async def test_where_it_is_not_allowed_nothing_is_told_and_nothing_is_done():
    async with serving(local=True, models_change="off") as running, httpx.AsyncClient(base_url=running.url) as client:
        for answer in (
            await client.get("/demo/models"),
            await client.post("/demo/models", json={"action": "download", "source": "a/b"}),
        ):
            assert answer.status_code == 403 and "AGENT_SERVER_MODELS_CHANGE=on" in answer.text


async def test_a_model_is_fetched_paused_resumed_and_served_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hub = Hub({"tiny/other": BUNDLED})
    hub.pause = 0.02
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    async with serving(local=True) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:

        async def act(action: str, source: str = "tiny/other") -> httpx.Response:
            return await client.post("/demo/models", json={"action": action, "source": source})

        found = (await client.get("/demo/models?search=other")).json()["found"]
        assert [each["name"] for each in found] == ["tiny/other"]
        assert (await act("download")).status_code == 202
        downloads = running.server.downloads
        await until(lambda: downloads.describe()[0].bytes > 1_000_000)
        await act("pause")
        (paused,) = downloads.describe()
        assert paused.state == "paused" and 0 < paused.bytes < paused.total
        hub.pause = 0
        await act("download")
        await until(lambda: downloads.describe()[0].state == "complete")
        assert [asked for name, asked in hub.asked if name == "model.safetensors"][-1] is not None
        shown = (await client.get("/demo/models")).json()
        assert [each["name"] for each in shown["local"]] == ["tiny/other"] and shown["offers"]

        assert (await act("serve")).status_code == 202
        assert (await act("serve")).status_code == 409
        await until(lambda: running.server.model.ready)
        assert running.server.model.name == "other"
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "other"
        info = (await client.get("/copilotkit/info")).json()["server"]
        assert info["model"] == "other" and info["bundled"] is False
        answer = (await client.post("/v1/chat/completions", json=ASK)).json()
        assert answer["usage"]["completion_tokens"] > 0
        assert "agent_server" in (await client.get("/metrics")).text
        hub.close()


async def test_a_model_that_cannot_be_loaded_gives_way_to_the_one_before(tmp_path: Path):
    broken = tmp_path / "broken"
    shutil.copytree(BUNDLED, broken)
    (broken / "model.safetensors").write_bytes(b"\x10" + bytes(40))
    async with serving(local=True) as running, httpx.AsyncClient(base_url=running.url, timeout=60) as client:
        nothing = await client.post("/demo/models", json={"action": "serve", "source": str(tmp_path / "nothing")})
        assert nothing.status_code == 400 and "There is no folder" in nothing.text
        served = await client.post("/demo/models", json={"action": "serve", "source": str(broken)})
        assert served.status_code == 202
        await until(lambda: running.server._switching is None)
        assert running.server.model.name == BUNDLED_NAME and running.server.model.ready
        assert "broken could not be loaded." in (await client.get("/demo/models")).json()["fault"]
        assert (await client.post("/v1/chat/completions", json=ASK)).status_code == 200
        assert (await client.get("/copilotkit/info")).json()["server"]["bundled"] is True
