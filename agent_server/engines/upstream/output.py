"""Converts the frames of one stream to Tokens with their text, and determines how the generation ended."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from agent_server.engine_protocol.continuation import already_ended
from agent_server.engine_protocol.detokenizer import OutputText
from agent_server.engine_protocol.protocol import (
    EngineError,
    Finished,
    FinishReason,
    Timings,
    Token,
    Usage,
)
from agent_server.engines.upstream.connection import Upstream
from agent_server.engines.upstream.dialects import OutgoingRequest, Piece
from agent_server.engines.upstream.grammar import ConstraintVerifier
from agent_server.engines.upstream.model import UpstreamText

_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length"}
"""Upstream's finish reason → ours. Any other reason means that the upstream ended the generation by itself."""
PART, PART_CHARACTERS = 256, 2048
"""Tokens, and characters of text, that are read before other tasks may run; about 4 µs each."""
MOST_CHARACTERS = 64
"""Characters per token of an answer above which a text certainly has more tokens."""
TEXT_SLACK = 2
"""Tokens by our count that are allowed for each requested token, if the upstream counts its tokens itself."""


class Output:
    """The output of one stream. ended: it is known how the generation ended. over: nothing more needs to be read from
    the upstream. overran: the upstream generated more tokens than were requested."""

    def __init__(
        self, upstream: Upstream, outgoing: OutgoingRequest, verifier: ConstraintVerifier | None = None
    ) -> None:
        request, sampling = outgoing.request, outgoing.sampling
        self.request = request
        self.count = len(request.generated)
        self.over = False
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
        self._most = self._bound = sampling.max_tokens or sys.maxsize
        self._texts_read = 0
        self._cut = False  # at `max_tokens`, by this side
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

    @property
    def overran(self) -> bool:
        return self._cut and self.over

    def read(self, frames: Iterable[bytes]) -> Iterator[list[Token]]:
        """Yield the tokens that may be delivered now, in small groups, so that other tasks can run in between. A group
        is empty if much text was read that completes no token. Raises EngineError after the tokens before the error."""
        tokens: list[Token] = []
        characters = 0
        try:
            for data in frames:
                try:
                    piece = self._reader.read(data)
                except (ValueError, RecursionError) as error:
                    reason = f"data that is not a frame of the dialect {self._upstream.dialect.name}: {error}"
                    raise EngineError("connection", f"The upstream sent {reason}", retryable=True) from error
                if piece is None:
                    continue
                if not self._upstream.dialect.tokens:
                    self._texts_read += bool(piece.text)
                    # The count of tokens at which the answer is cut.
                    remaining = max(1, self._most - self.count)
                    is_long = len(piece.text) > MOST_CHARACTERS * remaining
                    self._bound = self._most if is_long else TEXT_SLACK * self._most
                is_small = len(piece.ids) <= PART and len(piece.text) <= PART_CHARACTERS
                for part in (piece,) if is_small else parts_of(piece, self._upstream_text):
                    tokens += self.take(part)
                    # A long text may be few tokens, a page of line breaks for one, and costs by its characters.
                    characters += len(part.text)
                    if len(tokens) >= PART or characters >= PART_CHARACTERS or self.over:
                        yield tokens
                        tokens, characters = [], 0
                    if self.over:
                        return
                if self._texts_read >= self._most and not self.ended:  # each text is a token at least
                    tokens += self._text.drain()
                    self._cut_off()
        except EngineError:
            if tokens:
                yield tokens
            raise
        if tokens:
            yield tokens

    def take(self, piece: Piece) -> list[Token]:
        """Return the tokens of one decoded frame that may be delivered now. Raises EngineError."""
        self._cached = self._cached if piece.cached is None else piece.cached
        if piece.prompt is not None and self.request.pictures:  # it alone knows how many tokens they take
            self._prompt = piece.prompt - len(self.request.generated)
        if self.ended:
            # Frames after the end may still have usage, but their tokens are not part of the answer: an upstream that
            # sends some does not stop by itself.
            if piece.ids or (piece.text and not self._upstream.dialect.tokens):
                self.over = True
            elif self._cut and piece.finish is not None:
                self._finish = self._ending(piece)
            return []
        if not self._upstream.dialect.tokens:
            piece.ids = self._upstream_text.take(piece.text)
        elif piece.texts is not None:
            self._upstream_text.expect(piece.texts)
        if self._first is None and piece.ids:
            self._first = self._clock() - self._began
        released: list[Token] = []
        for place in range(len(piece.ids)):
            released += self._push(piece, place)
            if self._finish is not None:
                # A stop string that only this side looks for leaves the upstream generating: the stream must be closed.
                ends = piece.ids[place] in self._upstream.model.ends
                more = place + 1 < len(piece.ids)
                self.over = more if self._cut else piece.finish is None and not ends
                return released
        if piece.finish is not None:
            # No token will follow that could complete a stop string, so text that was held back for one is released.
            released += self._text.drain()
            self._finish = self._ending(piece)
        return released

    def _cut_off(self) -> None:
        """End the answer at `max_tokens`. If the upstream reports how it ended, that takes precedence."""
        self._cut, self._finish = True, ("length", None)

    def _push(self, piece: Piece, place: int) -> list[Token]:
        number = piece.ids[place]
        if not 0 <= number < self._upstream.info.vocab_size:
            raise EngineError("connection", f"The upstream sent the token id {number}, which is not in the vocabulary.")
        self.count += 1
        last = piece.finish is not None and place == len(piece.ids) - 1
        # Two ways to see that a token ends the answer: it is a stop id, or the upstream stopped without a stop string.
        stopped_here = last and piece.finish == "stop" and not isinstance(piece.stop, str)
        is_stop_id = number in self._ends and self.count > self._min_tokens
        # When a grammar is complete, SGLang reports the last token as the match even if it is ordinary text.
        ends = is_stop_id or (
            stopped_here
            and (number in self._ends or (number == piece.stop and number in self._upstream.model.controls))
        )
        if self._verifier is not None:
            self._verifier.token(number, ends=ends)
        logprob = piece.logprobs[place] if piece.logprobs is not None else None
        alternatives = piece.alternatives[place] if piece.alternatives is not None else None
        full = self.count >= self._bound and not last
        released = self._text.push(number, logprob, alternatives, ends=ends, last=last or full)
        if self._text.stopped is not None:
            self._finish = ("stop", self._text.stopped)
        elif is_stop_id:
            self._finish = ("stop", self._stop(number))
        elif full:
            self._cut_off()
        return released

    def _stop(self, matched: str | int | None) -> str | int | None:
        """`stop` as reported in Finished: None for the end of sequence."""
        return None if matched in self._upstream.model.ends else matched

    def _ending(self, piece: Piece) -> tuple[FinishReason, str | int | None]:
        reason = _REASONS.get(piece.finish or "")
        if reason is None:
            message = f"The upstream ended the generation by itself (finish reason {piece.finish!r})."
            raise EngineError("connection", message, retryable=True)
        return reason, self._stop(piece.stop)

    def finished(self) -> Finished:
        """Return the last item. Raises EngineError("connection") if there was no finish reason."""
        if self._finish is None:
            message = "The upstream ended the stream without a finish reason."
            raise EngineError("connection", message, retryable=True)
        reason, stop = self._finish
        prompt = self._prompt
        return Finished(
            reason=reason,
            stop=stop,
            usage=Usage(
                prompt_tokens=prompt,
                completion_tokens=min(self.count, self._most),
                cached_tokens=min(self._cached, prompt),
            ),
            timings=Timings(first_token=self._first, total=self._clock() - self._began),
        )


def parts_of(piece: Piece, texts: UpstreamText) -> Iterator[Piece]:
    """Split a large piece into parts; the last one has the finish reason."""
    if piece.ids:
        # The fields that have one element for each id.
        aligned: dict[str, Any] = {name: getattr(piece, name) for name in ("ids", "texts", "logprobs", "alternatives")}
        for start in range(0, len(piece.ids), PART):
            end = start + PART
            part = {name: values and values[start:end] for name, values in aligned.items()}
            last = end >= len(piece.ids)
            yield msgspec.structs.replace(piece, finish=piece.finish if last else None, **part)
        return
    yield Piece(prompt=piece.prompt, cached=piece.cached)
    for text in texts.parts(piece.text, PART_CHARACTERS):
        yield Piece(text=text)
    yield Piece(finish=piece.finish, stop=piece.stop)
