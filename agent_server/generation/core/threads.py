"""How many threads an operation gets on a CPU, found by timing the steps that are computed anyway.

Threads wait for the slowest of them at the end of every operation. Where other processes want the same cores, a step
with all cores may take twenty times as long as with one thread, and on a quiet machine half as long. So half or twice
as many threads are tried for a step or two now and then, and at once when a step takes much longer than usual; what
is faster is kept. Steps are compared with others of their size: a prompt may be best with other threads than a token.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

FIRST, LONGEST = 4, 256
"""Steps between two trials: as many at first, twice as many after each that brought nothing."""
BETTER, WORSE, STRETCHED = 0.9, 1.5, 2.0
"""Shares of the usual time of a step: of a number that is worth a change, of one beyond which no further one is tried,
and of a step that calls for a trial."""


class ThreadChoice:
    """most: as many threads as there are cores for. use: sets the number for the operations that follow."""

    def __init__(
        self,
        most: int,
        use: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most, self._use, self._clock = most, use or torch.set_num_threads, clock
        self._current = most
        self._sizes: dict[int, _StepSize] = {}

    @contextlib.contextmanager
    def timed(self, tokens: int) -> Iterator[None]:
        """Around the computation of a step of so many tokens."""
        size = self._sizes.setdefault(tokens.bit_length(), _StepSize(self._most))
        count = size.next()
        if count != self._current:
            self._use(count)
            self._current = count
        began = self._clock()
        yield
        size.took(count, (self._clock() - began) / tokens)


class _StepSize:
    """The choice for steps of about the same number of tokens."""

    def __init__(self, most: int) -> None:
        self.most = self.count = most
        self.usual = 0.0
        self.interval = self.left = FIRST
        self.trials: list[int] = []
        """Numbers that are still to be tried, the nearest first."""
        self.times: dict[int, float] = {}
        """Of those that were."""

    def next(self) -> int:
        """The threads of the next step."""
        return self.trials[0] if self.trials else self.count

    def took(self, count: int, seconds: float) -> None:
        """A step took so many seconds for each of its tokens."""
        if self.trials:
            self._tried(count, seconds)
            return
        stretched = bool(self.usual) and seconds > STRETCHED * self.usual
        self.usual = 0.7 * self.usual + 0.3 * seconds if self.usual else seconds
        self.left -= 1
        if self.left <= 0 or stretched:
            self.interval = FIRST if stretched else self.interval
            self.left, self.times = self.interval, {}
            halves = [self.count >> shift for shift in range(1, self.count.bit_length())]
            doubles = [min(self.count << shift, self.most) for shift in range(1, self.most.bit_length())]
            self.trials = [*halves, *(more for more in dict.fromkeys(doubles) if more > self.count)]

    def _tried(self, count: int, seconds: float) -> None:
        worse = seconds > WORSE * self.usual
        if not worse and count not in self.times:
            self.times[count] = seconds  # the first step may have started threads: the second counts as well
            return
        self.times[count] = min(seconds, self.times.get(count, seconds))
        self.trials.pop(0)
        if worse:  # so is what is further away
            self.trials = [other for other in self.trials if (other > self.count) != (count > self.count)]
        if self.trials:
            return
        best = min(self.times, key=self.times.__getitem__)
        if self.times[best] < BETTER * self.usual:
            self.count, self.usual, self.interval = best, self.times[best], FIRST
        else:
            self.interval = min(2 * self.interval, LONGEST)
        self.left = self.interval
