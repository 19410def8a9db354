"""Rerankers: transformers' own logits behind the activation that the files name, over the wire and an upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers
from tokenizers import processors

from agent_server.engines.reranking import choose_reranker
from agent_server.generation.loading.cross_encoder import CrossEncoder
from agent_server.http.assemble import build_server
from agent_server.http.server import StartupError
from agent_server.model_files import UnusableFile
from tests.generation.tiny_models import BASE, make_tokenizer
from tests.server import scripted, serving
from tests.server import settings as server_settings

QUERY = "Where is it?"
DOCUMENTS = ["In Paris.", "", "A longer text, in several words.", "In Paris.", "x y " * 60]
LONGEST = 64


def write_reranker(folder: Path, kind: str = "bert", *, labels: dict[int, str] | None = None, **extra: Any) -> Any:
    """A tiny random cross-encoder with a tokenizer; labels: by their numbers, one without a name if None."""
    torch.manual_seed(3)
    sizes = {**BASE, "max_position_embeddings": LONGEST, "id2label": labels or {0: "LABEL_0"}, **extra}
    if kind == "bert":
        model: Any = transformers.BertForSequenceClassification(transformers.BertConfig(**sizes))
        torch.nn.init.normal_(model.classifier.weight)
    else:
        config = transformers.Qwen3Config(**sizes, head_dim=16)
        model = transformers.Qwen3ForSequenceClassification(config)
    model.eval().save_pretrained(folder)
    tokenizer = make_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A <|im_end|>",
        pair="<|im_start|> $A <|im_end|> $B:1 <|im_end|>:1",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in ("<|im_start|>", "<|im_end|>")],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


def logits(model: Any, query: str, document: str) -> list[float]:
    """One pair alone, by transformers."""
    tokenizer = make_tokenizer()
    first, last = (tokenizer.token_to_id(text) for text in ("<|im_start|>", "<|im_end|>"))
    parts = [tokenizer.encode(text, add_special_tokens=False).ids for text in (query, document)]
    parts[1] = parts[1][: LONGEST - 3 - len(parts[0])]
    ids = torch.tensor([[first, *parts[0], last, *parts[1], last]])
    types = torch.tensor([[0] * (len(parts[0]) + 2) + [1] * (len(parts[1]) + 1)])
    takes_types = isinstance(model, transformers.BertForSequenceClassification)
    with torch.inference_mode():
        row = model(input_ids=ids, **({"token_type_ids": types} if takes_types else {})).logits[0]
    found: list[float] = row.tolist()
    return found


SIGMOID, IDENTITY = torch.nn.Sigmoid(), torch.nn.Identity()


@pytest.mark.parametrize(
    ("kind", "extra", "own", "activation"),
    [
        ("bert", {}, None, SIGMOID),
        ("qwen3", {}, None, SIGMOID),
        ("bert", {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, None, IDENTITY),
        ("bert", {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, None, IDENTITY),
        ("bert", {}, {"activation_fn": "torch.nn.modules.activation.Tanh"}, torch.nn.Tanh()),
    ],
)
def test_scores_are_transformers_logits_behind_the_named_activation(
    tmp_path: Path, kind: str, extra: dict[str, Any], own: dict[str, Any] | None, activation: torch.nn.Module
) -> None:
    model = write_reranker(tmp_path, kind, **extra)
    if own is not None:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(own))
    served = CrossEncoder.load(str(tmp_path), "cpu", "float32")
    rows = served.score(served.encode([(QUERY, text) for text in DOCUMENTS], most=served.longest))
    for document, (score, raw) in zip(DOCUMENTS, rows, strict=True):
        (wanted,) = logits(model, QUERY, document)
        assert raw == pytest.approx(wanted, abs=2e-6)
        assert score == pytest.approx(float(activation(torch.tensor(wanted))), abs=2e-6)


@pytest.mark.parametrize(
    ("labels", "relevant"),
    [
        ({0: "LABEL_0", 1: "LABEL_1"}, 1),
        ({0: "entailment", 1: "not_entailment"}, 0),
        ({0: "irrelevant", 1: "Relevant"}, 1),
    ],
)
def test_of_two_labels_the_one_for_a_fitting_pair_counts(tmp_path: Path, labels: dict[int, str], relevant: int) -> None:
    model = write_reranker(tmp_path, labels=labels)
    served = CrossEncoder.load(str(tmp_path), "cpu", "float32")
    rows = served.score(served.encode([(QUERY, text) for text in DOCUMENTS], most=served.longest))
    for document, (score, _) in zip(DOCUMENTS, rows, strict=True):
        wanted = torch.tensor(logits(model, QUERY, document)).softmax(0)[relevant]
        assert score == pytest.approx(float(wanted), abs=2e-6)


def test_the_default_prompt_is_put_before_the_query(tmp_path: Path) -> None:
    model = write_reranker(tmp_path)
    own = {"prompts": {"query": "Find: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(own))
    served = CrossEncoder.load(str(tmp_path), "cpu", "float32")
    ((_, raw),) = served.score(served.encode([(QUERY, "In Paris.")]))
    assert raw == pytest.approx(logits(model, "Find: " + QUERY, "In Paris.")[0], abs=2e-6)


@pytest.mark.parametrize(
    ("labels", "files", "named"),
    [
        ({0: "no idea", 1: "some idea"}, {}, "'no idea' and 'some idea', which do not say"),
        ({0: "a", 1: "b", 2: "c"}, {}, "3 labels; a reranker has one, or two"),
        (None, {"config_sentence_transformers.json": {"activation_fn": "evil.Function"}}, "Function, which is not one"),
        (None, {"config_sentence_transformers.json": {"default_prompt_name": "q"}}, "no prompt 'q'"),
        (
            None,
            {"modules.json": [{"idx": 0, "type": "a.Transformer"}, {"idx": 1, "type": "a.LogitScore"}]},
            "LogitScore",
        ),
    ],
)
def test_what_is_no_reranker_is_refused(
    tmp_path: Path, labels: dict[int, str] | None, files: dict[str, Any], named: str
) -> None:
    write_reranker(tmp_path, labels=labels)
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    with pytest.raises(UnusableFile, match=named):
        CrossEncoder.load(str(tmp_path), "cpu", "float32")


def test_an_encoder_without_a_head_is_refused(tmp_path: Path) -> None:
    write_reranker(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertModel"]}))
    with pytest.raises(UnusableFile, match="BertModel, which does not score pairs"):
        CrossEncoder.load(str(tmp_path), "cpu", "float32")


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    model = write_reranker(tmp_path)
    async with (
        serving(scripted("Hi."), reranker=str(tmp_path), dtype="float32") as running,
        httpx.AsyncClient(base_url=running.url) as client,
    ):
        while (await client.get("/ready")).status_code != 200:
            await asyncio.sleep(0.01)
        yield client, model


async def test_documents_come_with_the_best_first(http: tuple[httpx.AsyncClient, Any], tmp_path: Path) -> None:
    client, model = http
    wanted = [float(SIGMOID(torch.tensor(logits(model, QUERY, text)[0]))) for text in DOCUMENTS]
    order = sorted(range(len(DOCUMENTS)), key=lambda place: -wanted[place])
    body = {"model": tmp_path.name, "query": QUERY, "documents": DOCUMENTS}
    answers = await asyncio.gather(*(client.post(path, json=body) for path in ("/v1/rerank", "/rerank", "/v2/rerank")))
    for answer in answers:
        made = answer.json()
        assert [row["index"] for row in made["results"]] == order
        assert [row["document"]["text"] for row in made["results"]] == [DOCUMENTS[place] for place in order]
        scores = [row["relevance_score"] for row in made["results"]]
        assert scores == pytest.approx([wanted[place] for place in order], abs=2e-6)
        assert made["usage"]["prompt_tokens"] == made["usage"]["total_tokens"] > LONGEST
        assert made["model"] == tmp_path.name and made["id"].startswith("rerank_")
        assert made["warnings"] == ["Pair 4 was cut to 64 tokens, which is as long as the model takes."]
    assert order.index(0) < order.index(3), "equal scores keep the order of the documents"
    named = {"query": QUERY, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 2, "return_documents": False}
    best = (await client.post("/v1/rerank", json=named)).json()
    assert [row["index"] for row in best["results"]] == order[:2] and "document" not in best["results"][0]
    for top_n in (0, 99):
        assert len((await client.post("/v1/rerank", json={**body, "top_n": top_n})).json()["results"]) == len(DOCUMENTS)


async def test_pairs_are_scored_in_their_order(http: tuple[httpx.AsyncClient, Any]) -> None:
    client, model = http
    wanted = [logits(model, QUERY, text)[0] for text in DOCUMENTS[:3]]
    forms: list[dict[str, Any]] = [
        {"queries": QUERY, "documents": DOCUMENTS[:3]},
        {"text_1": QUERY, "text_2": DOCUMENTS[:3]},
        {"queries": [QUERY] * 3, "items": DOCUMENTS[:3]},
    ]
    for form in forms:
        made = (await client.post("/v1/score", json={**form, "use_activation": False})).json()
        assert [row["index"] for row in made["data"]] == [0, 1, 2]
        assert [row["score"] for row in made["data"]] == pytest.approx(wanted, abs=2e-6)
    single = (await client.post("/score", json={"text_1": QUERY, "text_2": DOCUMENTS[0]})).json()
    assert single["object"] == "list" and len(single["data"]) == 1
    assert single["data"][0]["score"] == pytest.approx(float(SIGMOID(torch.tensor(wanted[0]))), abs=2e-6)
    cut = (await client.post("/v1/score", json={**forms[0], "truncate_prompt_tokens": 10})).json()
    assert cut["usage"]["prompt_tokens"] <= 30 and "warnings" not in cut


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/rerank", {"query": QUERY, "documents": []}, "documents must be a list of 1 to"),
    ("/v1/rerank", {"query": QUERY}, "documents must be a list"),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, "query must not be empty"),
    ("/v1/rerank", {"documents": ["a"]}, "query"),
    ("/v1/rerank", {"query": QUERY, "documents": ["a", 5]}, "documents.1"),
    ("/v1/rerank", {"query": QUERY, "documents": ["a"], "top_n": -1}, "top_n"),
    ("/v1/rerank", {"query": QUERY, "documents": ["a"], "rank_fields": ["title"]}, "rank_fields"),
    ("/v1/rerank", {"query": QUERY, "documents": ["a"], "truncate_prompt_tokens": 3}, "keep more than 3"),
    ("/v1/rerank", {"query": QUERY, "documents": ["a"], "model": "agent-server-demo"}, "does not rerank"),
    ("/v1/score", {"queries": ["a", "b"], "documents": ["c"]}, "as many as documents, which has 1"),
    ("/v1/score", {"queries": "a"}, "documents must be a list"),
]


async def test_what_cannot_be_scored_is_refused(http: tuple[httpx.AsyncClient, Any]) -> None:
    client, _ = http
    for path, body, message in BAD:
        answer = await client.post(path, json=body)
        assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text
    unknown = await client.post("/v1/rerank", json={"query": "a", "documents": ["b"], "model": "unheard-of"})
    assert unknown.status_code == 404


async def test_an_upstreams_scores_are_passed_through(http: tuple[httpx.AsyncClient, Any], tmp_path: Path) -> None:
    client, _ = http
    async with (
        serving(scripted("Hi."), reranker=f"{client.base_url}#{tmp_path.name}") as running,
        httpx.AsyncClient(base_url=running.url) as through,
    ):
        for path, body in {
            "/v1/rerank": {"query": QUERY, "documents": DOCUMENTS, "top_n": 3},
            "/v1/score": {"queries": ["a", "b"], "documents": ["c", "d"], "use_activation": False},
        }.items():
            direct, passed = (await client.post(path, json=body)).json(), (await through.post(path, json=body)).json()
            for key in ("results", "data", "usage", "model"):
                assert passed.get(key) == direct.get(key)
        cards = (await through.get("/v1/models")).json()["data"]
    assert cards[-1]["id"] == tmp_path.name


async def test_a_server_without_a_reranker_says_so() -> None:
    async with serving(scripted("Hi.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        answer = await client.post("/v1/rerank", json={"query": "a", "documents": ["b"]})
    assert answer.status_code == 400 and "--reranker" in answer.json()["error"]["message"]


def test_a_source_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="no folder nowhere"):
        choose_reranker(server_settings(reranker="nowhere"))


def test_a_reranker_in_place_of_a_model_that_chats_is_told_its_option(tmp_path: Path) -> None:
    write_reranker(tmp_path)
    with pytest.raises(StartupError, match=rf"scores texts and cannot chat.*--reranker {tmp_path}"):
        build_server(server_settings(model=str(tmp_path)))
