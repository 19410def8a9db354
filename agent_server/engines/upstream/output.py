"""Turns the frames of one stream into Tokens with their text, and finds how the generation ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from agent_server.engine.continuation import already_ended
from agent_server.engine.detokenizer import OutputText
from agent_server.engine.protocol import (
    EngineError,
    Finished,
    FinishReason,
    Timings,
    Token,
    Usage,
)
from agent_server.engines.upstream.connection import Upstream
from agent_server.engines.upstream.constraint_verifier import ConstraintVerifier
from agent_server.engines.upstream.dialects import OutgoingRequest, Piece
from agent_server.engines.upstream.upstream_text import UpstreamText

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
"""Upstream's finish reason → ours. Any other reason means that the upstream ended the generation by itself."""


class Output:
    """One stream. ended: it is known how the generation ended. over: nothing more needs to be read from the upstream.
    failure: an error that came behind tokens, to be raised once these are delivered."""

    def __init__(
        self, upstream: Upstream, outgoing: OutgoingRequest, verifier: ConstraintVerifier | None = None
    ) -> None:
        request, sampling = outgoing.request, outgoing.sampling
        self.request = request
        self.count = len(request.generated)
        self.over = False
        self.failure: EngineError | None = None
        self._upstream = upstream
        self._verifier = verifier
        self._reader = upstream.dialect.reader(outgoing)
        self._upstream_text = UpstreamText(upstream.model.vocabulary, upstream.model.controls)
        self._text = OutputText(
            self._upstream_text, request.prompt_token_ids, sampling.stop, sampling.min_tokens, request.generated
        )
        # With `ignore_eos` the model's own end tokens are ordinary tokens; the stop ids of the request still count.
        own = frozenset() if sampling.ignore_eos else upstream.model.ends
        self._stop_ids = frozenset(sampling.stop_token_ids)
        self._min_tokens = sampling.min_tokens
        self._ends = own | self._stop_ids
        ended = already_ended(request, self._text, upstream.model.ends, sampling.max_tokens)
        self._finish: tuple[FinishReason, str | int | None] | None = (ended.reason, ended.stop) if ended else None
        self._cached = 0
        self._prompt = len(request.prompt_token_ids)
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._first: float | None = None

    @property
    def ended(self) -> bool:
        return self._finish is not None

    def read(self, frames: Sequence[bytes]) -> list[Token]:
        """The tokens that may be delivered now. Raises EngineError. If tokens came before the error in the same frames,
        they are returned and the error is stored in `failure`."""
        tokens: list[Token] = []
        try:
            for data in frames:
                piece = self._piece(data)
                if piece is not None:
                    tokens += self.take(piece)
        except EngineError as error:
            if not tokens:
                raise
            self.failure = error
        return tokens

    def _piece(self, data: bytes) -> Piece | None:
        try:
            piece: Piece | None = self._reader.read(data)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            message = (
                f"The upstream sent data that is not a frame of the dialect {self._upstream.dialect.name}: {error}"
            )
            raise EngineError("connection", message, retryable=True) from error
        return piece

    def take(self, piece: Piece) -> list[Token]:
        """The tokens of one decoded frame that may be delivered now. Raises EngineError."""
        self._cached = self._cached if piece.cached is None else piece.cached
        if piece.prompt is not None and self.request.pictures:  # it alone knows how many tokens they take
            self._prompt = piece.prompt - len(self.request.generated)
        # Frames behind the end may still carry usage, but their tokens are not part of the answer.
        return [] if self.ended else self._take(piece)

    def _take(self, piece: Piece) -> list[Token]:
        if not self._upstream.dialect.tokens:
            piece.ids = self._upstream_text.take(piece.text)
        elif piece.texts is not None:
            self._upstream_text.expect(piece.texts)
        if self._first is None and piece.ids:
            self._first = self._clock() - self._began
        released: list[Token] = []
        for place in range(len(piece.ids)):
            released += self._push(piece, place)
            if self.ended:
                # A stop string that only this side looks for leaves the upstream generating: the stream must be closed.
                self.over = piece.finish is None and piece.ids[place] not in self._upstream.model.ends
                return released
        if piece.finish is not None:
            # No token will follow that could complete a stop string, so text that was held back for one is released.
            released += self._text.drain()
            self._finish = self._ending(piece)
        return released

    def _push(self, piece: Piece, place: int) -> list[Token]:
        number = piece.ids[place]
        if not 0 <= number < self._upstream.info.vocab_size:
            raise EngineError("connection", f"The upstream sent the token id {number}, which is not in the vocabulary.")
        self.count += 1
        last = piece.finish is not None and place == len(piece.ids) - 1
        # Two ways to see that a token ends the answer: it is a stop id, or the upstream stopped without a stop string.
        stopped_here = last and piece.finish == "stop" and not isinstance(piece.stop, str)
        is_stop_id = number in self._ends and self.count > self._min_tokens
        ends = is_stop_id or (stopped_here and self._is_end(number, piece))
        if self._verifier is not None:
            self._verifier.token(number, ends=ends)
        logprob = piece.logprobs[place] if piece.logprobs is not None else None
        alternatives = piece.alternatives[place] if piece.alternatives is not None else None
        released = self._text.push(number, logprob, alternatives, ends=ends, last=last)
        if self._text.stopped is not None:
            self._finish = ("stop", self._text.stopped)
        elif is_stop_id:
            self._finish = ("stop", self._stop(number))
        return released

    def _is_end(self, number: int, piece: Piece) -> bool:
        """Whether the token that the upstream stopped at is an end token. When a grammar is complete, SGLang names the
        last token as the match even if it is ordinary text; that is not one."""
        return number in self._ends or (number == piece.stop and number in self._upstream.model.controls)

    def _stop(self, matched: str | int | None) -> str | int | None:
        """`stop` as reported in Finished: None for the end of sequence."""
        return None if matched in self._upstream.model.ends else matched

    def _ending(self, piece: Piece) -> tuple[FinishReason, str | int | None]:
        reason = _REASONS.get(piece.finish or "")
        if reason is None:
            message = f"The upstream ended the generation without being asked to (finish reason {piece.finish!r})."
            raise EngineError("connection", message, retryable=True)
        return reason, self._stop(piece.stop)

    def finished(self) -> Finished:
        """The last item. Raises EngineError("connection") if no finish reason came."""
        if self._finish is None:
            message = "The upstream ended the stream without saying how the generation ended."
            raise EngineError("connection", message, retryable=True)
        reason, stop = self._finish
        prompt = self._prompt
        return Finished(
            reason=reason,
            stop=stop,
            usage=Usage(prompt_tokens=prompt, completion_tokens=self.count, cached_tokens=min(self._cached, prompt)),
            timings=Timings(first_token=self._first, total=self._clock() - self._began),
        )
