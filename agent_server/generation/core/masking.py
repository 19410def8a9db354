"""The grammar masks of a step, filled while the model computes.

A mask depends on its row's last token. If that is known before the forward, the masks are filled in another thread
meanwhile: both the model's operations and the grammars release the GIL. If it is not, because the device is one step
ahead of the host, they are filled after the previous step's tokens were read, while the device computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch

from agent_server.engine_protocol.repetition import EVERY, is_repetitive
from agent_server.generation.core.constraint import Compiler
from agent_server.generation.core.generation import Generation
from agent_server.generation.sampling.masks import Masks, classify


class Masking:
    """One step's masks at a time, for the core's thread."""

    def __init__(self, compiler: Compiler, vocab_size: int, device: torch.device) -> None:
        self._compiler = compiler
        self._vocab_size = vocab_size
        self._device = device.type
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="masks")
        self._pending: tuple[list[Generation], Future[Masks]] | None = None

    def begin(self, generations: Sequence[Generation]) -> None:
        """Start to fill the masks of the constrained generations in another thread."""
        constrained = _constrained(generations)
        if constrained:
            self._pending = constrained, self._thread.submit(self._fill, constrained)

    def finish(self, generations: Sequence[Generation | None]) -> Masks | None:
        """Return the masks by their index in the batch, or None if no generation is constrained. Fills them now unless
        `begin` started to. In `generations`, None is for one that has ended, whose token is not needed."""
        pending, self._pending = self._pending, None
        constrained = pending[0] if pending is not None else _constrained(generations)
        if not constrained:
            return None
        masks = pending[1].result() if pending is not None else self._fill(constrained)
        places = {generation.number: place for place, generation in enumerate(generations) if generation is not None}
        return replace(masks, rows=[places[generation.number] for generation in constrained])

    def abandon(self) -> None:
        """Discard the masks of a failed step. Waits for the thread that fills them, which uses the matchers."""
        if self._pending is not None:
            self._pending[1].exception()
            self._pending = None

    def _fill(self, constrained: Sequence[Generation]) -> Masks:
        shape = len(constrained), -(-self._vocab_size // 32)
        bits = torch.full(shape, -1, dtype=torch.int32, pin_memory=self._device == "cuda")
        matchers = [matcher for generation in constrained if (matcher := generation.matcher) is not None]
        self._compiler.fill(matchers, [generation.ends for generation in constrained], bits)
        for row, generation in enumerate(constrained):
            if generation.generated - generation.examined < EVERY:  # a step may accept several tokens
                continue
            generation.examined = generation.generated
            sequence = generation.sequence
            since_closed = sequence.tokens[sequence.prompt_length + generation.closed : sequence.known]
            if is_repetitive(since_closed) and self._compiler.backend.close_string(bits[row]):
                generation.closed = generation.generated
        return classify(bits, [], self._vocab_size) if self._device == "cpu" else Masks(bits, [])


def _constrained(generations: Sequence[Generation | None]) -> list[Generation]:
    return [g for g in generations if g is not None and g.matcher is not None]
