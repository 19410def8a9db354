"""SGLang's `/generate`: ids in and out, cumulative by default.

A frame has all ids so far, or with `--incremental-streaming-output` only the new ones. In both cases the increase of
`completion_tokens` is the number of new ones. Written from the source of SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream.dialects.dialect import (
    IN_BODY,
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
from agent_server.engines.upstream.dialects.openai import models
from agent_server.engines.upstream.dialects.vllm import SPELLING
from agent_server.engines.upstream.errors import error_of
from agent_server.engines.upstream.grammar import UpstreamGrammar
from agent_server.engines.upstream.transport import Transport

GRAMMARS = {"xgrammar": "xgrammar"}
"""SGLang's `grammar_backend` → the library whose language grammars are written in."""

SAMPLING_WORDS: Words = {
    "max_tokens": ParameterMapping("max_new_tokens"),
    "min_tokens": ParameterMapping("min_new_tokens"),
    "temperature": ParameterMapping("temperature"),
    "top_p": ParameterMapping("top_p"),
    "top_k": ParameterMapping("top_k", lambda count: count or -1),
    "min_p": ParameterMapping("min_p"),
    "repetition_penalty": ParameterMapping("repetition_penalty"),
    "presence_penalty": ParameterMapping("presence_penalty"),
    "frequency_penalty": ParameterMapping("frequency_penalty"),
    "logit_bias": ParameterMapping("logit_bias", spelled_ids),
    "seed": ParameterMapping("sampling_seed", folded),
    "stop": ParameterMapping("stop"),
    "stop_token_ids": ParameterMapping("stop_token_ids"),
    "ignore_eos": ParameterMapping("ignore_eos"),
}


class SGLang:
    """An SGLang server. It supports seeds only with `--enable-deterministic-inference`; otherwise they are refused."""

    name = "sglang"
    path = "/generate"
    health = "/health"
    tokens = True
    words: Words = {**SAMPLING_WORDS, "logprobs": IN_BODY}

    async def describe(self, transport: Transport, model_name: str) -> UpstreamInfo:
        entries = await models(transport)
        model = chosen_model([entry["id"] for entry in entries], model_name, transport.address.url)
        entry = next(entry for entry in entries if entry["id"] == model)
        info = (await transport.ask("/server_info")).json()
        seeds = isinstance(info, dict) and bool(info.get("enable_deterministic_inference"))
        return UpstreamInfo(
            model=model,
            models=tuple(each["id"] for each in entries),
            version=field_of(info, "version", str) or "",
            context_length=field_of(entry, "max_model_len", int),
            grammar=GRAMMARS.get(field_of(info, "grammar_backend", str) or ""),
            lacks=() if seeds else ("seed",),
        )

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        body = {"model": served.model, "prompt": text, "add_special_tokens": False}
        return ids_of((await transport.ask("/tokenize", body)).json())

    def check(self, outgoing: OutgoingRequest) -> None:
        """Refuse nothing: every value of a parameter in `words` can be honoured."""

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        wants_logprobs = sampling.logprobs is not None
        body = {
            "rid": request.request_id,
            "input_ids": request.prompt_token_ids,
            "stream": True,
            "sampling_params": {
                **sampling_fields(SAMPLING_WORDS, sampling),
                **SPELLING,
                **_grammar_words(outgoing.grammar),
            },
            "return_logprob": wants_logprobs or None,
            "top_logprobs_num": sampling.logprobs if wants_logprobs else None,
            "logprob_start_len": -1 if wants_logprobs else None,
            "priority": request.priority or None,
            "extra_key": cache_salt(request.tenant, request.cache_salt),
        }
        return {name: value for name, value in body.items() if value is not None}

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return SGLangReader(outgoing.sampling.logprobs)


def _grammar_words(grammar: UpstreamGrammar | None) -> dict[str, object]:
    if grammar is None:
        return {}
    match grammar.kind:
        case "structural_tag":
            return {"structural_tag": msgspec.json.encode(grammar.value).decode()}
        case "json_schema":
            return {"json_schema": msgspec.json.encode(grammar.value).decode()}
        case "regex":
            return {"regex": grammar.value}
    return {"ebnf": grammar.value}


class _Finish(msgspec.Struct):
    type: str
    matched: int | str | list[int] | None = None
    message: str | None = None
    status_code: int | None = None


class _Meta(msgspec.Struct):
    finish_reason: _Finish | None = None
    completion_tokens: int = 0
    cached_tokens: int | None = None
    output_token_logprobs: list[tuple[float | None, int, object]] = []
    output_top_logprobs: list[list[tuple[float | None, int, object]] | None] = []


class _SglangFrame(Frame):
    output_ids: list[int] | None = None
    meta_info: _Meta | None = None


class SGLangReader:
    """Reads the frames of one stream. alternatives: the number requested for each token, None for no log
    probabilities."""

    def __init__(self, alternatives: int | None) -> None:
        self._alternatives = alternatives
        self._received_tokens = 0
        self._decoder = FrameDecoder(_SglangFrame)

    def read(self, data: bytes) -> Piece | None:
        frame = self._decoder.read(data)
        if frame is None or frame.meta_info is None:
            return None
        meta = frame.meta_info
        # The lists are cumulative or not, as the server was started; the count is the same in both, so it tells.
        new = meta.completion_tokens - self._received_tokens
        self._received_tokens = meta.completion_tokens
        piece = Piece(ids=_last(frame.output_ids or [], new, "ids"), cached=meta.cached_tokens)
        if self._alternatives is not None and new:
            most = self._alternatives or 0
            rows = _last(meta.output_token_logprobs, new, "log probabilities")
            piece.logprobs = [-9999.0 if value is None else value for value, *_ in rows]
            tops: Sequence[Any] = _last(meta.output_top_logprobs, new, "log probabilities") if most else [[]] * new
            piece.alternatives = [
                [(number, value) for value, number, _ in top or () if value is not None][:most] for top in tops
            ]
        if meta.finish_reason is not None:
            # Set how the generation ended.
            finish = meta.finish_reason
            if finish.type == "abort" and finish.status_code:
                raise error_of(finish.status_code, {"error": {"message": finish.message}})
            piece.finish = finish.type
            piece.stop = finish.matched if isinstance(finish.matched, int | str) else None
        return piece


def _last(values: Sequence[Any], count: int, what: str) -> Sequence[Any]:
    # Fewer than were counted: tokens are missing, and the answer must not continue as if they had never existed.
    if not 0 <= count <= len(values):
        raise EngineError("connection", f"The upstream left out {what}.", retryable=True)
    return values[len(values) - count :]
