"""llama.cpp's `/completion`: ids in and out.

The server takes no stop ids, so this side looks for them, and for stop strings. It does not send the ids of tokens that
end within a character: they are guessed by encoding the character once it is complete.
"""

from __future__ import annotations

from typing import Any

import msgspec

from agent_server.engine_protocol.detokenizer import Vocabulary
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
    field_of,
    ids_of,
    sampling_fields,
)
from agent_server.engines.upstream.errors import error_of
from agent_server.engines.upstream.transport import Transport

ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""llama.cpp's samplers in the order in which all other engines here apply them."""
REASONS = {"eos": "stop", "word": "stop", "limit": "length"}
MOST_SEEDS = 2**32 - 1
"""Seeds are taken modulo this, because llama.cpp reads the highest number of 32 bits as "choose a seed"."""


class LlamaCpp:
    """The server's presence and frequency penalties count the prompt as well, so these parameters are refused."""

    name = "llamacpp"
    path = "/completion"
    health = "/health"
    tokens = True
    words: Words = {
        "max_tokens": ParameterMapping("n_predict"),
        "temperature": ParameterMapping("temperature"),
        "top_k": ParameterMapping("top_k"),
        "top_p": ParameterMapping("top_p"),
        "min_p": ParameterMapping("min_p"),
        "typical_p": ParameterMapping("typical_p"),
        "repetition_penalty": ParameterMapping("repeat_penalty"),
        "logit_bias": ParameterMapping("logit_bias", lambda bias: list(bias.items())),
        "seed": ParameterMapping("seed", lambda seed: seed % MOST_SEEDS),
        "stop": HERE,
        "stop_token_ids": HERE,
        "ignore_eos": ParameterMapping("ignore_eos"),
        "logprobs": ParameterMapping("n_probs", lambda count: max(1, count)),
    }

    async def describe(self, transport: Transport, model_name: str) -> UpstreamInfo:
        answer = await transport.ask("/props")
        if answer.status != 200:
            raise error_of(answer.status, answer.body)
        props = answer.json()
        settings = field_of(props, "default_generation_settings", dict) or {}
        entries = field_of((await transport.ask("/v1/models")).json(), "data", list) or [{}]
        alias = field_of(props, "model_alias", str) or field_of(entries[0], "id", str) or model_name
        return UpstreamInfo(
            model=alias,
            models=(alias,),
            version=field_of(props, "build_info", str) or "",
            context_length=field_of(settings, "n_ctx", int),
            vocab_size=field_of(field_of(entries[0], "meta", dict), "n_vocab", int),
        )

    async def tokenize(self, transport: Transport, served: UpstreamInfo, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": True}
        return ids_of((await transport.ask("/tokenize", body)).json())

    def check(self, outgoing: OutgoingRequest) -> None:
        """Refuse nothing: every value of a parameter in `words` can be honoured."""

    def body(self, outgoing: OutgoingRequest) -> dict[str, Any]:
        request, sampling = outgoing.request, outgoing.sampling
        # The number of tokens that the repetition penalty looks back on: all, or 0 without a penalty.
        has_penalty = sampling.repetition_penalty not in (None, 1.0)
        looks_back = len(request.prompt_token_ids) + (sampling.max_tokens or 0) if has_penalty else 0
        return {
            "prompt": request.prompt_token_ids,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "samplers": ORDER,
            **sampling_fields(self.words, sampling),
            "repeat_last_n": looks_back,
        }

    def reader(self, outgoing: OutgoingRequest) -> Reader:
        return LlamaCppReader(outgoing.vocabulary, outgoing.sampling.logprobs)


class _Top(msgspec.Struct):
    id: int
    logprob: float


class _Probability(_Top):
    top_logprobs: list[_Top] = []


class _LlamacppFrame(Frame):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = "none"
    tokens_predicted: int = 0
    tokens_cached: int = 0
    completion_probabilities: list[_Probability] = []


class LlamaCppReader:
    """Reads the frames of one stream. alternatives: the number requested for each token, None for no log
    probabilities."""

    def __init__(self, vocabulary: Vocabulary, alternatives: int | None) -> None:
        self._vocabulary = vocabulary
        self._alternatives = alternatives
        self._received_tokens = 0
        self._decoder = FrameDecoder(_LlamacppFrame)

    def read(self, data: bytes) -> Piece | None:
        frame = self._decoder.read(data)
        if frame is None:
            return None
        # In a stream the last frame carries no tokens, only how the generation ended.
        if frame.stop:
            return Piece(finish=REASONS.get(frame.stop_type, frame.stop_type))
        if not frame.tokens:
            return None
        # Tokens that end within a character are counted by the server, but not sent.
        missing = frame.tokens_predicted - self._received_tokens - len(frame.tokens)
        self._received_tokens = frame.tokens_predicted
        piece = Piece(ids=frame.tokens)
        if missing > 0:
            # A whole character, whose first tokens were not sent: they are taken from our own encoding of it.
            guessed = self._vocabulary.encode(frame.content)[:missing]
            guessed += [frame.tokens[0]] * (missing - len(guessed))
            piece = Piece(ids=[*guessed, *frame.tokens], texts=[""] * missing + [frame.content])
        if self._alternatives is not None:
            # Add log probabilities.
            sent = {each.id: each for each in frame.completion_probabilities}
            unknown = _Probability(id=-1, logprob=-9999.0)
            rows = [sent.get(number, unknown) for number in piece.ids]
            most = self._alternatives or 0
            piece.logprobs = [row.logprob for row in rows]
            piece.alternatives = [[(top.id, top.logprob) for top in row.top_logprobs[:most]] for row in rows]
        return piece
