"""Scores of how well documents fit a query, by a cross-encoder in this process or by an upstream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import msgspec

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.encoders import LocalEncoder, check_source, upstream_transport
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.model_files import source_name

if TYPE_CHECKING:
    from agent_server.engines.upstream.transport import Transport
    from agent_server.generation.loading.cross_encoder import CrossEncoder, EncodedPair
    from agent_server.settings import Settings

Pair = tuple[str, str]
"""A query and a document."""


class RerankResult(msgspec.Struct, frozen=True):
    """One score for each pair, higher for a document that fits better; the tokens of all pairs; warnings: what was
    changed, one sentence each."""

    scores: list[float]
    tokens: int
    warnings: tuple[str, ...] = ()


class Reranker(Protocol):
    """`name` is what clients ask for. `unready` is why no request can be answered yet, "" once they can."""

    @property
    def name(self) -> str: ...

    @property
    def unready(self) -> str: ...

    async def start(self) -> None:
        """Never raises: `score` tells what is wrong."""

    async def score(self, pairs: Sequence[Pair], *, truncate: int | None, activated: bool) -> RerankResult:
        """truncate: tokens of a pair that are kept, -1 or None for as many as the model takes. activated: whether the
        model's activation is applied. Raises EngineError."""

    async def close(self) -> None: ...


class LocalReranker(LocalEncoder["CrossEncoder", "EncodedPair"]):
    """A cross-encoder of this process."""

    kind = "reranker"

    def compute(self, model: CrossEncoder, texts: Sequence[EncodedPair]) -> list[list[float]]:
        return model.score(texts)

    async def score(self, pairs: Sequence[Pair], *, truncate: int | None, activated: bool) -> RerankResult:
        model = self.loaded()
        limits = [limit for limit in (model.longest, truncate) if limit is not None and limit > 0]
        most = min(limits, default=None)
        if most is not None and most <= model.special_tokens:
            message = f"A pair has {model.special_tokens} tokens beside its texts; keep more than {most}."
            raise EngineError("invalid_request", message, param="truncate_prompt_tokens")
        encoded = await REQUEST_THREADS.run(model.encode, pairs, most=most)
        rows = await self.computed(encoded)
        cut = [number for number, pair in enumerate(encoded) if pair.cut] if truncate is None else []
        warnings = tuple(
            f"Pair {number} was cut to {most} tokens, which is as long as the model takes." for number in cut
        )
        return RerankResult(
            [row[0 if activated else 1] for row in rows], sum(len(pair.ids) for pair in encoded), warnings
        )


class _UpstreamScore(msgspec.Struct):
    index: int
    score: float


class _UpstreamRank(msgspec.Struct):
    index: int
    relevance_score: float


class _UpstreamUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    total_tokens: int = 0


class _UpstreamScores(msgspec.Struct):
    data: list[_UpstreamScore]
    usage: _UpstreamUsage = _UpstreamUsage()


class _UpstreamRanking(msgspec.Struct):
    results: list[_UpstreamRank]
    usage: _UpstreamUsage = _UpstreamUsage()


class UpstreamReranker:
    """An upstream with `/v1/rerank`, and for pairs with several queries `/v1/score`: vLLM, llama.cpp and others."""

    def __init__(self, name: str, transport: Transport) -> None:
        """name: of the upstream's model; "" for the first that it lists."""
        self.name = name or "reranker"
        self._transport = transport
        self._model = name

    async def start(self) -> None:
        """Do nothing: the upstream may start later and is contacted by the first request."""

    unready = ""

    async def score(self, pairs: Sequence[Pair], *, truncate: int | None, activated: bool) -> RerankResult:
        from agent_server.engines.upstream.dialects.openai import models
        from agent_server.engines.upstream.errors import error_of

        if not self._model:
            self._model = str((await models(self._transport))[0]["id"])
        queries, documents = [query for query, _ in pairs], [document for _, document in pairs]
        body: dict[str, object] = {"model": self._model, "documents": documents}
        body |= {} if truncate is None else {"truncate_prompt_tokens": truncate}
        body |= {} if activated else {"use_activation": False}
        ranked = len(set(queries)) == 1
        body |= {"query": queries[0]} if ranked else {"queries": queries}
        answer = await self._transport.ask("/v1/rerank" if ranked else "/v1/score", body)
        if answer.status in (404, 405, 501):
            raise EngineError("invalid_request", "The upstream does not rerank.", param="model")
        if answer.status != 200:
            raise error_of(answer.status, answer.body)
        try:
            if ranked:
                ranking = msgspec.json.decode(answer.body, type=_UpstreamRanking)
                usage, scores = ranking.usage, {each.index: each.relevance_score for each in ranking.results}
            else:
                scored = msgspec.json.decode(answer.body, type=_UpstreamScores)
                usage, scores = scored.usage, {each.index: each.score for each in scored.data}
        except (ValueError, RecursionError) as error:
            raise EngineError("connection", f"The upstream's scores cannot be read: {error}.") from None
        if sorted(scores) != list(range(len(pairs))):
            raise EngineError("connection", "The upstream left out scores.", retryable=True)
        return RerankResult([scores[place] for place in range(len(pairs))], usage.prompt_tokens or usage.total_tokens)

    async def close(self) -> None:
        await self._transport.close()


def choose_reranker(settings: Settings) -> Reranker | None:
    """Create the backend of `/v1/rerank` and `/v1/score` without loading it; None if the settings name none. Raises
    ValueError with one sentence."""
    source = settings.served.reranker
    if not source:
        return None
    if "://" in source:
        return UpstreamReranker(urlsplit(source).fragment, upstream_transport(source, settings))
    check_source(source, "a reranker", "Scores of")

    def load() -> CrossEncoder:
        from agent_server.generation.loading.cross_encoder import CrossEncoder

        compute = settings.compute
        return CrossEncoder.load(source, compute.device, compute.dtype, trusted=compute.trust_remote_code)

    return LocalReranker(source_name(source), load)
