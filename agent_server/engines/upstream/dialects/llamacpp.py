"""llama.cpp's `/completion`: ids in and out.

It has no stop ids, and sends no ids of tokens that end within a character: the former are found here, the latter are
guessed from the character once it is whole. Stop strings are found here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from agent_server.engine.detokenizer import Vocabulary
from agent_server.engines.upstream.dialects.dialect import Asked, Piece, Reader, Served, ids_of, known
from agent_server.engines.upstream.errors import error_frame, error_of
from agent_server.engines.upstream.transport import Transport

ORDER = ("penalties", "temperature", "top_k", "top_p", "min_p", "typ_p")
"""Its samplers in the order in which every other engine here applies them."""
REASONS = {"eos": "stop", "word": "stop", "limit": "length"}
MOST_SEEDS = 2**32 - 1
"""The highest seed stands for a random one."""


class LlamaCpp:
    """presence and frequency penalties count the prompt as well, which is not what was asked for: they are refused."""

    name = "llamacpp"
    path = "/completion"
    health = "/health"
    tokens = True
    supports_logprobs = True
    unsupported: Mapping[str, Any] = {
        "prompt_logprobs": None, "presence_penalty": 0.0, "frequency_penalty": 0.0, "min_tokens": 0,
    }  # fmt: skip

    async def describe(self, transport: Transport, wanted: str) -> Served:
        answer = await transport.ask("/props")
        if answer.status != 200:
            raise error_of(answer.status, answer.body)
        props = answer.json()
        settings = known(props, "default_generation_settings", dict) or {}
        entries = known((await transport.ask("/v1/models")).json(), "data", list) or [{}]
        alias = known(props, "model_alias", str) or known(entries[0], "id", str) or wanted
        return Served(
            model=alias,
            models=(alias,),
            version=known(props, "build_info", str) or "",
            context_length=known(settings, "n_ctx", int),
            vocab_size=known(known(entries[0], "meta", dict), "n_vocab", int),
        )

    async def tokenize(self, transport: Transport, served: Served, text: str) -> list[int] | None:
        body = {"content": text, "add_special": False, "parse_special": True}
        return ids_of((await transport.ask("/tokenize", body)).json())

    def check(self, asked: Asked) -> None:
        """Nothing beyond the parameters that are unsupported."""

    def body(self, asked: Asked) -> dict[str, Any]:
        request, sampling = asked.request, asked.sampling
        body = {
            "prompt": request.prompt_token_ids,
            "stream": True,
            "return_tokens": True,
            "cache_prompt": True,
            "n_predict": sampling.max_tokens,
            "samplers": ORDER,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "typical_p": 1.0 if sampling.typical_p is None else sampling.typical_p,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": _whole_length(asked),
            "logit_bias": list(sampling.logit_bias.items()) or None,
            "seed": None if sampling.seed is None else sampling.seed % MOST_SEEDS,
            "ignore_eos": sampling.ignore_eos or None,
            "n_probs": None if sampling.logprobs is None else max(1, sampling.logprobs),
        }
        return {name: value for name, value in body.items() if value is not None}

    def reader(self, asked: Asked) -> Reader:
        return LlamaCppReader(asked.vocabulary, asked.sampling.logprobs)


def _whole_length(asked: Asked) -> int:
    """Tokens that the repetition penalty looks back on: all of them; none where there is no penalty."""
    if asked.sampling.repetition_penalty in (None, 1.0):
        return 0
    return len(asked.request.prompt_token_ids) + (asked.sampling.max_tokens or 0)


class _Top(msgspec.Struct):
    id: int
    logprob: float


class _Probability(_Top):
    top_logprobs: list[_Top] = []


class _Frame(msgspec.Struct):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = "none"
    tokens_predicted: int = 0
    tokens_cached: int = 0
    completion_probabilities: list[_Probability] = []
    error: Any = None


class LlamaCppReader:
    """alternatives: how many were asked for beside each token, None for no logprobs."""

    def __init__(self, vocabulary: Vocabulary, alternatives: int | None) -> None:
        self._vocabulary = vocabulary
        self._alternatives = alternatives
        self._seen = 0
        self._decoder = msgspec.json.Decoder(_Frame)

    def read(self, data: bytes) -> Piece | None:
        if data == b"[DONE]":
            return None
        frame = self._decoder.decode(data)
        if frame.error is not None:
            raise error_frame(frame.error)
        if frame.stop:
            return Piece(finish=REASONS.get(frame.stop_type, frame.stop_type))
        if not frame.tokens:
            return None
        missing = frame.tokens_predicted - self._seen - len(frame.tokens)
        self._seen = frame.tokens_predicted
        piece = Piece(ids=frame.tokens) if missing <= 0 else self._whole(frame, missing)
        if self._alternatives is not None:
            self._add_logprobs(piece, frame)
        return piece

    def _whole(self, frame: _Frame, missing: int) -> Piece:
        """A character whose first tokens were not sent: its text is whole, and they are what our tokenizer makes of
        it, as many as there were."""
        guessed = self._vocabulary.encode(frame.content)[:missing]
        guessed += [frame.tokens[0]] * (missing - len(guessed))
        return Piece(ids=[*guessed, *frame.tokens], texts=[""] * missing + [frame.content])

    def _add_logprobs(self, piece: Piece, frame: _Frame) -> None:
        """Of tokens that were not sent nothing is known; they get the least there is."""
        found = {each.id: each for each in frame.completion_probabilities}
        least = _Probability(id=-1, logprob=-9999.0)
        rows = [found.get(number, least) for number in piece.ids]
        most = self._alternatives or 0
        piece.logprobs = [row.logprob for row in rows]
        piece.alternatives = [[(top.id, top.logprob) for top in row.top_logprobs[:most]] for row in rows]
