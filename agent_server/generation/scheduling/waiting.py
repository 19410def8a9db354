"""Sequences that wait for a row, and which of them goes first. Plain data; time is counted in steps.

Who has waited for `patience` steps goes before everybody, else the highest priority goes first, then the tenant with
the fewest running sequences, then the one that was served longest ago, then the order of arrival. A later turn of work
that was begun before takes its place as if it had arrived `turns_ahead` sequences earlier: it passes those first turns
of its tenant, and no first turn is passed by more than so many of them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent_server.generation.scheduling.sequence import Sequence

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
