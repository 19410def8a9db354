"""vLLM's `/v1/completions` with token ids in and out, which is vLLM's stable interface."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import msgspec
from PIL import Image

from agent_server.engine_protocol.protocol import EngineError, Picture
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
    cache_salt,
    chosen_model,
    field_of,
    folded,
    ids_of,
    sampling_fields,
    spelled_ids,
)
from agent_server.engines.upstream.dialects.openai import CompletionReader, UsageFrame, models
from agent_server.engines.upstream.grammar import UpstreamGrammar
from agent_server.engines.upstream.transport import Transport

SAMPLING_WORDS: Words = {
    "max_tokens": ParameterMapping("max_tokens"),
    "min_tokens": ParameterMapping("min_tokens"),
    "temperature": ParameterMapping("temperature"),
    "top_p": ParameterMapping("top_p"),
    "top_k": ParameterMapping("top_k"),
    "min_p": ParameterMapping("min_p"),
    "repetition_penalty": ParameterMapping("repetition_penalty"),
    "presence_penalty": ParameterMapping("presence_penalty"),
    "frequency_penalty": ParameterMapping("frequency_penalty"),
    "logit_bias": ParameterMapping("logit_bias", spelled_ids),
    "seed": ParameterMapping("seed", folded),
    "stop_token_ids": ParameterMapping("stop_token_ids"),
    "ignore_eos": ParameterMapping("ignore_eos"),
    "allowed_token_ids": ParameterMapping("allowed_token_ids", list),
}
"""vLLM's names of sampling parameters, the same in its HTTP interface and in its own SamplingParams."""
SPELLING: Mapping[str, object] = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
"""Options that leave special tokens in the text, so that a stop string matches the same text there as here."""
PROBE = "%llguidance {}\nstart: /[a-z]+/\n"
PROBE_TAG = '{"type":"structural_tag","format":{"type":"const_string","value":"a"}}'


class VLLM:
    """A vLLM server. It does not stream prompt_logprobs and has no typical_p, so both are refused."""

    name = "vllm"
    path = "/v1/completions"
    health = "/health"
    tokens = True
    words: Words = {**SAMPLING_WORDS, "stop": ParameterMapping("stop"), "logprobs": ParameterMapping("logprobs")}

    async def describe(self, transport: Transport, model_name: str) -> UpstreamInfo:
        entries = await models(transport)
        model = chosen_model([entry["id"] for entry in entries], model_name, transport.address.url)
        entry = next(entry for entry in entries if entry["id"] == model)
        # The library behind structured outputs, found by trying. With vLLM's default setting a grammar in llguidance's
        # Lark is accepted; a server that was started with xgrammar alone refuses it and accepts xgrammar's tags.
        grammar: str | None = None
        for library, words in (("llguidance", {"grammar": PROBE}), ("xgrammar", {"structural_tag": PROBE_TAG})):
            body = {"model": model, "prompt": [0], "max_tokens": 1, "structured_outputs": words}
            if (await transport.ask("/v1/completions", body)).status == 200:
                grammar = library
                break
        return UpstreamInfo(
            grammar=grammar,
            model=model,
            models=tuple(each["id"] for each in entries),
            version=field_of((await transport.ask("/version")).json(), "version", str) or "",
            context_length=field_of(entry, "max_model_len", int),
        )

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        body = {"model": served.model, "prompt": text, "add_special_tokens": False}
        return ids_of((await transport.ask("/tokenize", body)).json())

    def check(self, outgoing: OutgoingRequest) -> None:
        """Refuse nothing: every value of a parameter in `words` can be honoured."""

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        body = {
            "model": outgoing.served.model,
            "prompt": request.prompt_token_ids,
            "stream": True,
            "stream_options": {"include_usage": True},
            "request_id": request.request_id,
            "return_token_ids": True,
            "add_special_tokens": False,
            **sampling_fields(self.words, sampling),
            **SPELLING,
            "return_tokens_as_token_ids": True if sampling.logprobs is not None else None,
            "structured_outputs": grammar_words(outgoing.grammar),
            "priority": -request.priority or None,
            "cache_salt": cache_salt(request.tenant, request.cache_salt),
        }
        return {name: value for name, value in body.items() if value is not None}

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return CompletionReader(ids=True, alternatives=outgoing.sampling.logprobs)


def grammar_words(grammar: UpstreamGrammar | None) -> dict[str, object] | None:
    """Return vLLM's `structured_outputs`."""
    if grammar is None:
        return None
    match grammar.kind:
        case "lark" | "ebnf":
            return {"grammar": grammar.value}
        case "structural_tag":
            return {"structural_tag": msgspec.json.encode(grammar.value).decode()}
        case "json_schema":
            return {"json": grammar.value}
        case "regex":
            return {"regex": grammar.value}


class VLLMTokens(VLLM):
    """A vLLM server's endpoint for token ids. The model is described by its other endpoints, as for VLLM."""

    name = "vllm-tokens"
    path = "/inference/v1/generate"
    words: Words = {
        **SAMPLING_WORDS,
        "stop": HERE,
        "logprobs": ParameterMapping("logprobs"),
        "bad_words": ParameterMapping("bad_words", list),
    }

    async def describe(self, transport: Transport, model_name: str) -> UpstreamInfo:
        """Describe the server as `VLLM` does. Whether this endpoint takes pictures is read from its OpenAPI description
        (vLLM 0.33 has `content_parts`; earlier versions ignore the field)."""
        served = await super().describe(transport, model_name)
        schemas = field_of(field_of((await transport.ask("/openapi.json")).json(), "components", dict), "schemas", dict)
        fields = field_of(field_of(schemas, "GenerateRequest", dict), "properties", dict)
        return msgspec.structs.replace(served, pictures="content_parts" in (fields or {}))

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        grammar = grammar_words(outgoing.grammar)
        params = {
            **sampling_fields(self.words, sampling),
            **SPELLING,
            **({"structured_outputs": grammar} if grammar is not None else {}),
        }
        body: dict[str, Any] = {
            "model": outgoing.served.model,
            "token_ids": request.prompt_token_ids,
            "request_id": request.request_id,
            "stream": True,
            "stream_options": {"include_usage": True},
            "sampling_params": params,
            "priority": -request.priority or None,
            "cache_salt": cache_salt(request.tenant, request.cache_salt),
            "content_parts": [picture_part(picture) for picture in request.pictures] or None,
        }
        return {name: value for name, value in body.items() if value is not None}

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return TokensReader(outgoing.sampling.logprobs)


def picture_part(picture: Picture) -> dict[str, object]:
    """Encode a picture for vLLM's `content_parts`. Takes tens of milliseconds for a photograph."""
    buffer = io.BytesIO()
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)
    image.save(buffer, "PNG", compress_level=1)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "url": f"data:image/png;base64,{data}"}


class _Logprob(msgspec.Struct):
    token_id: int
    logprob: float


class _Content(_Logprob):
    top_logprobs: list[_Logprob] = []


class _TokensLogprobs(msgspec.Struct):
    content: list[_Content] | None = None


class _TokensChoice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: _TokensLogprobs | None = None


class _TokensChunk(Frame):
    choices: list[_TokensChoice] = []
    usage: UsageFrame | None = None


class TokensReader:
    """Reads the frames of one stream. alternatives: the number requested for each token, None for no log
    probabilities."""

    def __init__(self, alternatives: int | None) -> None:
        self._alternatives = alternatives
        self._decoder = FrameDecoder(_TokensChunk)

    def read(self, data: bytes) -> Piece | None:
        chunk = self._decoder.read(data)
        if chunk is None:
            return None
        piece = Piece()
        if chunk.usage is not None:
            piece.prompt = chunk.usage.prompt_tokens
            if chunk.usage.prompt_tokens_details is not None:
                piece.cached = chunk.usage.prompt_tokens_details.cached_tokens
        if chunk.choices:
            choice = chunk.choices[0]
            piece.ids, piece.finish, piece.stop = choice.token_ids or (), choice.finish_reason, choice.stop_reason
            if self._alternatives is not None and piece.ids:
                content = (choice.logprobs.content if choice.logprobs is not None else None) or []
                if len(content) != len(piece.ids):
                    raise EngineError("connection", "The upstream left out log probabilities.", retryable=True)
                piece.logprobs = [each.logprob for each in content]
                tops = ([(top.token_id, top.logprob) for top in each.top_logprobs] for each in content)
                piece.alternatives = [sorted(top, key=lambda pair: -pair[1])[: self._alternatives] for top in tops]
        return piece
