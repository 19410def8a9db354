"""Who computes what in the next step. Plain data, no clock, no tensors.

Rules:
- A running sequence gets its next token in every step; prompts are computed in chunks in what is left of the budget,
  the shortest remainder first, so that a short prompt does not wait for a long one; a quarter is kept for the prompt
  that was admitted first, so that a long one is not starved.
- Of those waiting, the highest priority goes first, then the tenant with the fewest running sequences, then the one
  that was served longest ago, then the order of arrival. Who has waited for `patience` steps goes before everybody.
  A later turn of work that was begun before takes its place as if it had arrived `turns_ahead` sequences earlier: it
  passes those first turns of its tenant, and no first turn is passed by more than so many of them.
- A prompt that begins as one that is being computed waits until that beginning is there, and shares it.
- A step that ran out of the device's memory is tried again with half as much, until it is a single short chunk.
- Without room for the next token, the youngest sequence of the lowest priority goes back to the queue and is
  computed again later. The oldest is never sent back for a younger one, so that one sequence always makes progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_server.generation.leases import Terms
from agent_server.generation.sequence import PENDING, Memory, Sequence, common_prefix

SCORED_TOKENS = 256
"""Tokens of prompts to be scored in a step: each of them has logits over the whole vocabulary."""
AGING_STEPS = 64
"""How often the queue is searched for sequences that have waited too long."""
LEAST_CHUNK = 16
"""Tokens of a prompt's chunk below which it is not cut further for want of memory."""
SHARED_LEAST = 32
"""Tokens of a common beginning, still to be computed, for which a sequence waits."""
LOOK_AHEAD = 8
"""How many of a tenant's waiting sequences are looked at for one that need not wait for another's prompt."""
RELIEF_STEPS = 256
"""Steps that must go well, after one that ran out of memory, before more is tried again."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """`length` tokens of a prompt from `start` on. `samples`: it is the last one, and a token follows."""

    sequence: Sequence
    start: int
    length: int
    samples: bool

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
class Plan:
    """One step: a token each for `decodes`, whose last token is at index `computed - 1`, and `chunks`."""

    decodes: list[Sequence] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.decodes or self.chunks)

    @property
    def sampled(self) -> list[Sequence]:
        """Those that get a token from this step, in the order of the logits."""
        return self.decodes + [chunk.sequence for chunk in self.chunks if chunk.samples]


@dataclass(slots=True)
class _Tenant:
    """A tenant's share: those that wait, in order, and how many run."""

    waiting: list[tuple[tuple[int, int], Sequence]] = field(default_factory=list)
    running: int = 0
    served: int = 0


def _promise(sequence: Sequence) -> None:
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


def _rank(sequence: Sequence) -> tuple[int, int]:
    return (-sequence.priority, sequence.order)


class Scheduler:
    """max_running: rows. step_tokens: the budget of a step; every running sequence has one of them for certain.
    `vacated` collects rows that were given back, for their owner to clear before the next launch.
    turns_ahead: how many arrivals a later turn may pass; 0 keeps the order of arrival.
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
    ) -> None:
        self.memory = memory
        self.max_running = max_running
        # One token for every row and one for a prompt: a smaller budget would starve prompts while all rows decode.
        self.step_tokens = max(step_tokens, max_running + 1)
        self.patience = patience
        self.turns_ahead = turns_ahead
        self.chunked = chunked
        self.running: list[Sequence] = []
        self.paused: set[Sequence] = set()
        self.vacated: list[int] = []
        self.preemptions = 0
        self._tenants: dict[str, _Tenant] = {}
        self._overdue: list[Sequence] = []
        # Taken from the end: the lowest rows first.
        self._rows = list(range(max_running - 1, -1, -1))
        self._steps = 0
        self._arrivals = 0
        self._rows_allowed = max_running
        self._budget = self.step_tokens
        self._calm = 0

    @property
    def waiting(self) -> int:
        return sum(len(tenant.waiting) for tenant in self._tenants.values())

    @property
    def idle(self) -> bool:
        return not self.running and not any(tenant.waiting for tenant in self._tenants.values())

    # what may happen to a sequence

    def add(self, sequence: Sequence) -> None:
        """A new sequence, to the end of its tenant's queue, or to its place among those that wait there."""
        self._arrivals += 1
        # even numbers for first turns and odd ones for later turns, so that no two are the same
        later = sequence.later and self.turns_ahead
        sequence.order = 2 * (self._arrivals - self.turns_ahead) - 1 if later else 2 * self._arrivals
        self._enqueue(sequence)

    def finish(self, sequence: Sequence, *, filled: bool = False) -> None:
        """It is over, from whatever state, and holds nothing any more. filled: what it needs was computed, and is kept
        by a lease on its terms."""
        self._withdraw(sequence, sequence.terms if filled else None)
        sequence.state = "finished"

    def filled(self, plan: Plan) -> list[Sequence]:
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
        self._enqueue(sequence)

    def _withdraw(self, sequence: Sequence, terms: Terms | None = None) -> None:
        if sequence.state == "running":
            self._stop(sequence, terms)
        elif sequence.state == "waiting":
            self._dequeue(sequence)
            self._forget(sequence.tenant)
        self.paused.discard(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.state = "waiting"
        sequence.waiting_since = self._steps
        tenant = self._tenants.setdefault(sequence.tenant, _Tenant())
        # The order of arrival is kept by `resume` and `preempt`, so that whoever comes back has its old place.
        insort(tenant.waiting, (_rank(sequence), sequence), key=lambda entry: entry[0])
        if sequence.overdue:
            self._overdue.append(sequence)

    def _dequeue(self, sequence: Sequence) -> None:
        self._tenants[sequence.tenant].waiting.remove((_rank(sequence), sequence))
        if sequence.overdue:
            self._overdue.remove(sequence)

    def _stop(self, sequence: Sequence, terms: Terms | None = None) -> None:
        """A running sequence gives back its row and memory, of which a lease may keep what is computed."""
        self.memory.release(sequence, terms)
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        # The sampler still holds the row's state; whoever launches next clears it first.
        self.vacated.append(sequence.row)
        sequence.row, sequence.computed, sequence.prefilling = -1, 0, False
        self._tenants[sequence.tenant].running -= 1
        self._forget(sequence.tenant)

    def _forget(self, name: str) -> None:
        tenant = self._tenants[name]
        if not tenant.running and not tenant.waiting:
            del self._tenants[name]

    # the next step

    def plan(self) -> Plan:
        """The next step. What it computes counts as computed from here on, and each sequence that gets a token has a
        PENDING one at its end until `settle`."""
        self._steps += 1
        if self._steps % AGING_STEPS == 0:
            self._age()
        # Rows are filled first, so that those admitted now have their first chunk in this step.
        self._admit()
        decodes = [sequence for sequence in self.running[:] if self._decodes(sequence)]
        chunks = self._chunks(max(0, self._budget - len(decodes)))
        plan = Plan(
            # Making room for one may have sent another back that was already chosen.
            [sequence for sequence in decodes if sequence.state == "running"],
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

    def undo(self, plan: Plan) -> None:
        """The plan was not carried out: its sequences stand where they stood before, with their memory."""
        # The reverse of `_advance`; memory that was grown stays, for the next plan needs it too.
        for sequence in plan.decodes:
            sequence.computed -= 1
            _unpromise(sequence)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.start
            if chunk.samples:
                chunk.sequence.prefilling = True
                _unpromise(chunk.sequence)

    def _advance(self, plan: Plan) -> None:
        for sequence in plan.decodes:
            sequence.computed += 1
            _promise(sequence)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed += chunk.length
            if chunk.samples:
                sequence.prefilling = False
                _promise(sequence)

    def commit(self, plan: Plan) -> None:
        """The plan is on its way through the device: whatever is launched later may read what it computes, and others
        may share the parts of prompts that it computes. A plan that fails is undone instead, and nothing of it can be
        found."""
        for chunk in plan.chunks:
            if chunk.samples or self.memory.shares_parts:
                self.memory.publish(chunk.sequence)
        self._relieve()

    # too little memory

    def strain(self, plan: Plan) -> bool:
        """The plan ran out of memory and was undone: its sequences go back to the queue, half as many may run from here
        on, and chunks are half as long. False if it was the least that a step can be, and nothing will help it."""
        rows = len(plan.decodes) + len(plan.chunks)
        tokens = max((chunk.length for chunk in plan.chunks), default=0) if self.chunked else 0
        for sequence in [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]:
            if sequence.state == "running":
                self.preempt(sequence)
        # A failure begins the count of good steps anew, or limits would rise again in the middle of a shortage.
        self._calm = 0
        if rows <= 1 and min(tokens, self._budget) <= 1 + LEAST_CHUNK:  # a picture's chunk may be longer than allowed
            return False
        self._rows_allowed = max(1, rows // 2)
        if tokens:
            self._budget = max(self._rows_allowed + LEAST_CHUNK, min(self._budget, tokens) // 2)
        return True

    def _relieve(self) -> None:
        """After many steps that went well, twice as much again."""
        if self._rows_allowed == self.max_running and self._budget == self.step_tokens:
            return
        self._calm += 1
        if self._calm % RELIEF_STEPS == 0:
            self._rows_allowed = min(self.max_running, self._rows_allowed * 2)
            self._budget = min(self.step_tokens, self._budget * 2)

    def _decodes(self, sequence: Sequence) -> bool:
        """Whether the sequence needs one more token computed and has the room; it may send others back for it."""
        return (
            sequence.state == "running"
            and not sequence.prefilling
            and len(sequence.tokens) < sequence.limit
            and self._grow(sequence, len(sequence.tokens))
        )

    def _chunks(self, budget: int) -> list[Chunk]:
        """Chunks for the prompts under way: the shortest remainder first, and a quarter of the budget kept for the
        one that was admitted first."""
        prompts = [s for s in self.running if s.prefilling and (self.chunked or not s.held)]
        if not prompts:
            return []
        # Short prompts first is quick for most and would starve a long one; the kept quarter lets it go on in every
        # step.
        oldest = next((s for s in prompts if s.computed < s.prompt_length), prompts[0])
        prompts.sort(key=_remaining)
        kept = min(_remaining(oldest), -(-budget // 4))
        budget -= kept
        scored = SCORED_TOKENS
        chunks: list[Chunk] = []
        for sequence in prompts:
            room = budget + kept if sequence is oldest else budget
            if sequence.scored:
                room = min(room, scored)
            length = min(_remaining(sequence) - sequence.held, room) if self.chunked else _remaining(sequence)
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
            victim = max(self.running, key=lambda other: (not other.overdue, *_rank(other)))
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Back to the queue, to be computed again."""
        self.preemptions += 1
        self._stop(sequence)
        self._enqueue(sequence)

    def _admit(self) -> None:
        while self._rows and len(self.running) < self._rows_allowed:
            sequence = self._next()
            if sequence is None:
                return
            # With nothing else running, no room need be left for others to grow.
            computed = self.memory.admit(sequence, alone=not self.running)
            if computed is None:
                return
            self._start(sequence, computed)

    def _next(self) -> Sequence | None:
        """Who goes first; a sequence whose last token is still being computed is not ready."""
        # Patience goes before priority and shares, which is what makes waiting finite.
        late = [sequence for sequence in self._overdue if not sequence.pending]
        if late:
            return min(late, key=lambda sequence: sequence.order)
        heads = [(tenant, head) for tenant in self._tenants.values() if (head := self._head(tenant)) is not None]
        if not heads:
            return None
        return min(heads, key=lambda h: (-h[1].priority, h[0].running, h[0].served, h[1].order))[1]

    def _head(self, tenant: _Tenant) -> Sequence | None:
        """The tenant's next: the first, or of the first few one that does not wait for what another computes."""
        for _, sequence in tenant.waiting[:LOOK_AHEAD]:
            if sequence.pending:
                return None
            if not self._follows(sequence):
                return sequence
        return None

    def _follows(self, sequence: Sequence) -> bool:
        """Whether the beginning of its prompt is being computed for another one, which it can share when it is there:
        of several that begin alike and come at once, one computes that."""
        if not (self.memory.shares_parts and sequence.shareable):
            return False
        return any(
            other.prefilling
            and other.shareable
            and other.owner == sequence.owner
            and _shared(other, sequence) - other.computed >= SHARED_LEAST
            for other in self.running
        )

    def _age(self) -> None:
        """Mark those that have waited beyond patience."""
        for tenant in self._tenants.values():
            for _, sequence in tenant.waiting:
                if not sequence.overdue and self._steps - sequence.waiting_since > self.patience:
                    sequence.overdue = True
                    self._overdue.append(sequence)

    def _start(self, sequence: Sequence, computed: int) -> None:
        tenant = self._tenants[sequence.tenant]
        self._dequeue(sequence)
        tenant.running += 1
        tenant.served = self._steps
        sequence.state = "running"
        sequence.row = self._rows.pop()
        sequence.computed, sequence.prefilling = computed, True
        # Only the first admission counts: what is found after a preemption is the sequence's own work.
        if sequence.cached is None:
            sequence.cached = computed
        self.running.append(sequence)

    def iterate(self) -> Iterator[Sequence]:
        """Every sequence that is not finished."""
        yield from self.running
        for tenant in self._tenants.values():
            yield from (sequence for _, sequence in tenant.waiting)
        yield from self.paused
