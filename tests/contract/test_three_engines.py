"""Forty conversations through the generation core, vLLM in this process and vLLM as a server: the same events.

`make test-vllm-inprocess`. All compute in float32 on the CPU and greedily, so that only rounding may differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from safetensors.torch import save_file

from agent_server.engines.upstream import UpstreamEngine, load_model, parse_address
from agent_server.engines.vllm_inprocess import VLLMEngine, engine_arguments
from agent_server.http.server import BUNDLED
from agent_server.settings import ComputeSettings, UpstreamSettings
from tests.contract.real_vllm import vllm
from tests.engines.replicas.runs import joined
from tests.server import serving

pytestmark = [pytest.mark.vllm_inprocess, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]
ENGINES = ("vLLM in this process", "vLLM as a server")
ARGUMENTS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 4096}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SUM = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS = [
    {"name": "get_weather", "description": "The weather in a city.", "parameters": CITY},
    {"name": "calculate", "description": "The result of an expression.", "parameters": SUM},
]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answered(question: str, tool: str, arguments: dict[str, Any], result: str, *more: dict[str, Any]) -> dict[str, Any]:
    """A conversation whose call has a result."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"role": "assistant", "toolCalls": [{"id": "c1", "type": "function", "function": function}]}
    result_message = {"role": "tool", "toolCallId": "c1", "content": result}
    return {"messages": [user(question), call, result_message, *more], "tools": TOOLS}


def said(*texts: str, **options: Any) -> dict[str, Any]:
    """A conversation of texts, of which every second is the assistant's."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return {"messages": messages, "options": options}


def told(system: str, text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, user(text)]}


def with_tools(text: str, **options: Any) -> dict[str, Any]:
    return {"messages": [user(text)], "tools": TOOLS, "options": options}


def named(tool: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": tool}}


CONVERSATIONS: dict[str, dict[str, Any]] = {
    "greeting": said("Hello!"),
    "itself": said("Who are you?"),
    "the server": said("What is AG-UI?"),
    "a refusal": said("Write me a poem about the sea."),
    "a sum": said("What is 12*7?"),
    "letters": said("¿Dónde está Zürich? 日本語 🦉"),
    "long": said("Tell me about the sea. " * 60),
    "three turns": said("Hello!", "Hello! How can I help?", "What can you do?"),
    "five turns": said("Hi", "Hello!", "My name is Anna.", "Nice to meet you.", "What is my name?"),
    "a system prompt": told("You are a helpful assistant.", "Hello!"),
    "facts in the system prompt": told("The user's name is Ben. Ben lives in Oslo.", "Where do I live?"),
    "cut after 3": said("Tell me about yourself.", max_tokens=3),
    "cut after 1": said("Tell me about yourself.", max_tokens=1),
    "beyond the end": said("Hello!", max_tokens=40, ignore_eos=True),
    "a stop string": said("Tell me about yourself.", stop=["."]),
    "a stop string within a token": said("Tell me about yourself.", stop=["e"]),
    "three stop strings": said("What can you do?", stop=["zebra", "tools", "can"]),
    "a stop string that is shown": said("Tell me about yourself.", stop=["."], include_stop_str_in_output=True),
    "at least 20": said("Hi", min_tokens=20, max_tokens=30),
    "a repetition penalty": said("Tell me about yourself.", repetition_penalty=1.3, max_tokens=40),
    "a presence penalty": said("Tell me about yourself.", presence_penalty=1.0, max_tokens=40),
    "a frequency penalty": said("Tell me about yourself.", frequency_penalty=1.0, max_tokens=40),
    "a bias": said("Hello!", logit_bias={"300": 5.0}, max_tokens=20),
    "log probabilities": said("What is 2+2?", token_details=True, logprobs=0, max_tokens=20),
    "log probabilities of five": said("Who are you?", token_details=True, logprobs=5, max_tokens=20),
    "no thought": said("What is 12*7?", enable_thinking=False),
    "weather": with_tools("What is the weather in Oslo?"),
    "a sum by tool": with_tools("What is 391*27?"),
    "two calls": with_tools("What is the weather in Rome and what is 12*7?"),
    "no call": with_tools("Hello!"),
    "calls forbidden": with_tools("What is the weather in Oslo?", tool_choice="none"),
    "a call required": with_tools("Hello!", tool_choice="required", max_tokens=120),
    "a named call": with_tools("Hello!", tool_choice=named("get_weather"), max_tokens=120),
    "one call at most": with_tools("What is the weather in Rome and in Oslo?", parallel_tool_calls=False),
    "a result": answered("What is the weather in Oslo?", "get_weather", {"city": "Oslo"}, '{"celsius": 4}'),
    "an error": answered("What is 1/0?", "calculate", {"expression": "1/0"}, "Error: division by zero"),
    "a schema": said("Anna is 31.", response_format=NAMED, max_tokens=60),
    "any object": said("Anna is 31.", response_format={"type": "json_object"}, max_tokens=60),
    "a choice": said("Is the sea wet?", guided_choice=["yes", "no", "perhaps"]),
    "an expression": said("When is it?", guided_regex="[0-9]{4}-[01][0-9]", max_tokens=40),
}


OPERATOR = {"x-api-key": "op"}
SCORED = {"max_tokens": 40, "token_details": True, "logprobs": 0}
ADAPTED = {
    "a greeting": said("Hello!", **SCORED) | {"adapter": "/shifted"},
    "a sum by tool": with_tools("What is 391*27?", max_tokens=40) | {"adapter": "/shifted"},
    "another adapter": said("Who are you?", **SCORED) | {"adapter": "/turned"},
    "the base beside them": said("Hello!", **SCORED),
}
"""Conversations with LoRA adapters, which a server elsewhere does not take. That with tools has no log probabilities:
under a grammar vLLM's are of the allowed tokens alone, which these adapters, being noise, make less likely."""


def make_adapter(folder: Path, rank: int) -> Path:
    """A LoRA adapter of the demonstration model, in peft's files, with weights that change what it says."""
    shape = json.loads((BUNDLED / "config.json").read_text())
    hidden, heads, kv_heads = shape["hidden_size"], shape["num_attention_heads"], shape["num_key_value_heads"]
    head = shape.get("head_dim") or hidden // heads
    sizes = {"self_attn.q_proj": (hidden, heads * head), "self_attn.v_proj": (hidden, kv_heads * head),
             "mlp.down_proj": (shape["intermediate_size"], hidden)}  # fmt: skip
    generator = torch.Generator().manual_seed(rank)
    tensors = {}
    for layer in range(shape["num_hidden_layers"]):
        for name, (width, height) in sizes.items():
            at = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{at}.lora_A.weight"] = torch.randn(rank, width, generator=generator) * 0.15
            tensors[f"{at}.lora_B.weight"] = torch.randn(height, rank, generator=generator) * 0.15
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    targets = [name.rpartition(".")[2] for name in sizes]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


ENDED_BY_GRAMMAR = {"one call at most", "a choice", "an expression"}
"""The core ends where the grammar allows nothing more. vLLM computes one token more, the end, and counts it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def clients(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[dict[str, httpx.AsyncClient]]:
    """A client of a server over each engine; those of this machine have adapters."""
    folder = tmp_path_factory.mktemp("adapters")
    lora = tuple(f"{name}={make_adapter(folder / name, rank)}" for name, rank in (("shifted", 8), ("turned", 6)))
    with contextlib.ExitStack() as processes:
        url = processes.enter_context(vllm()).url

        def load() -> Any:
            return load_model(str(BUNDLED), "demo")

        engines = (
            None,
            VLLMEngine(load, engine_arguments(ComputeSettings(lora=lora), ARGUMENTS), lora=lora),
            UpstreamEngine(parse_address(url), load, UpstreamSettings()),
        )
        async with contextlib.AsyncExitStack() as stack:
            made = {}
            for name, engine in zip(("the core", *ENGINES), engines, strict=True):
                adapters = {} if name == ENGINES[1] else {"lora": lora}
                running = await stack.enter_async_context(
                    serving(
                        engine,
                        local=True,
                        ready=False,
                        dtype="float32",
                        kv_cache_dtype="float32",
                        operator_keys="op",
                        **adapters,
                    )
                )
                while not running.server.model.ready:  # vLLM starts for longer than other engines
                    assert running.server.model.status.state != "failed", running.server.model.status.message
                    await asyncio.sleep(0.2)
                made[name] = await stack.enter_async_context(httpx.AsyncClient(base_url=running.url, timeout=300))
            yield made


async def ask(client: httpx.AsyncClient, name: str, asked: dict[str, Any]) -> list[dict[str, Any]]:
    body = {
        "threadId": f"thread {name}", "runId": f"run {name}", "protocolVersion": "1.0", "context": [], "state": {},
        "messages": [{"id": f"m{at}", **message} for at, message in enumerate(asked["messages"])],
        "tools": asked.get("tools", []),
        "forwardedProps": {"temperature": 0, "max_tokens": 200, **asked.get("options", {})},
    }  # fmt: skip
    answer = await client.post(f"/agui{asked.get('adapter', '')}", json=body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def leaves(value: Any) -> Iterator[Any]:
    """What is in lists and objects, in order."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from leaves(each)
    else:
        yield value


def tokens(events: list[dict[str, Any]]) -> tuple[list[Any], list[float]]:
    """The ids and texts of the events' tokens, and their log probabilities."""
    found = [*leaves([event["metadata"]["tokens"] for event in events if event.get("metadata", {}).get("tokens")])]
    return [each for each in found if not isinstance(each, float)], [each for each in found if isinstance(each, float)]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_conversation_has_the_same_events(clients: dict[str, httpx.AsyncClient], name: str) -> None:
    expected, *others = [await ask(client, name, CONVERSATIONS[name]) for client in clients.values()]
    assert expected[-1]["type"] == "RUN_FINISHED"
    for engine, events in zip(ENGINES, others, strict=True):
        *before, (kind, owner, shown, ending, usage) = joined(events)
        if name in ENDED_BY_GRAMMAR:
            usage = tuple((read, written - 1) for read, written in usage)
        assert [*before, (kind, owner, shown, ending, usage)] == joined(expected), engine
        (same, theirs), (ids, ours) = tokens(events), tokens(expected)
        assert same == ids, engine
        assert theirs == pytest.approx(ours, abs=2e-3), engine
    assert bool(ours) == ("logprobs" in CONVERSATIONS[name].get("options", {}))


@pytest.mark.asyncio(loop_scope="module")
async def test_adapters_have_the_same_events(clients: dict[str, httpx.AsyncClient]) -> None:
    scores = {}
    for name, asked in ADAPTED.items():
        expected, events = [await ask(clients[each], f"adapted {name}", asked) for each in ("the core", ENGINES[0])]
        assert joined(events) == joined(expected)
        (same, theirs), (ids, scores[name]) = tokens(events), tokens(expected)
        assert same == ids and theirs == pytest.approx(scores[name], abs=2e-3)
    assert scores["a greeting"] != pytest.approx(scores["the base beside them"], abs=0.01)


@pytest.mark.asyncio(loop_scope="module")
async def test_adapters_are_loaded_and_removed_while_vllm_runs(
    clients: dict[str, httpx.AsyncClient], tmp_path: Path
) -> None:
    client = clients[ENGINES[0]]
    folder = make_adapter(tmp_path / "later", 4)
    loaded = await client.post("/operator/adapters", headers=OPERATOR, json={"name": "later", "folder": str(folder)})
    assert loaded.status_code in (200, 201), loaded.text
    asked = said("Hello!", max_tokens=20) | {"adapter": "/later"}
    assert joined(await ask(client, "later", asked))[-1][0] == "RUN_FINISHED"
    assert (await client.delete("/operator/adapters/later", headers=OPERATOR)).status_code == 204
    missing = await client.post(
        "/operator/adapters", headers=OPERATOR, json={"name": "none", "folder": str(tmp_path / "none")}
    )
    assert missing.status_code >= 400 and "none" in missing.text
    wide = make_adapter(tmp_path / "wide", 32)
    refused = await client.post("/operator/adapters", headers=OPERATOR, json={"name": "wide", "folder": str(wide)})
    assert refused.status_code >= 400 and "rank" in refused.text


def test_there_are_forty() -> None:
    assert len(CONVERSATIONS) == 40
