"""The command itself, in a process of its own: it serves, and a SIGTERM lets what runs end and exits with 0."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from agent_server.cli.serve import loop_factory
from agent_server.http.server import BUNDLED
from tests.server import READY_SECONDS, ROOT
from tests.slow import slow

COMMAND = "from agent_server.cli.main import main; main()"


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@asynccontextmanager
async def command(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    port = free_port()
    given = [sys.executable, "-c", COMMAND, "serve", "--port", str(port), "--store", "memory", *arguments]
    environment = {**os.environ, "AGENT_SERVER_ENGINE_PROCESS": "false"}
    process = await asyncio.create_subprocess_exec(*given, cwd=ROOT, env=environment, stderr=asyncio.subprocess.PIPE)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            try:
                if (await client.get("/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.1)


async def stopping(client: httpx.AsyncClient) -> None:
    """Wait until a signal was taken: a second one that is sent before is the same as the first, signals do not queue.

    A server that stops says so until it closes its listener and its idle connections, soon after. A request that is
    sent on an idle connection at that moment is not answered, and no new connection is accepted."""
    async with asyncio.timeout(READY_SECONDS):
        with contextlib.suppress(httpx.NetworkError, httpx.RemoteProtocolError):
            while (await client.get("/ready")).json()["state"] != "stopping":
                await asyncio.sleep(0.01)


def test_it_runs_on_the_fast_event_loop():
    make = loop_factory()
    assert make is not None
    loop = make()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()


FOLDERS = "Give a folder with a model, or a hub name like Qwen/Qwen3-0.6B."


@pytest.mark.parametrize(
    ("status", "arguments", "said"),
    [
        (2, ["{}/nothing"], "There is no folder {}/nothing. " + FOLDERS),
        (2, ["plain"], "There is no folder plain. " + FOLDERS),
        (1, ["{}", "--served-name", "it"], "Cannot load it: no tokenizer was found for '{}'"),
        (2, ["--chat-template", "{}/none.jinja"], "There is no chat template at {}/none.jinja."),
        (1, ["--chat-template", "{}/bad.jinja"], "Cannot load agent-server-demo: the chat template is not valid"),
        (2, ["--agent", "{}/none.py:agent"], "There is no file {}/none.py."),
        (
            2,
            ["--store", "sqlite:///{}/file/threads.db"],
            "The store at sqlite:///{}/file/threads.db cannot be",
        ),
        (2, ["--store", "nonsense"], "The store's URL cannot be used"),
        (2, ["--api-key", ""], "api_keys: Value error, A key may not be empty."),
        (2, ["--log-level", "loud"], "log_level: Input should be 'debug', 'info', 'warning' or 'error'."),
        (
            1,
            ["{}/pointer"],
            "{}/pointer/model.safetensors is a pointer of Git LFS instead of the file: run `git lfs pull`",
        ),
        *slow(
            [
                (1, ["--dtype", "int3"], "Unknown dtype 'int3'"),
                (1, ["--max-context", "100000"], "--max-context 100000 is more than the 4096 tokens"),
            ]
        ),
    ],
)
async def test_what_cannot_be_served_ends_with_one_sentence(
    tmp_path: Path, status: int, arguments: list[str], said: str
):
    (tmp_path / "bad.jinja").write_text("{{ never closed")
    (tmp_path / "file").write_text("This is no folder.")
    shutil.copytree(BUNDLED, tmp_path / "pointer")
    (tmp_path / "pointer" / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    async with command(*[each.format(tmp_path) for each in arguments]) as (process, _):
        async with asyncio.timeout(READY_SECONDS):
            _, told = await process.communicate()
    assert process.returncode == status
    assert "Traceback" not in told.decode()
    *_, last = told.decode().split("agent-server: ")
    assert last.startswith(said.format(*[tmp_path] * said.count("{}")))


@pytest.fixture
def hangup() -> Iterator[None]:
    """SIGHUP is not ignored by what is started here, although this run may be one under `nohup`, which hands that on."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGTERM, *slow([signal.SIGHUP])])
async def test_a_signal_lets_a_running_answer_end_and_exits_with_0(number: signal.Signals):
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 60, "stream": True, "ignore_eos": True}
    async with command() as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        await ready(client)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            first = await anext(lines)
            process.send_signal(number)
            rest = [line async for line in lines if line]
        assert first.startswith("data: ") and rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert await asyncio.wait_for(process.wait(), READY_SECONDS) == 0


async def test_a_second_signal_ends_a_running_answer_properly():
    body = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 3500, "stream": True, "ignore_eos": True}
    body["temperature"] = 0  # a sampled answer may write the end of a message by itself
    async with command() as (process, url), httpx.AsyncClient(base_url=url, timeout=30) as client:
        await ready(client)
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            process.send_signal(signal.SIGINT)
            await stopping(client)
            process.send_signal(signal.SIGINT)
            rest = [line async for line in lines if line]
        assert "The server stopped before the run was complete." in rest[-2] + rest[-1]
        assert await asyncio.wait_for(process.wait(), 20) == 0


@pytest.mark.parametrize("subcommand", ["serve", "worker"])
def test_an_unreachable_hub_is_reported_before_the_server_is_imported(tmp_path: Path, subcommand: str):
    """huggingface_hub, the real client, against a port where nothing listens."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        given = [sys.executable, "-X", "importtime", "-c", COMMAND, subcommand, "Qwen/Qwen3-0.6B", "--port"]
        ended = subprocess.run(
            [*given, str(free_port())], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 2
    assert f"agent-server: The hub {endpoint} does not answer" in ended.stderr
    assert "Set HF_ENDPOINT to a mirror" in ended.stderr
    imported = {line.rpartition("|")[2].strip() for line in ended.stderr.splitlines()}
    assert "agent_server.settings" in imported
    assert not imported & {"torch", "transformers", "agent_server.http.engine_choice"}
