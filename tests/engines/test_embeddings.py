"""Embeddings: transformers' own vectors, pooled as the checkpoint says, over the wire and through an upstream."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from openai import AsyncOpenAI, BadRequestError, NotFoundError
from safetensors.torch import save_file
from tokenizers import processors

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.embeddings import LocalEmbeddings, choose_embeddings
from agent_server.generation.loading.pooling import VectorModel, read_steps
from agent_server.http.assemble import build_server
from agent_server.http.server import StartupError
from agent_server.model_files import UnusableFile, source_name
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
            {
                "idx": i,
                "path": f"{i}_{name}" if i else "",
                "type": f"{extra.get('package', 'sentence_transformers.models')}.{name}",
            }
            for i, name in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(steps))
        (folder / "1_Pooling").mkdir()
        modes = {f"pooling_mode_{name}": key == pooling for key, name in NAMES.items()}
        said = extra.get("pooling_config", {"word_embedding_dimension": 48, **modes})
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    return getattr(model, "model", model)


def expected(model: Any, text: str, pooling: str, *, normalized: bool) -> list[float]:
    """One text alone, by transformers."""
    ids = torch.tensor([_token_ids(text)])
    with torch.inference_mode():
        states = model(input_ids=ids).last_hidden_state[0]
    vector = {"cls": states[0], "last": states[-1], "mean": states.mean(0), "max": states.amax(0)}[pooling]
    found: list[float] = (vector / vector.norm() if normalized else vector).tolist()
    return found


def _token_ids(text: str) -> list[int]:
    tokenizer = make_tokenizer()
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return [tokenizer.token_to_id("<|im_start|>"), *ids, tokenizer.token_to_id("<|im_end|>")]


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
    [
        ({"modules": ["WeightedLayerPooling"]}, "models.WeightedLayerPooling, which is not supported"),
        ({"modules": ["Pooling"]}, "a Transformer and its Pooling must come first"),
        ({"package": "custom_st"}, "custom_st.Transformer, which is not supported"),
        ({"pooling_config": {"pooling_mode": "attention"}}, "the pooling attention"),
        ({"modules": ["Dense"]}, "in_features"),
    ],
)
def test_steps_that_are_not_computed_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    write_checkpoint(tmp_path, **{"pooling": "mean", "normalized": False, **changes})
    with pytest.raises(UnusableFile, match=named):
        VectorModel.load(str(tmp_path), "cpu", "float32")


def test_a_checkpoint_says_how_long_a_text_may_be(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, pooling="cls")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20}')
    assert read_steps(tmp_path).longest == 20
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
    ids = _token_ids(TEXTS[0])
    by_ids = await openai.embeddings.create(model=name, input=ids)
    assert by_ids.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=2e-6)
    short = (await openai.embeddings.create(model=name, input=TEXTS[0], dimensions=7)).data[0].embedding
    wanted = np.array(plain.data[0].embedding[:7])
    assert short == pytest.approx(list(wanted / np.linalg.norm(wanted)), abs=2e-6)


async def test_what_cannot_be_embedded_is_refused(client: tuple[AsyncOpenAI, Any], tmp_path: Path) -> None:
    openai, _ = client
    name = tmp_path.name
    bad: list[tuple[dict[str, Any], str]] = [
        ({"input": "a", "extra_body": {"prompt_name": "query"}}, "the model has none"),
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
    assert cut.usage.prompt_tokens == 64 and "warnings" not in (cut.model_extra or {})
    by_itself = await openai.embeddings.create(model=name, input="x" * 100)
    assert by_itself.data == cut.data and "from 102 to 64 tokens" in (by_itself.model_extra or {})["warnings"][0]


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


def test_a_file_is_not_a_folder_with_an_embedding_model(tmp_path: Path) -> None:
    (file := tmp_path / "bge-small.gguf").write_bytes(b"GGUF")
    with pytest.raises(
        ValueError, match=f"{file} is a file. Give the folder with an embedding model that it was made of"
    ):
        choose_embeddings(server_settings(embedding_model=str(file)))


async def test_a_model_that_cannot_be_loaded_is_told_with_each_request(tmp_path: Path) -> None:
    found = choose_embeddings(server_settings(embedding_model=str(tmp_path)))
    assert found is not None
    await found.start()
    with pytest.raises(EngineError, match="Cannot load"):
        await found.embed(["a"], dimensions=None, truncate=None)
    await found.close()


def test_a_text_that_is_cut_keeps_the_tokens_that_end_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, pooling="mean")
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    whole = _token_ids("x y " * 40)
    (cut,) = served.encode(["x y " * 40], most=10)
    assert cut.ids == [*whole[:9], whole[-1]] and cut.length == len(whole)
    assert served.encode(["One."], most=64)[0].ids == _token_ids("One.")


def test_what_training_saved_in_the_tokenizer_changes_no_vector(tmp_path: Path) -> None:
    """As in all-MiniLM-L6-v2, whose tokenizer.json cuts and pads each text to 128 tokens."""
    write_checkpoint(tmp_path, pooling="mean")
    plain = VectorModel.load(str(tmp_path), "cpu", "float32")
    wanted = plain.embed(plain.encode(TEXTS))
    tokenizer = make_tokenizer().from_file(str(tmp_path / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    assert served.embed(served.encode(TEXTS)) == wanted
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 12}')
    assert VectorModel.load(str(tmp_path), "cpu", "float32").longest == 12


def test_layers_follow_the_pooling_in_the_order_of_the_modules(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, pooling="mean", normalized=True, modules=["Dense", "Dense"])
    layers = []
    for number, (size, out, name) in {3: (48, 24, "Tanh"), 4: (24, 7, "Identity")}.items():
        layer = torch.nn.Linear(size, out)
        path = tmp_path / f"{number}_Dense"
        path.mkdir()
        said = {"in_features": size, "out_features": out, "activation_function": f"torch.nn.modules.x.{name}"}
        (path / "config.json").write_text(json.dumps(said))
        save_file({"linear.weight": layer.weight, "linear.bias": layer.bias}, path / "model.safetensors")
        layers.append(layer)
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    assert served.size == 7
    vectors = served.embed(served.encode(TEXTS))
    for text, vector in zip(TEXTS, vectors, strict=True):
        unit = torch.tensor(expected(model, text, "mean", normalized=True))
        assert vector == pytest.approx(layers[1](torch.tanh(layers[0](unit))).tolist(), abs=2e-6)


@pytest.mark.parametrize("pooled", [True, False])
def test_a_prompt_is_put_before_each_text(tmp_path: Path, pooled: bool) -> None:
    said = {"pooling_mode": "mean", "include_prompt": pooled}
    model = write_checkpoint(tmp_path, pooling="mean", normalized=False, pooling_config=said)
    prompts = {"prompts": {"query": "To find: ", "document": ""}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    ids = _token_ids("To find: One.")
    states = model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    start = 0 if pooled else len(_token_ids("To find: ")) - 1
    by_default, bare = served.encode(["One."])[0], served.encode(["One."], prompt="document")[0]
    assert by_default.ids == ids and bare.ids == _token_ids("One.")
    assert served.embed([by_default])[0] == pytest.approx(states[start:].mean(0).tolist(), abs=2e-6)


def test_texts_are_lowered_where_the_transformers_settings_say_so(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, pooling="mean")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 20, "do_lower_case": true}')
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    assert served.encode(["ONE."])[0].ids == _token_ids("one.")


def test_a_transformer_in_a_folder_of_its_own_is_found(tmp_path: Path) -> None:
    """As sentence-transformers saved models before its version 0.4."""
    inner = tmp_path / "0_Transformer"
    model = write_checkpoint(inner, pooling="mean")
    modules = json.loads((inner / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (inner / "1_Pooling").rename(tmp_path / "1_Pooling")
    served = VectorModel.load(str(tmp_path), "cpu", "float32")
    wanted = expected(model, "One.", "mean", normalized=True)
    assert served.embed(served.encode(["One."]))[0] == pytest.approx(wanted, abs=2e-6)


async def test_only_trained_dimensions_are_cut_to(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, pooling="mean")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "matryoshka_dimensions": [8, 16]}))
    found = choose_embeddings(server_settings(embedding_model=str(tmp_path)))
    assert found is not None
    await found.start()
    assert len((await found.embed(["a"], dimensions=16, truncate=None)).vectors[0]) == 16
    with pytest.raises(EngineError, match="one of 8, 16"):
        await found.embed(["a"], dimensions=12, truncate=None)
    await found.close()


CARDS = {
    "---\nlicense: mit\n---\n\n# all-MiniLM-L6-v2\nText.": "all-MiniLM-L6-v2",
    "---\nmodel_name: org/other-name\n---\n# A title of several words": "other-name",
    "# A title of several words": "encoder",
    "": "encoder",
}


@pytest.mark.parametrize(("card", "name"), CARDS.items())
def test_a_folder_that_is_called_model_has_the_cards_name(tmp_path: Path, card: str, name: str) -> None:
    folder = tmp_path / "encoder" / "model"
    folder.mkdir(parents=True)
    if card:
        (folder / "README.md").write_text(card)
    found = choose_embeddings(server_settings(embedding_model=str(folder)))
    assert found is not None and found.name == name
    assert source_name(str(folder.parent)) == "encoder"


async def test_the_server_is_ready_once_the_embedding_model_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, pooling="mean")
    go = threading.Event()
    load = VectorModel.load

    def slow(*args: Any, **options: Any) -> VectorModel:
        go.wait(30)
        return load(*args, **options)

    monkeypatch.setattr(VectorModel, "load", slow)
    async with (
        serving(scripted("Hi."), embedding_model=str(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        before = await http.get("/ready")
        go.set()
        while (after := await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.01)
    assert before.status_code == 503 and f"embedding model {tmp_path.name} is loading" in before.json()["message"]
    assert after.json()["ready"] is True


async def test_a_server_whose_embedding_model_cannot_be_loaded_is_not_ready(tmp_path: Path) -> None:
    async with (
        serving(scripted("Hi."), embedding_model=str(tmp_path)) as running,
        httpx.AsyncClient(base_url=running.url) as http,
    ):
        while "Cannot load" not in (answer := await http.get("/ready")).json()["message"]:
            await asyncio.sleep(0.01)
    assert answer.status_code == 503


def test_an_encoder_in_place_of_a_model_that_chats_is_told_its_option(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    with pytest.raises(StartupError, match=rf"BertModel.*--embedding-model {tmp_path}"):
        build_server(server_settings(model=str(tmp_path)))
