"""Who computes what in the next step. Plain data, no clock, no tensors.

Rules:
- A running sequence gets its next token in every step; prompts are computed in chunks in what is left of the budget,
  the shortest remainder first, so that a short prompt does not wait for a long one; a quarter is kept for the prompt
  that was admitted first, so that a long one is not starved.
- `WaitingQueue` decides which waiting sequence is admitted next.
- A prompt that begins as one that is being computed waits until that beginning is there, and shares it.
- A step that ran out of the device's memory is tried again with half as much, until it is a single short chunk.
- Without room for the next token, the youngest sequence of the lowest priority goes back to the queue and is
  computed again later. The oldest is never sent back for a younger one, so that one sequence always makes progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.sequence import (
    MOST_CHUNKS,
    PENDING,
    Chunk,
    Memory,
    Sequence,
    StepPlan,
    common_prefix,
)

AGING_STEPS = 64
"""How often the queue is searched for sequences that have waited too long."""
LOOK_AHEAD = 8
"""How many of a tenant's waiting sequences are looked at for one that need not wait for another's prompt."""


@dataclass(slots=True)
class _Tenant:
    """A tenant's share: those that wait, in order, and how many run."""

    waiting: list[tuple[tuple[int, int], Sequence]] = field(default_factory=list)
    running: int = 0
    served: int = 0


def rank(sequence: Sequence) -> tuple[int, int]:
    """Smaller goes first: by priority, then by arrival."""
    return (-sequence.priority, sequence.order)


class WaitingQueue:
    """A queue for each tenant. `tenants` has those with sequences that wait or run, `overdue` the sequences that have
    waited for longer than `patience` steps."""

    def __init__(self, *, patience: int, turns_ahead: int) -> None:
        self.patience = patience
        self.turns_ahead = turns_ahead
        self.tenants: dict[str, _Tenant] = {}
        self.overdue: list[Sequence] = []
        self._steps = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(tenant.waiting) for tenant in self.tenants.values())

    def __iter__(self) -> Iterator[Sequence]:
        for tenant in self.tenants.values():
            yield from (sequence for _, sequence in tenant.waiting)

    def arrive(self, sequence: Sequence) -> None:
        """A new sequence, to the end of its tenant's queue, or to its place among those that wait there."""
        self._arrivals += 1
        # even numbers for first turns and odd ones for later turns, so that no two are the same
        later = sequence.later and self.turns_ahead
        sequence.order = 2 * (self._arrivals - self.turns_ahead) - 1 if later else 2 * self._arrivals
        self.enqueue(sequence)

    def enqueue(self, sequence: Sequence) -> None:
        """A sequence that has arrived before, to its old place."""
        sequence.state = "waiting"
        sequence.waiting_since = self._steps
        tenant = self.tenants.setdefault(sequence.tenant, _Tenant())
        insort(tenant.waiting, (rank(sequence), sequence), key=lambda entry: entry[0])
        if sequence.overdue:
            self.overdue.append(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """A sequence that waits will not run."""
        self._dequeue(sequence)
        self._forget(sequence.tenant)

    def start(self, sequence: Sequence) -> None:
        """A sequence that waited runs now, which counts for its tenant's share until `stop`."""
        self._dequeue(sequence)
        tenant = self.tenants[sequence.tenant]
        tenant.running += 1
        tenant.served = self._steps

    def stop(self, sequence: Sequence) -> None:
        """A sequence that ran does no longer."""
        self.tenants[sequence.tenant].running -= 1
        self._forget(sequence.tenant)

    def _dequeue(self, sequence: Sequence) -> None:
        self.tenants[sequence.tenant].waiting.remove((rank(sequence), sequence))
        if sequence.overdue:
            self.overdue.remove(sequence)

    def _forget(self, name: str) -> None:
        tenant = self.tenants[name]
        if not tenant.running and not tenant.waiting:
            del self.tenants[name]

    def first(self, follows: Callable[[Sequence], bool]) -> Sequence | None:
        """Who goes first; a sequence whose last token is still being computed is not ready. follows: whether one waits
        for what a running sequence computes."""
        # Patience goes before priority and shares, which is what makes waiting finite.
        late = [sequence for sequence in self.overdue if not sequence.pending]
        if late:
            return min(late, key=lambda sequence: sequence.order)
        heads = [(tenant, head) for tenant in self.tenants.values() if (head := _head(tenant, follows)) is not None]
        if not heads:
            return None
        return min(heads, key=lambda h: (-h[1].priority, h[0].running, h[0].served, h[1].order))[1]

    def tick(self) -> None:
        """One step more; now and then, those that have waited beyond patience are marked."""
        self._steps += 1
        if self._steps % AGING_STEPS:
            return
        for sequence in self:
            if not sequence.overdue and self._steps - sequence.waiting_since > self.patience:
                sequence.overdue = True
                self.overdue.append(sequence)


def _head(tenant: _Tenant, follows: Callable[[Sequence], bool]) -> Sequence | None:
    """The tenant's next: the first, or of the first few one that does not wait for what another computes."""
    for _, sequence in tenant.waiting[:LOOK_AHEAD]:
        if sequence.pending:
            return None
        if not follows(sequence):
            return sequence
    return None


SCORED_TOKENS = 256
"""Tokens of prompts to be scored in a step: each of them has logits over the whole vocabulary."""
DRAFTED_TOKENS = 64
"""Guesses in a step: where many sequences decode, a step is bound by computing, and guesses cost what they bring."""
LEAST_CHUNK = 16
"""Tokens of a prompt's chunk below which it is not cut further for want of memory."""
SHARED_LEAST = 32
"""Tokens of a common beginning, still to be computed, for which a sequence waits."""
GROW_BACK_STEPS = 256
"""Steps that must go well, after one that ran out of memory, before more is tried again."""


def _reserve_token(sequence: Sequence) -> None:
    """A token is on its way."""
    # The place of the token is taken before its value is known, so that the next step can be planned while this one
    # runs.
    sequence.tokens.append(PENDING)
    sequence.pending += 1


def _unpromise(sequence: Sequence) -> None:
    sequence.tokens.pop()
    sequence.pending -= 1


def _remaining(sequence: Sequence) -> int:
    """Tokens that are known and not computed."""
    return len(sequence.tokens) - sequence.computed


def _shared(one: Sequence, other: Sequence) -> int:
    """Tokens with which both begin."""
    end = min(one.known, other.known) - 1
    start = min(end, SHARED_LEAST)
    return common_prefix(one.tokens, other.tokens, start, end) if one.tokens[:start] == other.tokens[:start] else 0


class Scheduler:
    """max_running: rows. step_tokens: the budget of a step; every running sequence has one of them for certain.
    `vacated` collects rows that were given back, for their owner to clear before the next launch.
    turns_ahead: how many arrivals a later turn may pass; 0 keeps the order of arrival.
    chunk_tokens: tokens of prompts in a step in which others decode, as long as those are not the fewer; 0 is as many
    as the step has room for.
    chunked: False computes every prompt in one piece, whatever the budget (for models that need that)."""

    def __init__(
        self,
        memory: Memory,
        *,
        max_running: int,
        step_tokens: int,
        patience: int = 2000,
        chunked: bool = True,
        turns_ahead: int = 64,
        chunk_tokens: int = 0,
    ) -> None:
        self.memory = memory
        self.max_running = max_running
        # One token for every row and one for a prompt: a smaller budget would starve prompts while all rows decode.
        self.step_tokens = max(step_tokens, max_running + 1)
        self.chunked = chunked
        self.chunk_tokens = chunk_tokens
        self.running: list[Sequence] = []
        self.paused: set[Sequence] = set()
        self.vacated: list[int] = []
        self.preemptions = 0
        self.queue = WaitingQueue(patience=patience, turns_ahead=turns_ahead)
        # Taken from the end: the lowest rows first.
        self._rows = list(range(max_running - 1, -1, -1))
        self._rows_allowed = max_running
        self._budget = self.step_tokens
        self._steps_since_oom = 0

    @property
    def waiting(self) -> int:
        return len(self.queue)

    @property
    def idle(self) -> bool:
        return not self.running and not self.queue

    # what may happen to a sequence

    def add(self, sequence: Sequence) -> None:
        """A new sequence, which waits for a row."""
        self.queue.arrive(sequence)

    def finish(self, sequence: Sequence, *, filled: bool = False) -> None:
        """It is over, from whatever state, and holds nothing any more. filled: what it needs was computed, and is kept
        by a lease on its terms."""
        self._withdraw(sequence, sequence.terms if filled else None)
        sequence.state = "finished"

    def filled(self, plan: StepPlan) -> list[Sequence]:
        """Those that are there for a lease alone and have all computed that it is to hold, before this plan's step."""
        under_way = {chunk.sequence.number for chunk in plan.chunks}
        return [s for s in self.running if s.terms and _remaining(s) == 1 and s.number not in under_way]

    def pause(self, sequence: Sequence) -> None:
        """It keeps its tokens and gives back its row and memory."""
        self._withdraw(sequence)
        sequence.state = "paused"
        self.paused.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Back to its old place in the queue."""
        self.paused.discard(sequence)
        self.queue.enqueue(sequence)

    def _withdraw(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        if sequence.state == "running":
            self._stop(sequence, terms)
        elif sequence.state == "waiting":
            self.queue.withdraw(sequence)
        self.paused.discard(sequence)

    def _stop(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        """A running sequence gives back its row and memory, of which a lease may keep what is computed."""
        self.memory.release(sequence, terms)
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        # The sampler still holds the row's state; whoever launches next clears it first.
        self.vacated.append(sequence.row)
        sequence.row, sequence.computed, sequence.prefilling = -1, 0, False
        self.queue.stop(sequence)

    # the next step

    def plan(self) -> StepPlan:
        """The next step. What it computes counts as computed from here on, and each sequence that gets a token has a
        PENDING one at its end until `settle`."""
        self.queue.tick()
        # Rows are filled first, so that those admitted now have their first chunk in this step.
        self._admit()
        decodes = [sequence for sequence in self.running[:] if self._decodes(sequence)]
        chunks = self._chunks(*self._room(len(decodes)))
        drafts = self._drafts(decodes, self._budget - len(decodes) - sum(chunk.length for chunk in chunks))
        drafted = {chunk.sequence for chunk in drafts}
        chunks += drafts
        plan = StepPlan(
            # Making room for one may have sent another back that was already chosen.
            [sequence for sequence in decodes if sequence.state == "running" and sequence not in drafted],
            [chunk for chunk in chunks if chunk.sequence.state == "running"],
        )
        self._advance(plan)
        return plan

    def settle(self, sequence: Sequence, token: int) -> None:
        """The value of the first pending token."""
        sequence.tokens[sequence.known] = token
        sequence.pending -= 1

    def append(self, sequence: Sequence, token: int) -> None:
        """A token that was not computed, behind a running sequence: it and the one before are computed together, as
        the rest of a prompt is."""
        sequence.tokens.append(token)
        sequence.prefilling = True

    def keep(self, sequence: Sequence, token: int) -> None:
        """The last token was guessed, and so is computed; this one follows it."""
        sequence.computed += 1
        sequence.tokens.append(token)

    def undo(self, plan: StepPlan) -> None:
        """The plan was not carried out: its sequences stand where they stood before, with their memory."""
        # The reverse of `_advance`; memory that was grown stays, for the next plan needs it too.
        for sequence in plan.decodes:
            sequence.computed -= 1
            _unpromise(sequence)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.start
            if chunk.samples:
                chunk.sequence.prefilling = not chunk.draft
                _unpromise(chunk.sequence)

    def _advance(self, plan: StepPlan) -> None:
        for sequence in plan.decodes:
            sequence.computed += 1
            _reserve_token(sequence)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed += chunk.known
            if chunk.samples:
                sequence.prefilling = False
                _reserve_token(sequence)

    def commit(self, plan: StepPlan) -> None:
        """The plan is on its way through the device: whatever is launched later may read what it computes, and others
        may share the parts of prompts that it computes. A plan that fails is undone instead, and nothing of it can be
        found."""
        for chunk in plan.chunks:
            if not chunk.draft:
                self.memory.publish(chunk.sequence)
        # After many steps that went well, twice as much again.
        if self._rows_allowed == self.max_running and self._budget == self.step_tokens:
            return
        self._steps_since_oom += 1
        if self._steps_since_oom % GROW_BACK_STEPS == 0:
            self._rows_allowed = min(self.max_running, self._rows_allowed * 2)
            self._budget = min(self.step_tokens, self._budget * 2)

    # too little memory

    def shrink_after_oom(self, plan: StepPlan) -> bool:
        """The plan ran out of memory and was undone: its sequences go back to the queue, half as many may run from here
        on, and chunks are half as long. False if it was the least that a step can be, and nothing will help it."""
        rows = len(plan.decodes) + len(plan.chunks)
        tokens = max((chunk.length for chunk in plan.chunks), default=0) if self.chunked else 0
        for sequence in [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]:
            if sequence.state == "running":
                self.preempt(sequence)
        # A failure begins the count of good steps anew, or limits would rise again in the middle of a shortage.
        self._steps_since_oom = 0
        if rows <= 1 and min(tokens, self._budget) <= 1 + LEAST_CHUNK:  # a picture's chunk may be longer than allowed
            return False
        self._rows_allowed = max(1, rows // 2)
        if tokens:
            self._budget = max(self._rows_allowed + LEAST_CHUNK, min(self._budget, tokens) // 2)
        return True

    def _decodes(self, sequence: Sequence) -> bool:
        """Whether the sequence needs one more token computed and has the room; it may send others back for it."""
        return (
            sequence.state == "running"
            and not sequence.prefilling
            and len(sequence.tokens) < sequence.limit
            and self._grow(sequence, len(sequence.tokens))
        )

    def _drafts(self, decodes: list[Sequence], budget: int) -> list[Chunk]:
        """The token and the guesses of those that guessed, as far as they have room without sending others back."""
        budget = min(budget, DRAFTED_TOKENS)
        chunks: list[Chunk] = []
        for sequence in decodes:
            draft, sequence.draft = sequence.draft[: max(0, budget)], ()
            known = len(sequence.tokens)
            if draft and sequence.state == "running" and self.memory.grow(sequence, known + len(draft)):
                chunks.append(Chunk(sequence, sequence.computed, 1 + len(draft), True, draft))
                budget -= len(draft)
        return chunks

    def _room(self, decodes: int) -> tuple[int, int]:
        """Tokens and number of chunks beside so many that decode. A step lasts as long as its chunks need, for all of
        them: where they are no fewer than the prompts that wait for it, chunks are such that it lasts hardly longer."""
        budget = max(0, self._budget - decodes)
        prompts = sum(sequence.prefilling for sequence in self.running) + len(self.queue)
        if not self.chunk_tokens or decodes < max(1, prompts):
            return budget, self.max_running
        return min(budget, self.chunk_tokens), MOST_CHUNKS

    def _rests(self, sequence: Sequence) -> bool:
        """Whether one that is held has nothing to compute: its prompt's last token waits, without pieces all of it."""
        return not self.chunked or _remaining(sequence) == 1

    def _chunks(self, budget: int, most: int) -> list[Chunk]:
        """`most` chunks for the prompts under way: the shortest remainder first, and a quarter of the budget kept for
        the one that was admitted first."""
        prompts = [s for s in self.running if s.prefilling and not (s.held and self._rests(s))]
        if not prompts:
            return []
        # Short prompts first is quick for most and would starve a long one; the kept quarter lets it go on in every
        # step.
        oldest = next((s for s in prompts if s.computed < s.prompt_length), prompts[0])
        prompts.sort(key=_remaining)
        if oldest not in prompts[:most]:
            prompts[most - 1] = oldest
        del prompts[most:]
        kept = min(_remaining(oldest), -(-budget // 4))
        budget -= kept
        scored = SCORED_TOKENS
        chunks: list[Chunk] = []
        for sequence in prompts:
            room = budget + kept if sequence is oldest else budget
            if sequence.scored:
                room = min(room, scored)
            length = min(_remaining(sequence) - sequence.held, room) if self.chunked else _remaining(sequence)
            if sequence.stops and self.chunked:
                # The length of a chunk that may have `length` tokens and ends at the sequence's next stop.
                length = min(
                    [length, *(stop - sequence.computed for stop in sequence.stops if stop > sequence.computed)]
                )
            if sequence.media is not None and self.chunked:
                length = sequence.media.length(sequence.computed, length)
            if length > 0 and sequence.state == "running" and self._grow(sequence, sequence.computed + length):
                chunks.append(Chunk(sequence, sequence.computed, length, length == _remaining(sequence)))
                budget -= max(0, length - kept) if sequence is oldest else length
                scored -= chunks[-1].scores
        return chunks

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        while not self.memory.grow(sequence, tokens):
            # The last by rank, never one that is overdue while others run: one sequence always keeps its memory and
            # ends.
            victim = max(self.running, key=lambda other: (not other.overdue, *rank(other)))
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue, to be computed again."""
        self.preemptions += 1
        self._stop(sequence)
        self.queue.enqueue(sequence)

    def _admit(self) -> None:
        while self._rows and len(self.running) < self._rows_allowed:
            sequence = self.queue.first(self._follows)
            if sequence is None:
                return
            # With nothing else running, no room need be left for others to grow.
            computed = self.memory.admit(sequence, alone=not self.running)
            if computed is None:
                return
            self.queue.start(sequence)
            sequence.state = "running"
            sequence.row = self._rows.pop()
            sequence.computed, sequence.prefilling = computed, True
            # Only the first admission counts: what is found after a preemption is the sequence's own work.
            if sequence.cached is None:
                sequence.cached = computed
            self.running.append(sequence)

    def _follows(self, sequence: Sequence) -> bool:
        """Whether the beginning of its prompt is being computed for another one, which it can share when it is there:
        of several that begin alike and come at once, one computes that."""
        return sequence.shareable and any(
            other.prefilling
            and other.shareable
            and other.owner == sequence.owner
            and self.memory.shares(other, _shared(other, sequence), SHARED_LEAST)
            for other in self.running
        )

    def iterate(self) -> Iterator[Sequence]:
        """Every sequence that is not finished."""
        yield from self.running
        yield from self.queue
        yield from self.paused
