"""The scheduler: which sequences compute which tokens in the next step. Plain data, no clock, no tensors.

Rules:
- A running sequence gets its next token in every step. Prompts are computed in chunks with the rest of the budget, the
  shortest remainder first, so that a short prompt does not wait for a long one. A quarter is reserved for the prompt
  that was admitted first, so that a long one is not starved.
- `WaitingQueue` decides which waiting sequence is admitted next.
- A prompt that shares a prefix with one that is being computed waits for that prefix and reuses it.
- A step that ran out of the device's memory is retried at half its size, down to a single short chunk.
- Without memory for the next token, the youngest sequence of the lowest priority is preempted and recomputed later. The
  oldest is never preempted for a younger one, so that one sequence always makes progress.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent_server.generation.scheduling.leases import LeaseTerms
from agent_server.generation.scheduling.sequence import (
    MAX_CHUNKS,
    PENDING,
    Chunk,
    Memory,
    Sequence,
    StepPlan,
    common_prefix,
)

AGING_STEPS = 64
"""Steps between two searches of the queue for sequences that have waited too long."""
LOOK_AHEAD = 8
"""How many of a tenant's waiting sequences are examined for one that does not wait for another's prompt."""


@dataclass(slots=True)
class _Tenant:
    """One tenant's waiting sequences in order, the number of its running ones, and the step it was last served in."""

    waiting: list[tuple[tuple[int, int], Sequence]] = field(default_factory=list)
    running: int = 0
    served: int = 0


def rank(sequence: Sequence) -> tuple[int, int]:
    """Return the sort key of a sequence, smallest first: by priority, then by arrival."""
    return (-sequence.priority, sequence.order)


class WaitingQueue:
    """One queue for each tenant. `tenants` are those with waiting or running sequences; `overdue` are the sequences
    that have waited for longer than `patience` steps."""

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
        """Queue a new sequence of its tenant, by its priority and order."""
        self._arrivals += 1
        # Even numbers for first turns and odd ones for later turns, so that each is unique.
        later = sequence.later and self.turns_ahead
        sequence.order = 2 * (self._arrivals - self.turns_ahead) - 1 if later else 2 * self._arrivals
        self.enqueue(sequence)

    def enqueue(self, sequence: Sequence) -> None:
        """Queue a sequence that has arrived before, in its old position."""
        sequence.state = "waiting"
        sequence.waiting_since = self._steps
        tenant = self.tenants.setdefault(sequence.tenant, _Tenant())
        insort(tenant.waiting, (rank(sequence), sequence), key=lambda entry: entry[0])
        if sequence.overdue:
            self.overdue.append(sequence)

    def withdraw(self, sequence: Sequence) -> None:
        """Remove a waiting sequence that will not run."""
        self._dequeue(sequence)
        self._forget(sequence.tenant)

    def start(self, sequence: Sequence) -> None:
        """Remove a waiting sequence that runs now. It counts towards its tenant's share until `stop`."""
        self._dequeue(sequence)
        tenant = self.tenants[sequence.tenant]
        tenant.running += 1
        tenant.served = self._steps

    def stop(self, sequence: Sequence) -> None:
        """Count a sequence of its tenant as no longer running."""
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
        """Return the sequence to admit next. A sequence whose last token is still being computed is not ready.
        follows: whether a sequence waits for a prefix that a running one computes."""
        # Overdue sequences go before priority and fair shares, which bounds the wait.
        ready = [sequence for sequence in self.overdue if not sequence.pending]
        if ready:
            return min(ready, key=lambda sequence: sequence.order)
        heads: list[tuple[_Tenant, Sequence]] = []
        for tenant in self.tenants.values():
            # The first of the tenant's next sequences that does not wait for another's prefix.
            for _, sequence in tenant.waiting[:LOOK_AHEAD]:
                if sequence.pending:
                    break
                if not follows(sequence):
                    heads.append((tenant, sequence))
                    break
        if not heads:
            return None
        return min(heads, key=lambda h: (-h[1].priority, h[0].running, h[0].served, h[1].order))[1]

    def tick(self) -> None:
        """Count a step. Every AGING_STEPS, mark the sequences that have waited for longer than `patience`."""
        self._steps += 1
        if self._steps % AGING_STEPS:
            return
        for sequence in self:
            if not sequence.overdue and self._steps - sequence.waiting_since > self.patience:
                sequence.overdue = True
                self.overdue.append(sequence)


MAX_SCORED_TOKENS = 256
"""Scored prompt tokens in a step: each of them has logits over the whole vocabulary."""
MAX_DRAFT_TOKENS = 64
"""Draft tokens in a step: where many sequences decode, a step is compute-bound and drafts no longer pay."""
MIN_CHUNK_TOKENS = 16
"""Length of a prompt's chunk below which it is not halved again when memory runs out."""
MIN_SHARED_TOKENS = 32
"""Length of a common prefix, not yet computed, for which a sequence waits."""
MAX_FORCED_TOKENS = 256
"""Uncomputed tokens of an answer that count as forced by a grammar; more are those of a sequence that was preempted."""
GROW_BACK_STEPS = 256
"""Successful steps after an out-of-memory error before the limits are doubled."""


def _reserve_token(sequence: Sequence) -> None:
    """Append a placeholder for a token that is being computed."""
    # The next step can then be planned while this one runs.
    sequence.tokens.append(PENDING)
    sequence.pending += 1


def _release_token(sequence: Sequence) -> None:
    sequence.tokens.pop()
    sequence.pending -= 1


def _remaining(sequence: Sequence) -> int:
    """Return the number of tokens whose keys and values are not computed yet."""
    return len(sequence.tokens) - sequence.computed


def _is_forced_run(sequence: Sequence) -> bool:
    """Return whether only a few tokens of a sequence's answer are left to compute."""
    return sequence.computed >= sequence.prompt_length and _remaining(sequence) <= MAX_FORCED_TOKENS


class Scheduler:
    """max_running: the number of rows. step_tokens: the token budget of a step; each running sequence is sure of one.
    turns_ahead: how many arrivals a later turn may overtake; 0 keeps the order of arrival.
    chunk_tokens: prompt tokens in a step with decoding sequences, unless more prompts wait than sequences decode; 0
    for the whole budget.
    chunked: False computes every prompt in one chunk, whatever the budget, for models that require it.

    `freed_rows` collects rows that were given back, for the sampler to clear before the next launch."""

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
        self.freed_rows: list[int] = []
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
        """Queue a new sequence."""
        self.queue.arrive(sequence)

    def finish(self, sequence: Sequence, *, keep_prefill: bool = False) -> None:
        """End a sequence in any state and free its memory. keep_prefill: its prompt was computed; keep it under a lease
        with the sequence's terms."""
        self._withdraw(sequence, sequence.terms if keep_prefill else None)
        sequence.state = "finished"

    def completed_prefills(self, plan: StepPlan) -> list[Sequence]:
        """Return the prefill-only sequences whose prompts were computed before this plan's step."""
        in_plan = {chunk.sequence.number for chunk in plan.chunks}
        return [s for s in self.running if s.terms and _remaining(s) == 1 and s.number not in in_plan]

    def pause(self, sequence: Sequence) -> None:
        """Suspend a sequence: it keeps its tokens and gives back its row and memory."""
        self._withdraw(sequence)
        sequence.state = "paused"
        self.paused.add(sequence)

    def resume(self, sequence: Sequence) -> None:
        """Queue a paused sequence in its old position."""
        self.paused.discard(sequence)
        self.queue.enqueue(sequence)

    def _withdraw(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        if sequence.state == "running":
            self._stop(sequence, terms)
        elif sequence.state == "waiting":
            self.queue.withdraw(sequence)
        self.paused.discard(sequence)

    def _stop(self, sequence: Sequence, terms: LeaseTerms | None = None) -> None:
        """Take the row and memory of a running sequence. terms: keep what is computed under a lease."""
        self.memory.release(sequence, terms)
        self.running.remove(sequence)
        self._rows.append(sequence.row)
        # The sampler still holds the row's state; it is cleared before the next launch.
        self.freed_rows.append(sequence.row)
        sequence.row, sequence.computed, sequence.prefilling = -1, 0, False
        self.queue.stop(sequence)

    # the next step

    def schedule(self) -> StepPlan:
        """Plan the next step. Its tokens count as computed from here on, and each sequence that gets a token has a
        PENDING one at its end until `settle`."""
        self.queue.tick()
        # Admission comes first, so that new sequences get their first chunk in this step.
        self._admit()
        decodes = [
            sequence
            for sequence in self.running[:]
            # Growing one sequence may preempt another.
            if sequence.state == "running"
            and not sequence.prefilling
            and len(sequence.tokens) < sequence.limit
            and self._grow(sequence, len(sequence.tokens))
        ]
        # Chunks delay all that decode, so they are small unless more prompts wait than sequences decode.
        budget, most = max(0, self._budget - len(decodes)), self.max_running
        # Tokens that a grammar forces are as few as decoding would give, and no prompt that waits.
        prompts = sum(s.prefilling and not _is_forced_run(s) for s in self.running) + len(self.queue)
        if self.chunk_tokens and len(decodes) >= prompts:
            budget, most = min(budget, self.chunk_tokens), MAX_CHUNKS
        chunks = self._chunks(budget, most)
        # The last token and the draft of each sequence that has one, as far as there is memory without preemption.
        room = min(self._budget - len(decodes) - sum(chunk.length for chunk in chunks), MAX_DRAFT_TOKENS)
        drafts: list[Chunk] = []
        for sequence in decodes:
            draft, sequence.draft = sequence.draft[: max(0, room)], ()
            known = len(sequence.tokens)
            if draft and sequence.state == "running" and self.memory.grow(sequence, known + len(draft)):
                drafts.append(Chunk(sequence, sequence.computed, 1 + len(draft), True, draft))
                room -= len(draft)
        drafted = {chunk.sequence for chunk in drafts}
        plan = StepPlan(
            # Growing one sequence may have preempted another that was already selected.
            [sequence for sequence in decodes if sequence.state == "running" and sequence not in drafted],
            [chunk for chunk in chunks + drafts if chunk.sequence.state == "running"],
        )
        for sequence in plan.decodes:
            sequence.computed += 1
            _reserve_token(sequence)
        for chunk in plan.chunks:
            sequence = chunk.sequence
            sequence.computed += chunk.known
            if chunk.samples:
                sequence.prefilling = False
                _reserve_token(sequence)
        return plan

    def settle(self, sequence: Sequence, token: int) -> None:
        """Set the value of the first pending token."""
        sequence.tokens[sequence.known] = token
        sequence.pending -= 1

    def withdraw_token(self, sequence: Sequence) -> None:
        """Remove the pending token of a sequence whose next tokens are forced. The launched step still computes the
        token before it."""
        _release_token(sequence)

    def append(self, sequence: Sequence, token: int) -> None:
        """Append a forced token to a running sequence. It is computed together with the token before it, like the rest
        of a prompt."""
        sequence.tokens.append(token)
        sequence.prefilling = True

    def accept_draft(self, sequence: Sequence, token: int) -> None:
        """Append the token after an accepted draft token, which the step has already computed."""
        sequence.computed += 1
        sequence.tokens.append(token)

    def undo(self, plan: StepPlan) -> None:
        """Restore the sequences of a plan that was not executed. They keep the memory that `schedule` added, since the
        next plan needs it too."""
        for sequence in plan.decodes:
            sequence.computed -= 1
            if sequence.pending:  # not withdrawn
                _release_token(sequence)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.start
            if chunk.samples:
                chunk.sequence.prefilling = not chunk.draft
                _release_token(chunk.sequence)

    def commit(self, plan: StepPlan) -> None:
        """Publish the prompt chunks of a plan that was launched: whatever is launched later may read what it computes.
        A plan that fails is undone instead and never enters the prefix cache."""
        for chunk in plan.chunks:
            if not chunk.draft:
                self.memory.publish(chunk.sequence)
        # Double the limits after GROW_BACK_STEPS successful steps.
        if self._rows_allowed == self.max_running and self._budget == self.step_tokens:
            return
        self._steps_since_oom += 1
        if self._steps_since_oom % GROW_BACK_STEPS == 0:
            self._rows_allowed = min(self.max_running, self._rows_allowed * 2)
            self._budget = min(self.step_tokens, self._budget * 2)

    # too little memory

    def shrink_after_oom(self, plan: StepPlan) -> bool:
        """Preempt the sequences of a plan that ran out of memory, and halve the number of running sequences and the
        length of chunks. Return False if the step was already as small as possible, so that a retry cannot help."""
        rows = len(plan.decodes) + len(plan.chunks)
        tokens = max((chunk.length for chunk in plan.chunks), default=0) if self.chunked else 0
        for sequence in [*plan.decodes, *(chunk.sequence for chunk in plan.chunks)]:
            if sequence.state == "running":
                self.preempt(sequence)
        # Restart the count of successful steps, or the limits would grow in the middle of a shortage.
        self._steps_since_oom = 0
        # A picture's chunk may be longer than the budget.
        if rows <= 1 and min(tokens, self._budget) <= 1 + MIN_CHUNK_TOKENS:
            return False
        self._rows_allowed = max(1, rows // 2)
        if tokens:
            self._budget = max(self._rows_allowed + MIN_CHUNK_TOKENS, min(self._budget, tokens) // 2)
        return True

    def _chunks(self, budget: int, most: int) -> list[Chunk]:
        """Return up to `most` chunks of running prompts: the shortest remainder first, with a quarter of the budget
        reserved for the one that was admitted first."""
        # A blocked sequence computes all but its last token, or nothing where prompts are not chunked.
        prompts = [
            s for s in self.running if s.prefilling and not (s.blocked and (not self.chunked or _remaining(s) == 1))
        ]
        if not prompts:
            return []
        # Shortest first is fast for most prompts but would starve a long one; the reserve lets it progress every step.
        oldest = next((s for s in prompts if s.computed < s.prompt_length), prompts[0])
        prompts.sort(key=_remaining)
        if oldest not in prompts[:most]:
            prompts[most - 1] = oldest
        del prompts[most:]
        reserve = min(_remaining(oldest), -(-budget // 4))
        budget -= reserve
        scored = MAX_SCORED_TOKENS
        chunks: list[Chunk] = []
        for sequence in prompts:
            room = budget + reserve if sequence is oldest else budget
            if sequence.scored:
                room = min(room, scored)
            length = min(_remaining(sequence) - sequence.blocked, room) if self.chunked else _remaining(sequence)
            if self.chunked:
                # End the chunk at the sequence's next stop.
                ahead = (stop - sequence.computed for stop in sequence.stops if stop > sequence.computed)
                length = min(length, next(ahead, length))
            if sequence.media is not None and self.chunked:
                length = sequence.media.length(sequence.computed, length)
            if length > 0 and sequence.state == "running" and self._grow(sequence, sequence.computed + length):
                chunks.append(Chunk(sequence, sequence.computed, length, length == _remaining(sequence)))
                budget -= max(0, length - reserve) if sequence is oldest else length
                scored -= chunks[-1].scores
        return chunks

    def _grow(self, sequence: Sequence, tokens: int) -> bool:
        while not self.memory.grow(sequence, tokens):
            # The last by rank, and an overdue one only if all are: one sequence always keeps its memory and finishes.
            victim = max(self.running, key=lambda other: (not other.overdue, *rank(other)))
            self.preempt(victim)
            if victim is sequence:
                return False
        return True

    def preempt(self, sequence: Sequence) -> None:
        """Return a running sequence to the queue, to be recomputed later."""
        self.preemptions += 1
        self._stop(sequence)
        self.queue.enqueue(sequence)

    def _admit(self) -> None:
        while self._rows and len(self.running) < self._rows_allowed:
            sequence = self.queue.first(self._follows)
            if sequence is None:
                return
            # With nothing else running, no memory is reserved for others to grow.
            computed = self.memory.admit(sequence, alone=not self.running)
            if computed is None:
                return
            self.queue.start(sequence)
            sequence.state = "running"
            sequence.row = self._rows.pop()
            sequence.computed, sequence.prefilling = computed, True
            # Only the first admission counts: cache hits after a preemption are the sequence's own work.
            if sequence.cached is None:
                sequence.cached = computed
            self.running.append(sequence)

    def _follows(self, sequence: Sequence) -> bool:
        """Return whether a running sequence computes a prefix that this one can share: of several prompts with a common
        prefix that arrive together, only one computes it."""
        if not sequence.shareable:
            return False
        for other in self.running:
            if not other.prefilling or not other.shareable or other.owner != sequence.owner:
                continue
            # The length of the common prefix, without the last token, which must be computed for its logits.
            end = min(other.known, sequence.known) - 1
            start = min(end, MIN_SHARED_TOKENS)
            same_start = other.tokens[:start] == sequence.tokens[:start]
            length = common_prefix(other.tokens, sequence.tokens, start, end) if same_start else 0
            if self.memory.shares(other, length, MIN_SHARED_TOKENS):
                return True
        return False

    def iterate(self) -> Iterator[Sequence]:
        """Iterate over all sequences that are not finished."""
        yield from self.running
        yield from self.queue
        yield from self.paused
