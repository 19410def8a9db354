"""vLLM's token-in token-out endpoint, `/inference/v1/generate` (`vllm serve --enable-scale-out`, or `--tokens-only`).

The endpoint sends no text, so only this side looks for stop strings, and closes the stream when it finds one.

Pictures go beside the ids. vLLM's own processor puts as many tokens in the place of each one's token as it takes, so
that templates and control tokens stay on this side.
"""

from __future__ import annotations

import base64
import io
from typing import Any

import msgspec
from PIL import Image

from agent_server.engine_protocol.protocol import EngineError, Picture
from agent_server.engines.upstream.cache_salt import cache_salt
from agent_server.engines.upstream.dialects.dialect import (
    Frame,
    FrameDecoder,
    OutgoingRequest,
    Piece,
    Reader,
    UpstreamInfo,
    known,
)
from agent_server.engines.upstream.dialects.openai_frames import UsageFrame
from agent_server.engines.upstream.dialects.vllm import SAMPLING_WORDS, SPELLING, VLLM, grammar_words
from agent_server.engines.upstream.dialects.words import HERE, Word, Words, sampling_fields
from agent_server.engines.upstream.transport import Transport


class VLLMTokens(VLLM):
    """The model is described by the same server's other endpoints, as for VLLM."""

    name = "vllm-tokens"
    path = "/inference/v1/generate"
    words: Words = {**SAMPLING_WORDS, "stop": HERE, "logprobs": Word("logprobs"), "bad_words": Word("bad_words", list)}

    async def describe(self, transport: Transport, wanted: str) -> UpstreamInfo:
        """As of vLLM, and whether this one's endpoint takes pictures: its own description says so (vLLM 0.33 has
        `content_parts`; earlier ones ignore the field)."""
        served = await super().describe(transport, wanted)
        schemas = known(known((await transport.ask("/openapi.json")).json(), "components", dict), "schemas", dict)
        fields = known(known(schemas, "GenerateRequest", dict), "properties", dict)
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
    """A picture as vLLM's `content_parts` have it. Takes tens of milliseconds for a photograph."""
    written = io.BytesIO()
    image = Image.frombytes("RGB", (picture.width, picture.height), picture.pixels)
    image.save(written, "PNG", compress_level=1)
    data = base64.b64encode(written.getvalue()).decode()
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
    """alternatives: how many were requested for each token, None for no log probabilities."""

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
                self._add_logprobs(piece, choice.logprobs)
        return piece

    def _add_logprobs(self, piece: Piece, logprobs: _TokensLogprobs | None) -> None:
        content = (logprobs.content if logprobs is not None else None) or []
        if len(content) != len(piece.ids):
            raise EngineError("connection", "The upstream left out log probabilities.", retryable=True)
        most = self._alternatives or 0
        piece.logprobs = [each.logprob for each in content]
        tops = ([(top.token_id, top.logprob) for top in each.top_logprobs] for each in content)
        piece.alternatives = [sorted(top, key=lambda pair: -pair[1])[:most] for top in tops]
