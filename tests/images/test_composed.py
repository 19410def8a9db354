"""The images as the compose file starts them: two gateways behind nginx, a worker, PostgreSQL, Redis.

Run by `make test-images`, which starts them, names them in the environment and removes them.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.gateways.client import Frame, begin, body, frames, legal, rest, text_of

pytestmark = [pytest.mark.images, pytest.mark.timeout(180)]

LONG = {"ignore_eos": True, "max_tokens": 1500}
GATEWAYS = ("gateway-a", "gateway-b")


def compose(*arguments: str) -> str:
    command = [*shlex.split(os.environ["IMAGES_COMPOSE"]), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_in(service: str, code: str) -> str:
    return compose("exec", "-T", service, "python", "-c", code)


def runs_of(gateway: str) -> int:
    """How many runs have ended in a gateway."""
    key = os.environ["IMAGES_KEY"]
    ask = f"u.Request('http://127.0.0.1:8000/metrics', headers={{'authorization': 'Bearer {key}'}})"
    text = python_in(gateway, f"import urllib.request as u; print(u.urlopen({ask}).read().decode())")
    return round(sum(map(float, re.findall(r"^agent_server:request_success_total\{.*\} (\S+)", text, re.MULTILINE))))


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {os.environ['IMAGES_KEY']}"}
    async with httpx.AsyncClient(base_url=os.environ["IMAGES_URL"], headers=headers, timeout=60) as found:
        yield found


@pytest.mark.parametrize("gateway", GATEWAYS)
def test_a_gateway_has_no_torch_and_is_not_root(gateway: str):
    code = "import importlib.util as u, os; print([n for n in ('torch', 'transformers', 'pip') if u.find_spec(n)], os.getuid())"
    assert python_in(gateway, code).strip() == "[] 10001"


@pytest.mark.parametrize("service", [*GATEWAYS, "worker"])
def test_the_root_file_system_cannot_be_written_and_no_privilege_is_left(service: str):
    code = """
import errno, os, pathlib
refused = []
for folder in ("/", "/etc", "/opt/agent-server", "/opt/agent-server/bin", "/home/server", "/usr/bin"):
    try:
        pathlib.Path(folder, "written").write_text("x")
    except OSError as error:
        refused.append(errno.errorcode[error.errno])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(refused, os.getuid(), status["CapEff"].strip(), status["NoNewPrivs"].strip())
"""
    assert python_in(service, code).strip() == f"{['EROFS'] * 6} 10001 0000000000000000 1"


@pytest.mark.parametrize("service", [*GATEWAYS, "worker"])
def test_models_and_data_can_be_written(service: str):
    """Volumes take their owner from the folders of the image."""
    folders = "('.cache/huggingface', '.local/share/agent-server', '.cache')"
    assert python_in(service, f"import tempfile as t; [t.TemporaryFile(dir=f).close() for f in {folders}]") == ""


def test_the_worker_can_compile_an_extension_of_python():
    """As Triton does before it runs its first kernel on a GPU."""
    code = """
import os, pathlib, subprocess, sysconfig
folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
folder.mkdir(parents=True, exist_ok=True)
source = folder / "probe.c"
source.write_text("#include <Python.h>\\n#include <stdint.h>\\nint probe(void) { return Py_IsInitialized(); }")
include = sysconfig.get_path("include")
subprocess.run(["gcc", str(source), "-shared", "-fPIC", f"-I{include}", "-o", str(folder / "probe.so")], check=True)
print((folder / "probe.so").is_file())
"""
    assert python_in("worker", code).strip() == "True"


async def test_the_page_is_in_the_image(client: httpx.AsyncClient):
    page = await client.get("/")
    (script,) = re.findall(r'src="\.?/?(assets/index[^"]+\.js)"', page.text)
    assert (await client.get(script)).status_code == 200


async def test_without_a_key_nothing_is_run(client: httpx.AsyncClient):
    assert (await client.post("/agui", json=body("Hello"), headers={"authorization": ""})).status_code == 401


async def test_runs_spread_over_both_gateways_and_are_read_on_at_either(client: httpx.AsyncClient):
    before = [runs_of(gateway) for gateway in GATEWAYS]
    asks = [body("What can you do?") for _ in range(20)]
    begun = await asyncio.gather(*(begin(client, ask, 7) for ask in asks))
    read = await asyncio.gather(*(rest(client, ask["runId"], 7) for ask in asks))
    for head, tail in zip(begun, read, strict=True):
        assert legal([*head, *tail])[-1]["type"] == "RUN_FINISHED" and text_of([*head, *tail])
    ended = [runs_of(gateway) - earlier for gateway, earlier in zip(GATEWAYS, before, strict=True)]
    assert sum(ended) == len(asks) and min(ended) > 0


async def test_a_gateway_killed_in_the_middle_takes_nothing_else_with_it(client: httpx.AsyncClient):
    asks = [body("What can you do?", forwardedProps=LONG) for _ in range(8)]
    begun = [asyncio.Event() for _ in asks]
    reading = [asyncio.create_task(read(client, ask, event)) for ask, event in zip(asks, begun, strict=True)]
    await asyncio.gather(*(event.wait() for event in begun))
    await asyncio.to_thread(compose, "kill", "-s", "KILL", GATEWAYS[0])
    try:
        at_once = [begin(client, body("Hello"), 1000) for _ in range(6)]
        assert {legal(each)[-1]["type"] for each in await asyncio.gather(*at_once)} == {"RUN_FINISHED"}
        async with asyncio.timeout(45):  # the balancer notices it, long before its read time-out of 75 s
            seen = await asyncio.gather(*reading)
        cut = [(ask, each) for ask, each in zip(asks, seen, strict=True) if each[-1][1]["type"] != "RUN_FINISHED"]
        assert 0 < len(cut) < len(asks)
        for ask, head in cut:
            end = (await rest(client, ask["runId"], len(head)))[-1][1]
            assert (end["type"], end["code"], end["metadata"]["retryable"]) == ("RUN_ERROR", "unavailable", True)
            assert legal(await rest(client, ask["runId"]))[-1] == end
    finally:
        await asyncio.to_thread(compose, "start", GATEWAYS[0])
    await serving_again(client)


async def read(client: httpx.AsyncClient, ask: dict, begun: asyncio.Event) -> list[Frame]:
    """Whatever comes until the end or until the connection breaks; `begun` at the first text."""
    seen: list[Frame] = []
    try:
        async with client.stream("POST", "/agui", json=ask) as response:
            async for frame in frames(response):
                seen.append(frame)
                if frame[1]["type"] == "TEXT_MESSAGE_CONTENT":
                    begun.set()
    except httpx.TransportError:
        assert begun.is_set(), seen
    return seen


async def serving_again(client: httpx.AsyncClient) -> None:
    """The balancer finds the gateway that came back, and it takes runs."""
    async with asyncio.timeout(90):
        while not await asyncio.to_thread(ended_in_the_first):
            await asyncio.gather(*(begin(client, body("Hello"), 1000) for _ in range(4)))


def ended_in_the_first() -> bool:
    try:
        return runs_of(GATEWAYS[0]) > 0
    except AssertionError:  # still starting
        return False
