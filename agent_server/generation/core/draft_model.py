"""A smaller model that guesses how a larger one goes on: a source of guesses for `speculation.py`, which verifies them.

For each generation that asked for guesses it has a sequence of its own, the twin, in memory of its own: the tokens that
are there, and behind them what it guessed. Before it guesses again, guesses that did not come are cut off; what the
others left in memory stands. What the twins compute is shared and kept as the large model's is, so a later turn of a
conversation costs the small model its new tokens alone. It samples as the request does and with the same random
numbers, so that where both models mean the same, the same token is picked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from agent_server.generation.core.generation import Generation
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan

LEFT_OUT = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {},
    "allowed_token_ids": (), "min_tokens": 0, "logprobs": None,
}  # fmt: skip
"""Parameters without which guesses are sampled: they count tokens that came, or name tokens of the large model's."""


@dataclass(eq=False, slots=True)
class Twin:
    """A generation as the small model has it. sequence: its tokens are those of the generation, `real` of them as they
    were last seen, and guesses. highest: the largest id among them. guesses: of this round. wanted: how many there
    should be."""

    generation: Generation
    sequence: Sequence
    real: int
    highest: int = 0
    wanted: int = 0
    guesses: list[int] = field(default_factory=list)

    def catch_up(self) -> None:
        """Take the generation's tokens, and count as computed what still stands."""
        own, tokens = self.sequence.tokens, self.generation.sequence.tokens
        same = self.real
        while same < min(len(own), len(tokens)) and own[same] == tokens[same]:
            same += 1
        self.highest = max(self.highest, *tokens[same:], 0)
        own[same:] = tokens[same:]
        self.real = len(tokens)
        self.sequence.computed = min(self.sequence.computed, same, self.real - 1)


class DraftModel:
    """step_tokens: of prompts, that are computed between two steps of the large model; a generation whose prompt is
    not there yet guesses nothing. context: tokens that a twin may have. vocab_size: of the large model."""

    def __init__(
        self, runner: PackedRunner, sampler: Sampler, *, context: int, vocab_size: int, step_tokens: int
    ) -> None:
        self.runner = runner
        self.sampler = sampler
        self.context = context
        self.vocab_size = vocab_size
        self.step_tokens = step_tokens
        self.twins: dict[int, Twin] = {}

    def propose(self, asked: list[tuple[Generation, int]]) -> dict[int, tuple[int, ...]]:
        """Guesses for each generation that has some, by its number; asked: with how many it wants at most."""
        twins = [twin for generation, count in asked if (twin := self._twin(generation, count)) is not None]
        guessing = self._first(twins)
        while guessing := [twin for twin in guessing if self._goes_on(twin)]:
            self._next(guessing)
        return {twin.sequence.number: tuple(twin.guesses) for twin in twins if twin.guesses}

    def keep(self, numbers: Collection[int]) -> None:
        """Give back the memory of all other generations' twins."""
        for number in [number for number in self.twins if number not in numbers]:
            twin = self.twins.pop(number)
            sequence = twin.sequence
            del sequence.tokens[twin.real :]
            sequence.computed = min(sequence.computed, twin.real)
            self.runner.memory.release(sequence)

    def _twin(self, generation: Generation, count: int) -> Twin | None:
        """Its twin, with room for the guesses; None where there is no room, or the context does not reach so far."""
        original = generation.sequence
        count = min(count, self.context - len(original.tokens))
        if count <= 0 or original.media is not None:
            return None
        twin = self.twins.get(original.number) or self._admit(generation)
        if twin is None or not self.runner.memory.grow(twin.sequence, len(original.tokens) + count):
            return None
        twin.catch_up()
        if twin.highest >= self.sampler.vocab_size:  # a token that the small model does not have
            return None
        twin.wanted, twin.guesses = count, []
        twin.sequence.row = original.row
        self._settle(twin)
        return twin

    def _admit(self, generation: Generation) -> Twin | None:
        original = generation.sequence
        tokens = original.tokens
        sequence = Sequence(
            original.number, list(tokens), len(tokens), self.context, tenant=original.tenant, salt=original.salt
        )
        computed = self.runner.memory.admit(sequence, alone=not self.twins)
        if computed is None:
            return None
        sequence.computed = computed
        twin = self.twins[original.number] = Twin(generation, sequence, len(tokens), highest=max(tokens))
        return twin

    def _settle(self, twin: Twin) -> None:
        """Give its row the parameters of its generation."""
        generation, row = twin.generation, twin.sequence.row
        settings = RowSampling(msgspec.structs.replace(generation.params, **LEFT_OUT), generation.seed)
        if self.sampler.occupants[row] != generation.number or self.sampler.settings[row] != settings:
            self.sampler.set(row, generation.number, settings, (), ())

    def _first(self, twins: list[Twin]) -> list[Twin]:
        """Compute the tokens that the twins lack; those that then lack none have their first guess."""
        left, chunks, guessing = self.step_tokens, [], []
        for twin in sorted(twins, key=lambda each: each.real - each.sequence.computed):
            start = twin.sequence.computed
            length = min(left, twin.real - start)
            if not length:
                break
            left -= length
            samples = start + length == twin.real
            chunks.append(Chunk(twin.sequence, start, length, samples=samples))
            if samples:
                guessing.append(twin)
        if chunks:
            self._run(StepPlan(chunks=chunks), guessing)
        for chunk in chunks:
            chunk.sequence.computed = chunk.start + chunk.length
        return guessing

    def _goes_on(self, twin: Twin) -> bool:
        last = twin.guesses[-1] if twin.guesses else self.vocab_size
        return len(twin.guesses) < twin.wanted and last < self.vocab_size and last not in twin.generation.ends

    def _next(self, twins: list[Twin]) -> None:
        for twin in twins:
            twin.sequence.tokens.append(twin.guesses[-1])
            twin.sequence.computed += 1
        self._run(StepPlan(decodes=[twin.sequence for twin in twins]), twins)

    def _run(self, plan: StepPlan, twins: list[Twin]) -> None:
        """Run the plan, and take a guess for each of the twins that get one."""
        by_number = {twin.sequence.number: twin for twin in twins}
        order, logits = self.runner.run(plan, self.sampler.last)
        if not order:
            return
        found = [by_number[sequence.number] for sequence in order]
        rows = [sequence.row for sequence in order]
        positions = [twin.generation.generated + len(twin.guesses) for twin in found]
        sampled = self.sampler.sample(logits, rows, positions, None, [{}] * len(rows))
        sampled.wait()
        for twin, token in zip(found, sampled.landed.tokens, strict=True):
            if token < self.vocab_size:
                twin.guesses.append(token)
