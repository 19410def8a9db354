"""The grammar masks of a step, filled while the model computes.

A mask depends on its row's last token. Where that is known before the model is run, the masks are filled in a thread
beside it: both the model's operations and the grammars leave Python's lock. Where it is not, because the device is one
step ahead of the host, they are filled after the last step's tokens were looked at, while the device computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.generation import Generation
from agent_server.generation.core.runaway import repeats
from agent_server.generation.sampling.masks import Masks, sorted_out

if TYPE_CHECKING:
    pass


class Masking:
    """One step's masks at a time, for the core's thread."""

    def __init__(self, compiler: Compiler, vocab_size: int, device: torch.device) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._device = device.type
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._begun: tuple[list[Generation], Future[Masks]] | None = None

    def begin(self, generations: Sequence[Generation]) -> None:
        """Fill the masks of those that are constrained, beside whatever the caller does next."""
        bound = _bound(generations)
        if bound:
            self._begun = bound, self._thread.submit(self._fill, bound)

    def finish(self, generations: Sequence[Generation | None]) -> Masks | None:
        """The masks by their places in the batch; None stands for a generation that is over, whose token is
        not needed. What was not begun is filled now."""
        begun, self._begun = self._begun, None
        bound = begun[0] if begun is not None else _bound(generations)
        if not bound:
            return None
        masks = begun[1].result() if begun is not None else self._fill(bound)
        places = {generation.number: place for place, generation in enumerate(generations) if generation is not None}
        return replace(masks, rows=[places[generation.number] for generation in bound])

    def abandon(self) -> None:
        """The step failed: wait for the thread that fills masks, which uses the generations' matchers."""
        if self._begun is not None:
            self._begun[1].exception()
            self._begun = None

    def _fill(self, bound: Sequence[Generation]) -> Masks:
        shape = len(bound), -(-self._vocab_size // 32)
        bits = torch.full(shape, -1, dtype=torch.int32, pin_memory=self._device == "cuda")
        matchers = [matcher for generation in bound if (matcher := generation.matcher) is not None]
        self._compiler.fill(matchers, [generation.ends for generation in bound], bits)
        for row, generation in enumerate(bound):
            sequence = generation.sequence
            if repeats(sequence.tokens, sequence.prompt_length + generation.closed, sequence.known):
                closed = self._compiler.backend.close_string(bits[row])
                generation.closed = generation.generated if closed else generation.closed
        return sorted_out(bits, [], self._vocab_size) if self._device == "cpu" else Masks(bits, [])


def _bound(generations: Sequence[Generation | None]) -> list[Generation]:
    return [g for g in generations if g is not None and g.matcher is not None]
