"""A step that was launched, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from agent_server.generation.sampling.sampler import Landed, Sampled
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.step_plan import StepPlan


@dataclass(slots=True)
class Flight:
    """A step that was launched: who gets a token, in which rows and as which of their tokens, their logits, and then
    the tokens as they come from the device. guessed: the logits behind the plan's guesses."""

    plan: StepPlan
    sequences: list[Sequence]
    rows: list[int]
    positions: list[int]
    logits: Tensor | None
    sampled: Sampled | None = None
    guessed: Tensor | None = None

    def take(self) -> Tensor:
        """The logits, which are needed once."""
        logits, self.logits = self.logits, None
        assert logits is not None
        return logits


def details_of(landed: Landed) -> Callable[[int, int | None], tuple[float | None, list[tuple[int, float]] | None]]:
    """For a place in the batch and the number of alternatives wanted: the log probability and the alternatives."""
    if landed.logprobs is None:
        return lambda place, wanted: (None, None)
    logprobs = landed.logprobs
    ids, values = ([], []) if landed.top is None else landed.top

    def of(place: int, wanted: int | None) -> tuple[float | None, list[tuple[int, float]] | None]:
        if wanted is None:
            return None, None
        pairs = list(zip(ids[place][:wanted], values[place][:wanted], strict=True)) if ids else []
        return logprobs[place], pairs

    return of
