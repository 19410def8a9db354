"""A sequence as the scheduler sees it, and the plan of one step. Plain data."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agent_server.generation.scheduling.leases import Key, Leases, LeaseTerms

PENDING = -1
"""A token that is being computed: its place is taken, its value is not known yet."""

State = Literal["new", "waiting", "running", "paused", "finished"]


class Media(Protocol):
    """What a sequence with pictures has beside its tokens."""

    @property
    def end(self) -> int:
        """The first token behind the last picture."""

    def length(self, start: int, length: int) -> int:
        """The length of a chunk from `start` that may have `length` tokens, where not every place is one to end at."""

    def blocks(self, start: int, end: int) -> list[tuple[int, int]]:
        """Runs of tokens, each as (start, end), that see each other, with some among those asked for."""


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` is the prompt and what was generated; the keys and values of the first `computed` are in memory.

    pending: how many of the last tokens are PENDING. limit: the most tokens that it may come to have. row: its place
    in the sampler while it runs, else -1.
    prefilling: it runs, and its first token since it was admitted is still to come.
    held: its prompt may be computed but for the last token; what its first token needs is not there yet.
    shareable: what it computes may be reused, and it may reuse what others computed.
    scored: the log probabilities of its prompt are wanted.
    cached: prompt tokens that were found computed when it first ran, None before. later: a later turn of work that was
    begun before. order: arrival, and ahead of it for later turns; no two are the same.
    draft: guesses of the tokens that follow, for the step that is planned next.
    stops: lengths at which a chunk of its prompt is to end, in order, because what is computed up to there may be kept.
    lease_key: the lease under which its conversation's earlier tokens may be kept. terms: generate nothing; compute
    what its tokens need and keep that by a lease.
    adapter: the key of its LoRA adapter, "" for none.
    media: its pictures; `tokens` then has numbers made of their content in their places, so that whoever compares
    tokens compares pictures. shift: what is added to a token's index for its position, behind the pictures.
    """

    number: int
    tokens: list[int]
    prompt_length: int
    limit: int
    tenant: str = ""
    salt: str = ""
    adapter: str = ""
    priority: int = 0
    later: bool = False
    order: int = 0
    state: State = "new"
    computed: int = 0
    pending: int = 0
    prefilling: bool = False
    held: bool = False
    row: int = -1
    cached: int | None = None
    waiting_since: int = 0
    overdue: bool = False
    shareable: bool = True
    scored: bool = False
    media: Media | None = None
    shift: int = 0
    draft: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()
    lease_key: Key | None = None
    terms: LeaseTerms | None = None

    @property
    def owner(self) -> str:
        """Whose cached beginnings it may use: the tenant's, apart for each salt and for each adapter's weights."""
        apart = (self.tenant, self.adapter, self.salt)
        return "\0".join(apart) if self.adapter or self.salt else self.tenant

    @property
    def known(self) -> int:
        """Tokens whose value is known."""
        return len(self.tokens) - self.pending


class Memory(Protocol):
    """Room for keys and values, and what is already in it. No tensors: those follow its bookkeeping."""

    leases: Leases
    longest: int
    """Tokens that one sequence can have when it is alone."""

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        """Room for the sequence's tokens; returns how many leading ones are already computed, None if there is no
        room. `alone`: nothing else runs, so that no room need be left for others to grow. May set the
        sequence's stops."""

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        """Whether to wait for a running sequence's first `length` tokens, of which at least `least` are still to be
        computed: others can go on behind them, or a few less, when they are there. May set the leader's stops."""

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Room for `tokens` in all; False if there is none."""

    def publish(self, sequence: Sequence) -> None:
        """A chunk was computed: others may reuse what there is now, if the memory keeps that."""

    def release(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        """Give the room back; what is computed stays findable until the room is needed, by a lease if there are terms
        for one."""

    @property
    def usage(self) -> float:
        """Share of the room that running sequences hold, 0 to 1."""


def common_prefix(left: Items[int], right: Items[int], start: int, end: int) -> int:
    """Length of the longest common prefix up to `end`, given that the first `start` are equal."""
    if left[start:end] == right[start:end]:
        return end
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle)
    return low


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
