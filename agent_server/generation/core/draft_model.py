"""The draft model: a smaller model that proposes drafts for a larger one, which verifies them (`drafting.py`).

For each generation with drafts it has a sequence in memory of its own, the copy: the generation's tokens followed by
the draft. Before the next draft, rejected tokens are removed, while the accepted ones stay in the cache. Copies use the
prefix cache like any sequence, so a later turn of a conversation costs the small model only its new tokens. It samples
with the request's parameters and random numbers, so that where both models have the same distribution, they pick the
same token.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec

from agent_server.generation.core.generation import Generation
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from agent_server.generation.scheduling.sequence import Chunk, Sequence, StepPlan

NEUTRAL = {
    "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {},
    "allowed_token_ids": (), "min_tokens": 0, "logprobs": None,
}  # fmt: skip
"""Neutral values of the parameters that drafts are sampled without: they count the tokens of the answer, or name tokens
of the large model."""


@dataclass(eq=False, slots=True)
class DraftCopy:
    """The draft model's copy of a generation. sequence: the generation's tokens, of which it had `real` at the last
    draft, followed by drafted ones. highest: the largest token id among them. guesses: the tokens of this draft, of
    which there should be `target`."""

    generation: Generation
    sequence: Sequence
    real: int
    highest: int = 0
    target: int = 0
    guesses: list[int] = field(default_factory=list)

    def catch_up(self) -> None:
        """Copy the generation's tokens, and count as computed what is still valid."""
        own, tokens = self.sequence.tokens, self.generation.sequence.tokens
        same = self.real
        while same < min(len(own), len(tokens)) and own[same] == tokens[same]:
            same += 1
        self.highest = max(self.highest, *tokens[same:], 0)
        own[same:] = tokens[same:]
        self.real = len(tokens)
        self.sequence.computed = min(self.sequence.computed, same, self.real - 1)


class DraftModel:
    """step_tokens: prompt tokens to compute between two steps of the large model; a generation has no draft until its
    prompt is computed. context: the maximum length of a copy. vocab_size: the large model's."""

    def __init__(
        self, runner: PackedRunner, sampler: Sampler, *, context: int, vocab_size: int, step_tokens: int
    ) -> None:
        self.runner = runner
        self.sampler = sampler
        self.context = context
        self.vocab_size = vocab_size
        self.step_tokens = step_tokens
        self.copies: dict[int, DraftCopy] = {}

    def propose(self, requests: list[tuple[Generation, int]]) -> dict[int, tuple[int, ...]]:
        """Return drafts by generations' numbers. requests: generations with the maximum length of their drafts."""
        copies = [copy for generation, count in requests if (copy := self._copy_of(generation, count)) is not None]
        # Compute the missing tokens of the copies. Those that are complete get their first guess, and are active.
        budget, chunks, active = self.step_tokens, [], []
        for copy in sorted(copies, key=lambda each: each.real - each.sequence.computed):
            start = copy.sequence.computed
            length = min(budget, copy.real - start)
            if not length:
                break
            budget -= length
            samples = start + length == copy.real
            chunks.append(Chunk(copy.sequence, start, length, samples=samples))
            if samples:
                active.append(copy)
        if chunks:
            self._run(StepPlan(chunks=chunks), active)
        for chunk in chunks:
            chunk.sequence.computed = chunk.start + chunk.length
        while active := [
            copy
            for copy in active
            if copy.guesses and len(copy.guesses) < copy.target and copy.guesses[-1] not in copy.generation.ends
        ]:
            for copy in active:
                copy.sequence.tokens.append(copy.guesses[-1])
                copy.sequence.computed += 1
            self._run(StepPlan(decodes=[copy.sequence for copy in active]), active)
        return {copy.sequence.number: tuple(copy.guesses) for copy in copies if copy.guesses}

    def keep(self, numbers: Collection[int]) -> None:
        """Free the copies of all generations but those with these numbers."""
        for number in [number for number in self.copies if number not in numbers]:
            copy = self.copies.pop(number)
            sequence = copy.sequence
            del sequence.tokens[copy.real :]
            sequence.computed = min(sequence.computed, copy.real)
            self.runner.memory.release(sequence)

    def _copy_of(self, generation: Generation, count: int) -> DraftCopy | None:
        """Return the generation's copy with memory for a draft, or None if there is no memory, the context is too
        short, or a token is unknown to the draft model."""
        original = generation.sequence
        count = min(count, self.context - len(original.tokens))
        if count <= 0 or original.media is not None:
            return None
        tokens = original.tokens
        copy = self.copies.get(original.number)
        if copy is None:
            sequence = Sequence(
                original.number, list(tokens), len(tokens), self.context, tenant=original.tenant, salt=original.salt
            )
            computed = self.runner.memory.admit(sequence, alone=not self.copies)
            if computed is None:
                return None
            sequence.computed = computed
            copy = self.copies[original.number] = DraftCopy(generation, sequence, len(tokens), highest=max(tokens))
        if not self.runner.memory.grow(copy.sequence, len(tokens) + count):
            return None
        copy.catch_up()
        if copy.highest >= self.sampler.vocab_size:  # a token that the small model does not have
            return None
        copy.target, copy.guesses = count, []
        row = copy.sequence.row = original.row
        settings = RowSampling(msgspec.structs.replace(generation.params, **NEUTRAL), generation.seed)
        if self.sampler.occupants[row] != original.number or self.sampler.settings[row] != settings:
            self.sampler.set(row, original.number, settings, (), ())
        return copy

    def _run(self, plan: StepPlan, copies: list[DraftCopy]) -> None:
        """Run the plan and append the sampled guess of each copy that gets one."""
        by_number = {copy.sequence.number: copy for copy in copies}
        order, logits = self.runner.forward(plan, self.sampler.last)
        if not order:
            return
        sampled_copies = [by_number[sequence.number] for sequence in order]
        rows = [sequence.row for sequence in order]
        positions = [copy.generation.generated + len(copy.guesses) for copy in sampled_copies]
        sampled = self.sampler.sample(logits, rows, positions, None, [{}] * len(rows))
        sampled.wait()
        for copy, token in zip(sampled_copies, sampled.on_host.tokens, strict=True):
            if token < self.vocab_size:
                copy.guesses.append(token)
            else:  # a token that the large model does not have ends the draft
                copy.target = len(copy.guesses)
