"""OpenAI's `/v1/completions` as a dialect, for any server that no other dialect fits, and the frames that it sends.

The prompt is sent as text with its control tokens spelled out, and the answer's text is encoded here. A server that
leaves special tokens out of its text hides the model's markers, and the protocol has no field to prevent that. Stop
strings are only looked for here, because such a server does not say which one it found. vLLM adds token ids to the
frames, which its dialect reads with the same reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agent_server.engine_protocol.detokenizer import Vocabulary
from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream.dialects.dialect import (
    HERE,
    Frame,
    FrameDecoder,
    OutgoingRequest,
    ParameterMapping,
    Piece,
    Reader,
    UpstreamInfo,
    Words,
    chosen_model,
    field_of,
    folded,
    sampling_fields,
)
from agent_server.engines.upstream.errors import error_of, refused
from agent_server.engines.upstream.transport import Transport

ID_PREFIX = "token_id:"


class _LogprobsFrame(msgspec.Struct):
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class _ChoiceFrame(msgspec.Struct):
    text: str = ""
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _LogprobsFrame | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class UsageFrame(msgspec.Struct):
    prompt_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _ChunkFrame(Frame):
    choices: list[_ChoiceFrame] = []
    usage: UsageFrame | None = None


class CompletionReader:
    """Reads the frames of one stream. ids: whether they must have token ids; a frame with only text is then an error.
    alternatives: the number requested for each token, None for no log probabilities."""

    def __init__(self, *, ids: bool, alternatives: int | None) -> None:
        self._ids = ids
        self._alternatives = alternatives
        self._decoder = FrameDecoder(_ChunkFrame)

    def read(self, data: bytes) -> Piece | None:
        chunk = self._decoder.read(data)
        if chunk is None:
            return None
        cached = None
        if chunk.usage is not None and chunk.usage.prompt_tokens_details is not None:
            cached = chunk.usage.prompt_tokens_details.cached_tokens
        if not chunk.choices:
            return Piece(cached=cached) if cached is not None else None
        choice = chunk.choices[0]
        ids = choice.token_ids or ()
        if self._ids and choice.token_ids is None and choice.text:
            raise EngineError("unavailable", "The upstream sends no token ids; use the dialect openai for its text.")
        piece = Piece(ids=ids, text=choice.text, finish=choice.finish_reason, stop=choice.stop_reason)
        if self._alternatives is not None and ids:
            values = choice.logprobs.token_logprobs if choice.logprobs is not None else []
            if len(values) != len(ids):
                raise EngineError("connection", "The upstream left out log probabilities.", retryable=True)
            piece.logprobs = [-9999.0 if value is None else value for value in values]
            tops = (choice.logprobs.top_logprobs if choice.logprobs is not None else None) or [None] * len(values)
            piece.alternatives = [_alternatives(top or {}, self._alternatives) for top in tops]
        piece.cached = cached
        return piece


def _alternatives(top: dict[str, float], most: int) -> list[tuple[int, float]]:
    """Return the most likely tokens in order. The server adds the chosen token if it is not among them, so the list is
    cut."""
    pairs = [(int(name.removeprefix(ID_PREFIX)), value) for name, value in top.items() if name.startswith(ID_PREFIX)]
    return sorted(pairs, key=lambda pair: -pair[1])[:most]


class OpenAI:
    """OpenAI's endpoint, or one with the same interface. Parameters with token ids are not supported, nor those that
    the endpoint does not have."""

    name = "openai"
    path = "/v1/completions"
    health = "/v1/models"
    tokens = False
    words: Words = {
        "max_tokens": ParameterMapping("max_tokens"),
        "temperature": ParameterMapping("temperature"),
        "top_p": ParameterMapping("top_p"),
        "presence_penalty": ParameterMapping("presence_penalty"),
        "frequency_penalty": ParameterMapping("frequency_penalty"),
        "seed": ParameterMapping("seed", folded),
        "stop": HERE,
        "stop_token_ids": HERE,
    }

    async def describe(self, transport: Transport, model_name: str) -> UpstreamInfo:
        entries = await models(transport)
        model = chosen_model([entry["id"] for entry in entries], model_name, transport.address.url)
        entry = next(entry for entry in entries if entry["id"] == model)
        length = field_of(entry, "max_model_len", int) or field_of(entry, "context_length", int)
        return UpstreamInfo(model=model, models=tuple(each["id"] for each in entries), context_length=length)

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        return None

    def check(self, outgoing: OutgoingRequest) -> None:
        """Refuse stop ids other than the model's own end tokens, at which the server stops anyway: they cannot be seen
        in text."""
        if not set(outgoing.sampling.stop_token_ids) <= outgoing.ends:
            message = "The upstream (openai) sends no token ids, so only the model's own end tokens can be stop ids."
            raise refused("stop_token_ids", message)

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        return {
            "model": outgoing.served.model,
            "prompt": spelled(outgoing.vocabulary, request.prompt_token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling_fields(self.words, sampling),
        }

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return CompletionReader(ids=False, alternatives=None)


def spelled(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    """Return the prompt's text, with control tokens spelled out."""
    decoder = vocabulary.detokenizer()
    return "".join(map(decoder.push, ids)) + decoder.flush()


async def models(transport: Transport) -> list[dict[str, Any]]:
    """Return the entries of /v1/models that are base models. Raises EngineError."""
    answer = await transport.ask("/v1/models")
    if answer.status != 200:
        raise error_of(answer.status, answer.body)
    data = field_of(answer.json(), "data", list) or []
    base_models = [entry for entry in data if field_of(entry, "id", str) and not field_of(entry, "parent", str)]
    if not base_models:
        raise EngineError("unavailable", f"The upstream {transport.address.url} lists no models.", retryable=True)
    return base_models
