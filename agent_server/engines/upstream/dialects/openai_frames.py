"""The frames of OpenAI's completions endpoint, with the token ids that vLLM adds to them."""

from __future__ import annotations

import msgspec

from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.upstream.dialects.dialect import Frame, FrameDecoder, Piece

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
    """ids: whether the stream must have token ids; then a frame with text alone is an error. alternatives: how many
    were requested for each token, None for no log probabilities."""

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
        piece = self._piece(chunk.choices[0])
        piece.cached = cached
        return piece

    def _piece(self, choice: _ChoiceFrame) -> Piece:
        ids = choice.token_ids or ()
        if self._ids and choice.token_ids is None and choice.text:
            raise EngineError("unavailable", "The upstream sends no token ids; use the dialect openai for its text.")
        piece = Piece(ids=ids, text=choice.text, finish=choice.finish_reason, stop=choice.stop_reason)
        if self._alternatives is not None and ids:
            self._add_logprobs(piece, choice.logprobs)
        return piece

    def _add_logprobs(self, piece: Piece, logprobs: _LogprobsFrame | None) -> None:
        values = logprobs.token_logprobs if logprobs is not None else []
        if len(values) != len(piece.ids):
            raise EngineError("connection", "The upstream left out log probabilities.", retryable=True)
        piece.logprobs = [-9999.0 if value is None else value for value in values]
        tops = (logprobs.top_logprobs if logprobs is not None else None) or [None] * len(values)
        piece.alternatives = [_alternatives(top or {}, self._alternatives or 0) for top in tops]


def _alternatives(top: dict[str, float], most: int) -> list[tuple[int, float]]:
    """The most likely tokens in order. The server adds the chosen token if it is not among them, so the list is cut."""
    pairs = [(int(name.removeprefix(ID_PREFIX)), value) for name, value in top.items() if name.startswith(ID_PREFIX)]
    return sorted(pairs, key=lambda pair: -pair[1])[:most]
