"""Several models at once, as the openai package, an AG-UI client and an operator meet them: real loading, the bundled
model for words beside a tiny random one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from adapters import sse
from agent_server.agents import Agent
from agent_server.http.server import BUNDLED, StartupError
from tests.conformance.node import NodeClients
from tests.generation.test_adapters import make_adapter
from tests.generation.tiny_models import make_model, save
from tests.server import Running, serving, settings

HELLO: Any = [{"role": "user", "content": "What can you do?"}]
KEY = {"authorization": "Bearer op"}
RUN = {
    "threadId": "t", "runId": "r", "protocolVersion": "1.0", "state": {}, "tools": [], "context": [],
    "messages": [{"id": "u", "role": "user", "content": "What can you do?"}],
    "forwardedProps": {"max_tokens": 4, "temperature": 0.0},
}  # fmt: skip


def tiny(folder: Path, seed: int = 0) -> Path:
    """A random model of the llama family with a template of its own."""
    save(make_model("llama", seed), folder)
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny(tmp_path_factory.mktemp("small"))


@pytest.fixture
async def running(small: Path) -> AsyncIterator[Running]:
    agents = [Agent(name="clerk", model="small", instructions="Be short."), Agent(name="helper")]
    async with serving(
        model=f"demo={BUNDLED}",
        models=(f"small={small}",),
        agents=agents,
        operator_keys="op",
        api_keys="tenant:user",
        local=True,
        kv_cache_bytes=2**24,
    ) as found:
        yield found


async def state_of(http: httpx.AsyncClient, name: str) -> str:
    shown = (await http.get("/operator/models", headers=KEY)).json()["models"]
    return str(next(row["state"] for row in shown if row["name"] == name))


async def until(http: httpx.AsyncClient, name: str, state: str) -> None:
    async with asyncio.timeout(30):
        while await state_of(http, name) != state:
            await asyncio.sleep(0.01)


async def test_two_models_answer_by_their_names_and_one_goes_in_between(running: Running, node_clients: NodeClients):
    client = AsyncOpenAI(base_url=running.url + "/v1", api_key="user", max_retries=0)
    http = httpx.AsyncClient(base_url=running.url, headers={"authorization": "Bearer user"}, timeout=60)
    async with client, http:
        listed = {model.id: model async for model in client.models.list()}
        assert list(listed) == ["demo", "clerk", "helper", "small"]
        assert [listed[name].model_extra["root"] for name in listed] == ["demo", "small", "demo", "small"]  # type: ignore[index]
        assert listed["small"].model_extra["status"] == "unloaded"  # type: ignore[index]

        said = await client.chat.completions.create(model="demo", messages=HELLO, temperature=0)
        assert "call tools" in (said.choices[0].message.content or "")
        other = await client.chat.completions.create(model="small", messages=HELLO, temperature=0, max_tokens=4)
        assert (other.model, other.usage.completion_tokens) == ("small", 4)  # type: ignore[union-attr]
        assert await state_of(http, "small") == "ready"

        answer = await http.post("/operator/models", headers=KEY, json={"name": "small", "loaded": False})
        assert answer.status_code == 202
        await until(http, "small", "unloaded")
        assert (await http.get("/ready")).status_code == 200
        again = await client.chat.completions.create(model="demo", messages=HELLO, temperature=0)
        assert again.choices[0].message.content == said.choices[0].message.content

        entry = {
            "url": running.url + "/agui/clerk",
            "headers": {"authorization": "Bearer user"},
            "forwardedProps": {"max_tokens": 4, "temperature": 0.0},
            "turns": ["What can you do?"],
        }
        (told,) = await asyncio.to_thread(node_clients.run, "converse.mjs", [entry])
        (run,) = told["runs"]
        assert (run["error"], run["failed"], told["problems"]) == (None, None, [])
        assert run["counts"]["CUSTOM"] >= 1 and run["usage"][0]["model"] == "small"
        assert await state_of(http, "small") == "ready"
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="large", messages=HELLO)
        assert refused.value.code == "model_not_found"


async def test_the_wait_is_told_as_progress_on_agui_and_as_a_queue_elsewhere(running: Running):
    headers = {"authorization": "Bearer user"}
    async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60) as http:
        answers = await asyncio.gather(
            http.post("/agui/small", json=RUN),
            http.post("/v1/messages", json={"model": "small", "max_tokens": 100_000, "messages": HELLO}),
            http.post("/tokenize", json={"model": "small", "prompt": "What can you do?"}),
        )
        assert [each.status_code for each in answers] == [200, 200, 200]
        events = [json.loads(frame["data"]) for frame in sse.parse([answers[0].content])]
        loading = [event["value"] for event in events if event.get("name") == "agent_server.loading"]
        assert events[0]["type"] == "RUN_STARTED" and events[1].get("name") == "agent_server.loading"
        assert {each["model"] for each in loading} == {"small"} and events[-1]["type"] == "RUN_FINISHED"
        assert answers[1].json()["model"] == "small"
        assert len(answers[2].json()["tokens"]) == len("What can you do?")  # of bytes, where the other has words


async def test_a_load_that_fails_is_one_sentence_for_its_requests_alone(small: Path, tmp_path: Path):
    broken = Path(shutil.copytree(small, tmp_path / "broken"))
    (broken / "model.safetensors").write_bytes(b"\0" * 4)
    async with (
        serving(model=f"words={BUNDLED}", models=(str(broken),), local=True, kv_cache_bytes=2**24) as running,
        AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client,
        httpx.AsyncClient(base_url=running.url, timeout=60) as http,
    ):
        asked = [client.chat.completions.create(model="broken", messages=HELLO, stream=bool(n)) for n in range(2)]
        answers = await asyncio.gather(
            *asked, client.chat.completions.create(model="words", messages=HELLO, temperature=0), return_exceptions=True
        )
        for refused in answers[:2]:
            assert isinstance(refused, openai.InternalServerError) and refused.status_code == 503
            assert f"{broken}/model.safetensors" in refused.message
        assert answers[2].choices[0].message.content  # type: ignore[union-attr]
        events = [json.loads(f["data"]) for f in sse.parse([(await http.post("/agui/broken", json=RUN)).content])]
        assert events[-1]["type"] == "RUN_ERROR" and str(broken) in events[-1]["message"]
        assert (await http.get("/ready")).json()["ready"]


async def test_a_models_file_gives_each_model_settings_of_its_own(small: Path, tmp_path: Path):
    file = tmp_path / "models.toml"
    file.write_text(f'[one]\nmodel = "{small}"\nmax_context = 64\n\n[two]\nmodel = "{small}"\n')
    async with (
        serving(models_file=file, local=True, demo=False, models_memory=2**27, model_idle=3600) as running,
        AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        for name in ("one", "two"):
            await client.chat.completions.create(model=name, messages=HELLO, max_tokens=2)
        cards = [model.model_extra async for model in client.models.list()]
        assert [card["context_length"] for card in cards if card] == [64, 1024]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": ("a=x", "a=y")}, "Two models are called 'a'. Rename one with NAME=y."),
        ({"models": ("nowhere",)}, "There is no folder nowhere."),
        ({"models": (f"default={BUNDLED}",)}, "A model cannot be called 'default'"),
        ({"models": ("small",), "served_name": "x"}, "--served-name names one model"),
        ({"models_file": "dtype = 1"}, "dtype is not a table"),
        ({"models_file": "[a]\nport = 1"}, r"\[a\] has the unknown setting port"),
        ({"models_file": "[a]\nmax_context = -1"}, "The model a: max_context: Input should be greater than or equal"),
        ({"models_file": ""}, "names no model"),
        ({"models_file": None}, "cannot be read"),
        ({"models": ("b=" + str(BUNDLED),), "agents": [Agent(name="x", model="c")]}, "unknown model 'c'"),
        ({"agents": [Agent(name="x", model="c")]}, "unknown model 'c'; the served models are demo"),
        (
            {"models": ("b=" + str(BUNDLED),), "agents": [Agent(name="b")]},
            "A model and an agent are both called 'b'. Name the model as NAME=FOLDER.",
        ),
    ],
)
def test_what_cannot_be_served_is_said_at_the_start(changes: dict[str, Any], sentence: str, tmp_path: Path):
    from agent_server.http.assemble import build_server

    if "models_file" in changes:
        file = tmp_path / "models.toml"
        if changes["models_file"] is not None:
            file.write_text(changes["models_file"])
        changes = {**changes, "models_file": file}
    agents = changes.pop("agents", [])
    with pytest.raises(StartupError, match=sentence):
        build_server(settings(model=str(BUNDLED), engine=(), **changes), agents=agents)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
async def test_adapters_are_models_by_their_names(small: Path, tmp_path: Path, node_clients: NodeClients):
    folders = {kind: make_adapter(tmp_path / kind, kind) for kind in ("red", "blue", "green")}
    lora = tuple(f"{kind}={folders[kind]}" for kind in ("red", "blue"))
    async with (
        serving(
            local=True,
            model=f"base={small}", models=(f"demo={BUNDLED}",), lora=lora, operator_keys="op", demo=False,
            kv_cache_bytes=2**24,
        ) as running,
        AsyncOpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0) as client,
        httpx.AsyncClient(base_url=running.url, headers=KEY, timeout=60) as http,
    ):  # fmt: skip
        listed = {model.id: (model.model_extra or {})["root"] async for model in client.models.list()}
        assert listed == {"base": "base", "demo": "demo", "red": "base", "blue": "base"}

        async def said(model: str) -> str:
            answer = await client.chat.completions.create(model=model, messages=HELLO, temperature=0, max_tokens=12)
            assert answer.model == model
            return answer.choices[0].message.content or ""

        answers = await asyncio.gather(*map(said, ("base", "red", "blue", "demo", "red")))
        assert len(set(answers[:4])) == 4 and answers[1] == answers[4]

        body = {"name": "green", "folder": str(folders["green"])}
        loaded = await http.post("/operator/adapters", json=body)
        assert loaded.status_code == 201
        assert [row["name"] for row in loaded.json()["adapters"]] == ["red", "blue", "green"]
        assert await said("green") not in answers
        removed = await http.delete("/operator/adapters/red")
        assert removed.status_code == 204
        with pytest.raises(openai.NotFoundError):
            await said("red")

        await http.post("/operator/models", json={"name": "base", "loaded": False})  # and come back with it
        await until(http, "base", "unloaded")
        entry = {"url": running.url + "/agui/green", "forwardedProps": RUN["forwardedProps"], "turns": ["Hello"]}
        (told,) = await asyncio.to_thread(node_clients.run, "converse.mjs", [entry])
        (run,) = told["runs"]
        assert (run["error"], run["failed"], run["usage"][0]["model"]) == (None, None, "green")
        assert await said("blue") == answers[2]
        with pytest.raises(openai.NotFoundError):
            await said("red")

        wrong = [
            ({"name": "x", "folder": str(tmp_path)}, 400), ({"name": "demo", "folder": "."}, 409),
            ({"name": "a/b", "folder": "."}, 400), ({"name": "x", "folder": ".", "model": "red"}, 404), ({}, 400),
        ]  # fmt: skip
        assert [(await http.post("/operator/adapters", json=each)).status_code for each, _ in wrong] == [
            status for _, status in wrong
        ]
        assert (await http.delete("/operator/adapters/base")).status_code == 404
        refused = await http.get("/operator/adapters", headers={"authorization": "Bearer other"})
        assert refused.status_code == 401
