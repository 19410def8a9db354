"""Embeddings: transformers' own vectors, pooled as the checkpoint says, over the wire and through an upstream."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from tokenizers import processors

from agent_server.engine.protocol import EngineError
from agent_server.engines.embeddings import LocalEmbeddings, choose_embeddings
from agent_server.generation.pooling import VectorModel, read_steps
from agent_server.model_files import UnusableFile
from tests.generation.tiny_models import BASE, make_tokenizer
from tests.server import scripted, serving
from tests.server import settings as server_settings

TEXTS = ["One.", "A longer text, in several words.", "", "Two?", "The last of them is the longest one by far."]
TEXTS = [text for text in TEXTS if text]
NAMES = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken", "max": "max_tokens"}


def write_checkpoint(
    folder: Path, kind: str = "bert", pooling: str = "", *, normalized: bool = True, **extra: Any
) -> Any:
    """A tiny random model with a tokenizer, and sentence-transformers' files where `pooling` is given."""
    sizes = {**BASE, "max_position_embeddings": 64}
    if kind == "bert":
        model: Any = transformers.BertModel(transformers.BertConfig(**sizes))
    else:
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes, head_dim=16))
    model.eval().save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    if pooling:
        modules = ["Transformer", "Pooling", *(["Normalize"] if normalized else []), *extra.get("modules", ())]
        steps = [
            {"idx": i, "path": f"{i}_{name}", "type": f"sentence_transformers.models.{name}"}
            for i, name in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(steps))
        (folder / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{name}": key == pooling for key, name in NAMES.items()}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 48, **modes}))
    return getattr(model, "model", model)


def expected(model: Any, text: str, pooling: str, *, normalized: bool) -> list[float]:
    """One text alone, by transformers."""
    ids = torch.tensor([VectorModel.encode(_tokenizing(), [text])[0]])
    with torch.inference_mode():
        states = model(input_ids=ids).last_hidden_state[0]
    vector = {"cls": states[0], "last": states[-1], "mean": states.mean(0), "max": states.amax(0)}[pooling]
    found: list[float] = (vector / vector.norm() if normalized else vector).tolist()
    return found


def _tokenizing() -> Any:
    class Holder:
        _tokenizer = make_tokenizer()

    tokenizer = Holder._tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>")],
    )
    return Holder


@pytest.mark.parametrize(
    ("kind", "pooling", "normalized"),
    [
        ("bert", "cls", True),
        ("bert", "mean", False),
        ("bert", "max", True),
        ("qwen3", "last", True),
        ("qwen3", "", True),
    ],
)
def test_vectors_are_those_of_transformers(tmp_path: Path, kind: str, pooling: str, normalized: bool) -> None:
    model = write_checkpoint(tmp_path, kind, pooling, normalized=normalized)
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    together = served.embed(served.encode(TEXTS))
    for text, vector in zip(TEXTS, together, strict=True):
        wanted = expected(model, text, pooling or "last", normalized=normalized)
        assert vector == pytest.approx(wanted, abs=2e-6)


@pytest.mark.parametrize(
    ("changes", "named"),
    [({"modules": ["Dense"]}, "Dense"), ({"pooling": "weighted"}, "the pooling none")],
)
def test_steps_that_are_not_computed_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    write_checkpoint(tmp_path, **{"pooling": "mean", **changes})
    with pytest.raises(UnusableFile, match=named):
        VectorModel.load(str(tmp_path), "cpu", "float32")


def test_a_checkpoint_says_how_long_a_text_may_be(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, pooling="cls")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert read_steps(tmp_path, None).longest == 20
    assert VectorModel.load(str(tmp_path), "cpu", "float32").longest == 20


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[tuple[AsyncOpenAI, Any]]:
    model = write_checkpoint(tmp_path, pooling="mean")
    async with serving(scripted("Hi."), embedding_model=str(tmp_path), dtype="float32") as running:
        assert isinstance(running.server.embeddings, LocalEmbeddings)
        while running.server.embeddings._model is None:
            await asyncio.sleep(0.01)
        async with AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as found:
            yield found, model


async def test_the_openai_client_gets_them(client: tuple[AsyncOpenAI, Any], tmp_path: Path) -> None:
    openai, model = client
    name = tmp_path.name
    answers = await asyncio.gather(*(openai.embeddings.create(model=name, input=[text, *TEXTS]) for text in TEXTS))
    for text, answer in zip(TEXTS, answers, strict=True):
        assert [each.index for each in answer.data] == list(range(len(TEXTS) + 1))
        assert answer.model == name and answer.usage.prompt_tokens == answer.usage.total_tokens > 0
        assert answer.data[0].embedding == pytest.approx(expected(model, text, "mean", normalized=True), abs=2e-6)
    plain = await openai.embeddings.create(model=name, input=TEXTS[0], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(answers[0].data[0].embedding, abs=2e-6)
    ids = VectorModel.encode(_tokenizing(), [TEXTS[0]])[0]
    by_ids = await openai.embeddings.create(model=name, input=ids)
    assert by_ids.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=2e-6)
    short = (await openai.embeddings.create(model=name, input=TEXTS[0], dimensions=7)).data[0].embedding
    wanted = np.array(plain.data[0].embedding[:7])
    assert short == pytest.approx(list(wanted / np.linalg.norm(wanted)), abs=2e-6)


async def test_what_cannot_be_embedded_is_refused(client: tuple[AsyncOpenAI, Any], tmp_path: Path) -> None:
    openai, _ = client
    name = tmp_path.name
    bad: list[tuple[dict[str, Any], str]] = [
        ({"input": "x" * 100}, "an input has 102 tokens"),
        ({"input": [5, 9999]}, "9999"),
        ({"input": []}, "from 1 to"),
        ({"input": ["a", ""]}, "input.1 must not be empty"),
        ({"input": "a", "dimensions": 49}, "at most 48"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "model": "agent-server-demo"}, "makes no embeddings"),
    ]
    for fields, message in bad:
        with pytest.raises(BadRequestError, match=f"(?i){message}"):
            await openai.embeddings.create(**{"model": name, **fields})
    with pytest.raises(NotFoundError):
        await openai.embeddings.create(model="unheard-of", input="a")
    cut = await openai.embeddings.create(model=name, input="x" * 100, extra_body={"truncate_prompt_tokens": -1})
    assert cut.usage.prompt_tokens == 64


async def test_a_server_without_such_a_model_says_so() -> None:
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url) as http:
        found = await http.post("/v1/embeddings", json={"model": "default", "input": "a"})
    assert found.status_code == 400 and "--embedding-model" in found.json()["error"]["message"]


async def test_an_upstreams_are_passed_through(client: tuple[AsyncOpenAI, Any], tmp_path: Path) -> None:
    openai, _ = client
    url = f"{str(openai.base_url).removesuffix('/v1/')}#{tmp_path.name}"
    async with (
        serving(scripted("Hi."), embedding_model=url) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        found = (await http.post("/v1/embeddings", json={"input": ["a", "b"], "encoding_format": "base64"})).json()
        listed = (await http.get("/models")).json()["data"]
        with_none = await http.post("/v1/embeddings", json={"input": "a", "model": "unheard-of"})
    assert listed[-1]["id"] == tmp_path.name and with_none.status_code == 404
    direct = await openai.embeddings.create(model=tmp_path.name, input=["a", "b"], encoding_format="base64")
    numbers = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in found["data"]]
    shown = [np.frombuffer(base64.b64decode(str(each.embedding)), "<f4") for each in direct.data]
    assert np.allclose(numbers, shown, atol=2e-6)


@pytest.mark.parametrize("source", ["nowhere", "ftp://host"])
def test_a_source_that_is_none_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=source):
        choose_embeddings(server_settings(embedding_model=source))


async def test_a_model_that_cannot_be_loaded_is_told_with_each_request(tmp_path: Path) -> None:
    found = choose_embeddings(server_settings(embedding_model=str(tmp_path)))
    assert found is not None
    await found.start()
    with pytest.raises(EngineError, match="Cannot load"):
        await found.embed(["a"], dimensions=None, truncate=None)
    await found.close()
