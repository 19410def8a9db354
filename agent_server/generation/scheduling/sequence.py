"""A sequence as the scheduler sees it, and the plan of one step. Plain data."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agent_server.generation.scheduling.leases import Key, Leases, LeaseTerms

PENDING = -1
"""Placeholder for a token that is being computed and whose value is not known yet."""

State = Literal["new", "waiting", "running", "paused", "finished"]


class Media(Protocol):
    """The media of a sequence, which constrain where its prompt may be divided into chunks."""

    @property
    def end(self) -> int:
        """The index of the first token after the last picture."""

    def length(self, start: int, length: int) -> int:
        """Return the length of a chunk at `start` of about `length` tokens that does not end within a picture whose
        tokens must be computed together."""

    def blocks(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return the blocks of tokens with bidirectional attention, as (start, end), that overlap `start` to `end`."""


@dataclass(eq=False, slots=True)
class Sequence:
    """`tokens` are the prompt and the generated tokens; the keys and values of the first `computed` are in memory.

    pending: how many of the last tokens are PENDING. limit: the maximum length in tokens. row: its row in the sampler
    while it runs, else -1.
    prefilling: it runs, and its first token since its admission has not been scheduled.
    blocked: all but the last token of its prompt may be computed; its grammar is not compiled yet, or it is a prefill.
    shareable: it may use the prefix cache, and others may use what it computes.
    scored: the log probabilities of its prompt are requested.
    cached: prompt tokens that the prefix cache had when it first ran, None before. later: a later turn of an
    agent's work. order: the order of arrival, with later turns moved ahead; unique.
    draft: proposed tokens for the next step to verify.
    stops: lengths, in ascending order, at which a chunk of its prompt must end, so that the state there can be cached.
    lease_key: the lease under which its conversation's earlier tokens may be kept. terms: generate nothing; compute
    the prompt and keep it under a lease with these terms.
    adapter: the key of its LoRA adapter, "" for none.
    media: its pictures and sounds; `tokens` then has hashes of their content in their places, so that comparing tokens
    compares media. shift: added to a token's index for its position, after the pictures.
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
    blocked: bool = False
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
        """The namespace of its prefix cache: the tenant, with the salt and the adapter if it has any."""
        parts = (self.tenant, self.adapter, self.salt)
        return "\0".join(parts) if self.adapter or self.salt else self.tenant

    @property
    def known(self) -> int:
        """The number of leading tokens whose values are known."""
        return len(self.tokens) - self.pending


class Memory(Protocol):
    """The bookkeeping of a cache of keys and values. It holds no tensors; their owner follows it."""

    leases: Leases
    longest: int
    """The maximum length of a sequence that runs alone, in tokens."""

    def admit(self, sequence: Sequence, *, alone: bool) -> int | None:
        """Allocate memory for the sequence's tokens. Return how many leading tokens are already computed, or None if
        there is no memory. alone: nothing else runs, so no memory is reserved for others to grow. May set the
        sequence's stops."""

    def shares(self, leader: Sequence, length: int, least: int) -> bool:
        """Return whether to wait for a running sequence's first `length` tokens: at least `least` of them are not
        computed yet, and others can share them, or a few less, once they are. May set the leader's stops."""

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Extend the sequence's memory to `tokens` tokens in total; return False if there is not enough."""

    def publish(self, sequence: Sequence) -> None:
        """Make the computed tokens of a sequence available to others, if this memory has a prefix cache."""

    def release(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        """Free the sequence's memory. What is computed stays in the prefix cache until the memory is needed. terms:
        keep it under a lease."""

    @property
    def usage(self) -> float:
        """The share of the memory that running sequences hold, 0 to 1."""


def common_prefix(left: Items[int], right: Items[int], start: int, end: int) -> int:
    """Return the length of the longest common prefix up to `end`, given that the first `start` items are equal."""
    if left[start:end] == right[start:end]:
        return end
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left[low:middle] == right[low:middle] else (low, middle)
    return low


MAX_CHUNKS = 8
"""Chunks of a step that must not delay decoding sequences. CUDA graphs are captured with this many chunk slots."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of a prompt from `start` on. samples: it is the prompt's last chunk, so a token is sampled after
    it. draft: proposed tokens at its end, which are not in the sequence; a token is sampled after each of them too."""

    sequence: Sequence
    start: int
    length: int
    samples: bool
    draft: tuple[int, ...] = ()

    @property
    def known(self) -> int:
        """The number of its tokens that are not drafts."""
        return self.length - len(self.draft)

    def tokens(self, start: int = 0) -> list[int]:
        """Return its tokens, without those before the sequence's token `start`."""
        first = max(self.start, start)
        return [*self.sequence.tokens[first : self.start + self.known], *self.draft]

    @property
    def scores(self) -> int:
        """The number of its leading tokens whose logits score the next token of the prompt."""
        if not self.sequence.scored:
            return 0
        return max(0, min(self.length, self.sequence.prompt_length - 1 - self.start))

    @property
    def blocks(self) -> list[tuple[int, int]]:
        """The blocks of tokens with bidirectional attention, as (start, end): pictures of some models."""
        media = self.sequence.media
        return [] if media is None else media.blocks(self.start, self.start + self.length)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step: one token for each of `decodes`, at index `computed - 1`, and the tokens of `chunks`."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)

    @property
    def tokens(self) -> int:
        """The number of tokens that the step computes."""
        return len(self.decodes) + sum(chunk.length for chunk in self.chunks)

    @property
    def sampled(self) -> list[Sequence]:
        """The sequences that get a token from this step, in the order of the logits."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.samples]
