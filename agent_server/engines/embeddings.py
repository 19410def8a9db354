"""Embeddings of texts, by a model in this process or by an upstream."""

from __future__ import annotations

import math
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
    from agent_server.generation.loading.pooling import EncodedText, VectorModel
    from agent_server.settings import Settings

Input = str | tuple[int, ...]


class EmbeddingResult(msgspec.Struct, frozen=True):
    """One vector for each input, and the tokens of all inputs. warnings: what was changed, one sentence each."""

    vectors: list[list[float]]
    tokens: int
    warnings: tuple[str, ...] = ()


class Embeddings(Protocol):
    """`name` is what clients ask for. `unready` is why no request can be answered yet, "" once they can. `embed` raises
    EngineError; truncate, prompt: see `EmbeddingQuery`."""

    @property
    def name(self) -> str: ...

    @property
    def unready(self) -> str: ...

    async def start(self) -> None:
        """Never raises: `embed` tells what is wrong."""

    async def embed(
        self, inputs: Sequence[Input], *, dimensions: int | None, truncate: int | None, prompt: str | None = None
    ) -> EmbeddingResult: ...

    async def close(self) -> None: ...


class LocalEmbeddings(LocalEncoder["VectorModel", "EncodedText"]):
    """A model of this process that makes vectors."""

    kind = "embedding model"

    def compute(self, model: VectorModel, texts: Sequence[EncodedText]) -> list[list[float]]:
        return model.embed(texts)

    async def embed(
        self, inputs: Sequence[Input], *, dimensions: int | None, truncate: int | None, prompt: str | None = None
    ) -> EmbeddingResult:
        model = self.loaded()
        if dimensions is not None:
            message = ""
            if dimensions > model.size:
                message = f"dimensions must be at most {model.size}, which is what {self.name} has."
            elif model.dimensions and dimensions not in (*model.dimensions, model.size):
                sizes = ", ".join(map(str, sorted(model.dimensions)))
                message = f"dimensions must be one of {sizes}, which {self.name} was trained for."
            if message:
                raise EngineError("invalid_request", message, param="dimensions")
        texts = await REQUEST_THREADS.run(_encoded, model, inputs, truncate, prompt)
        vectors = await self.computed(texts)
        if dimensions is not None:
            # Scaled to length 1 again, as for nested (Matryoshka) embeddings.
            truncated = [vector[:dimensions] for vector in vectors]
            lengths = [math.sqrt(math.fsum(number * number for number in vector)) or 1.0 for vector in truncated]
            vectors = [
                [number / length for number in vector] for vector, length in zip(truncated, lengths, strict=True)
            ]
        # A caller that sets `truncate` expects its inputs to be cut.
        warnings = tuple(
            f"Input {number} was cut from {text.length} to {len(text.ids)} tokens, which is as long as the model takes."
            for number, text in enumerate(texts)
            if truncate is None and text.length > len(text.ids)
        )
        return EmbeddingResult(vectors, sum(len(text.ids) for text in texts), warnings)


def _encoded(
    model: VectorModel, inputs: Sequence[Input], truncate: int | None, prompt: str | None
) -> list[EncodedText]:
    """Encode the inputs and truncate them as requested. Raises EngineError for an input that cannot be embedded."""
    from agent_server.generation.loading.pooling import EncodedText

    if prompt is not None and prompt not in model.prompts:
        names = ", ".join(model.prompts) or "none"
        raise EngineError("invalid_request", f"Unknown prompt {prompt!r}. The model has {names}.", param="prompt_name")
    limits = [limit for limit in (model.longest, truncate) if limit is not None and limit > 0]
    most = min(limits, default=None) if model.cuts or truncate is not None else None
    encoded = iter(model.encode([each for each in inputs if isinstance(each, str)], prompt=prompt, most=most))
    texts = [
        next(encoded) if isinstance(each, str) else EncodedText(list(each[:most]), 0, len(each)) for each in inputs
    ]
    for text in texts:
        if text.ids and not 0 <= min(text.ids) <= max(text.ids) < model.vocab_size:
            message = f"The token id {max(text.ids)} is outside of the vocabulary of {model.vocab_size}."
            raise EngineError("invalid_request", message, param="input")
        if model.longest is not None and len(text.ids) > model.longest:
            message = (
                f"An input has {text.length} tokens; this model takes {model.longest}. truncate_prompt_tokens cuts it."
            )
            raise EngineError("context_length_exceeded", message, param="input")
        if not text.ids:
            raise EngineError("invalid_request", "An input has no tokens.", param="input")
    return texts


class _UpstreamVector(msgspec.Struct):
    index: int
    embedding: list[float]


class _UpstreamUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0


class _UpstreamAnswer(msgspec.Struct):
    data: list[_UpstreamVector]
    usage: _UpstreamUsage = _UpstreamUsage()


class UpstreamEmbeddings:
    """An upstream with `/v1/embeddings`: vLLM, SGLang, llama.cpp and others."""

    def __init__(self, name: str, transport: Transport) -> None:
        """name: of the upstream's model; "" for the first that it lists."""
        self.name = name or "embeddings"
        self._transport = transport
        self._model = name

    async def start(self) -> None:
        """Do nothing: the upstream may start later and is contacted by the first request."""

    unready = ""

    async def embed(
        self, inputs: Sequence[Input], *, dimensions: int | None, truncate: int | None, prompt: str | None = None
    ) -> EmbeddingResult:
        from agent_server.engines.upstream.dialects.openai import models
        from agent_server.engines.upstream.errors import error_of

        if not self._model:
            self._model = str((await models(self._transport))[0]["id"])
        whole = inputs[0] if len(inputs) == 1 else inputs
        body: dict[str, object] = {"model": self._model, "input": whole, "encoding_format": "float"}
        options = {"dimensions": dimensions, "truncate_prompt_tokens": truncate, "prompt_name": prompt}
        body |= {name: value for name, value in options.items() if value is not None}
        answer = await self._transport.ask("/v1/embeddings", body)
        if answer.status in (404, 405, 501):
            raise EngineError("invalid_request", "The upstream makes no embeddings.", param="model")
        if answer.status != 200:
            raise error_of(answer.status, answer.body)
        try:
            read = msgspec.json.decode(answer.body, type=_UpstreamAnswer)
        except (ValueError, RecursionError) as error:
            raise EngineError("connection", f"The upstream's embeddings cannot be read: {error}.") from None
        if [each.index for each in sorted(read.data, key=lambda each: each.index)] != list(range(len(inputs))):
            raise EngineError("connection", "The upstream left out embeddings.", retryable=True)
        ordered = sorted(read.data, key=lambda each: each.index)
        return EmbeddingResult([each.embedding for each in ordered], read.usage.prompt_tokens)

    async def close(self) -> None:
        await self._transport.close()


def choose_embeddings(settings: Settings) -> Embeddings | None:
    """Create the backend of `/v1/embeddings` without loading it; None if the settings name none. Raises ValueError with
    one sentence."""
    source = settings.served.embedding_model
    if not source:
        return None
    if "://" in source:
        return UpstreamEmbeddings(urlsplit(source).fragment, upstream_transport(source, settings))
    check_source(source, "an embedding model", "Embeddings of")

    def load() -> VectorModel:
        from agent_server.generation.loading.pooling import VectorModel

        compute = settings.compute
        return VectorModel.load(source, compute.device, compute.dtype, trusted=compute.trust_remote_code)

    return LocalEmbeddings(source_name(source), load)
