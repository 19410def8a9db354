"""What one step computes: a token each for some sequences, and chunks of others' prompts. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_server.generation.scheduling.sequence import Sequence

MOST_CHUNKS = 8
"""Of a step that is not to hold up those that decode, which is captured with so many places for chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of a prompt from `start` on. `samples`: it is the last one, and a token follows. draft: its last
    tokens are guesses, which are not among the sequence's; a token follows each of those, too."""

    sequence: Sequence
    start: int
    length: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def known(self) -> int:
        """How many of its tokens are no guesses."""
        return self.length - len(self.draft)

    def tokens(self, start: int = 0) -> list[int]:
        """Its tokens, those before the sequence's token `start` left out."""
        first = max(self.start, start)
        return [*self.sequence.tokens[first : self.start + self.known], *self.draft]

    @property
    def scores(self) -> int:
        """How many of its tokens, from the first on, score the next one of their prompt."""
        if not self.sequence.scored:
            return 0
        return max(0, min(self.length, self.sequence.prompt_length - 1 - self.start))

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """Runs of tokens, each as (start, end), that see each other: pictures of some models."""
        media = self.sequence.media
        return [] if media is None else media.blocks(self.start, self.start + self.length)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: a token each for `decodes`, whose last token is at index `computed - 1`, and `chunks`."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)

    @property
    def tokens(self) -> int:
        """How many tokens are computed."""
        return len(self.decodes) + sum(chunk.length for chunk in self.chunks)

    @property
    def sampled(self) -> list[Sequence]:
        """Those that get a token from this step, in the order of the logits."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.samples]
