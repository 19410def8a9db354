"""Rerank and Score in the form of vLLM, Jina and Cohere: a query and documents in, a score for each document out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from adapters.body import DEFAULT_LIMITS, Limits, boolean, integer, optional, read_object, string, wrong
from adapters.request_fields import (
    ANY,
    BOOLEAN,
    INTEGER,
    STRING,
    Field,
    accepted,
    honoured,
    ignored,
    read_fields,
    refused,
)
from adapters.request_options import truncation_length
from adapters.sse import json_bytes

MAX_DOCUMENTS = 2048
SHARED: dict[str, Field] = {
    "model": honoured("the reranker's name", STRING),
    "truncate_prompt_tokens": honoured("tokens of a query and its document; -1: as many as fit", INTEGER),
    "use_activation": honoured("false returns the logit instead of the activated score", BOOLEAN),
    "user": accepted("texts are not kept"),
    "priority": accepted("pairs are scored in the order of the request"),
    "request_id": accepted("the server names its requests itself"),
}
RERANK_FIELDS: dict[str, Field] = {
    "query": honoured("the text that the documents are compared with", STRING),
    "documents": honoured("texts, or objects with a `text`", {"type": "array"}),
    "top_n": honoured("how many of the best results are returned; 0: all", INTEGER),
    "return_documents": honoured("whether the results contain the documents; true if absent", BOOLEAN),
    "max_tokens_per_doc": ignored("a document is cut to what the model takes"),
    "max_chunks_per_doc": ignored("a document is not divided"),
    "rank_fields": refused("of a document that is an object, its `text` is read", neutral=(["text"], [])),
    **SHARED,
}
SCORE_FIELDS: dict[str, Field] = {
    "queries": honoured("one text, or one for each document", ANY),
    "documents": honoured("one text, or several", ANY),
    "text_1": honoured("as `queries`", ANY),
    "text_2": honoured("as `documents`", ANY),
    "items": honoured("as `documents`", ANY),
    **SHARED,
}


class RerankQuery(msgspec.Struct, frozen=True, kw_only=True):
    """truncate: tokens kept of each pair; -1 for as many as fit; None to truncate as the model does, with a warning.
    activated: whether the model's activation is applied to the scores."""

    pairs: tuple[tuple[str, str], ...]
    model: str | None = None
    truncate: int | None = None
    activated: bool = True
    top_n: int | None = None
    return_documents: bool = True


def parse_rerank(body: bytes, *, limits: Limits = DEFAULT_LIMITS) -> RerankQuery:
    """Read a rerank body. Raises RequestError."""
    values = read_fields(read_object(body, limits), RERANK_FIELDS)
    query = string("query", values.get("query"))
    if not query:
        raise wrong("query", "must not be empty")
    top_n = optional(integer, "top_n", values.get("top_n"))
    if top_n is not None and top_n < 0:
        raise wrong("top_n", "must be at least 1, or 0 for all")
    returned = optional(boolean, "return_documents", values.get("return_documents"))
    return RerankQuery(
        pairs=tuple((query, document) for document in _texts("documents", values.get("documents"))),
        model=optional(string, "model", values.get("model")),
        truncate=optional(truncation_length, "truncate_prompt_tokens", values.get("truncate_prompt_tokens")),
        activated=optional(boolean, "use_activation", values.get("use_activation")) is not False,
        top_n=top_n or None,
        return_documents=returned is not False,
    )


def parse_score(body: bytes, *, limits: Limits = DEFAULT_LIMITS) -> RerankQuery:
    """Read a score body. Raises RequestError."""
    values = read_fields(read_object(body, limits), SCORE_FIELDS)
    of_query = next((name for name in ("queries", "text_1") if values.get(name) is not None), "queries")
    of_document = next((name for name in ("documents", "items", "text_2") if values.get(name) is not None), "documents")
    queries, documents = (
        _texts(name, [values[name]] if isinstance(values.get(name), str) else values.get(name))
        for name in (of_query, of_document)
    )
    if len(queries) not in (1, len(documents)):
        raise wrong(of_query, f"must have one text, or as many as {of_document}, which has {len(documents)}")
    if len(queries) == 1:
        queries *= len(documents)
    return RerankQuery(
        pairs=tuple(zip(queries, documents, strict=True)),
        model=optional(string, "model", values.get("model")),
        truncate=optional(truncation_length, "truncate_prompt_tokens", values.get("truncate_prompt_tokens")),
        activated=optional(boolean, "use_activation", values.get("use_activation")) is not False,
    )


def _texts(at: str, value: object) -> list[str]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_DOCUMENTS:
        raise wrong(at, f"must be a list of 1 to {MAX_DOCUMENTS} texts")
    return [
        string(f"{at}.{place}.text", item.get("text")) if isinstance(item, dict) else string(f"{at}.{place}", item)
        for place, item in enumerate(value)
    ]


def rerank_body(
    scores: Sequence[float], tokens: int, model: str, query: RerankQuery, *, id: str, warnings: Sequence[str] = ()
) -> bytes:
    """Encode the results, the best first; equal ones in the order of the documents. tokens: of all pairs."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[: query.top_n]
    results = [
        {
            "index": place,
            "relevance_score": scores[place],
            **({"document": {"text": query.pairs[place][1]}} if query.return_documents else {}),
        }
        for place in order
    ]
    return json_bytes(
        {"id": id, "object": "list", "model": model, "results": results, "usage": _usage(tokens), **_warnings(warnings)}
    )


def score_body(
    scores: Sequence[float], tokens: int, model: str, *, id: str, created: int, warnings: Sequence[str] = ()
) -> bytes:
    data = [{"index": place, "object": "score", "score": score} for place, score in enumerate(scores)]
    head = {"id": id, "object": "list", "created": created, "model": model, "data": data}
    return json_bytes({**head, "usage": _usage(tokens), **_warnings(warnings)})


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _warnings(warnings: Sequence[str]) -> dict[str, list[str]]:
    return {"warnings": list(warnings)} if warnings else {}
