"""The number of threads per operation on a CPU, chosen by timing the steps that are computed anyway.

Threads wait for the slowest of them at the end of every operation. Where other processes use the same cores, a step on
all cores may take twenty times as long as on one thread; on a quiet machine it takes half as long. So half or twice as
many threads are tried for a step or two now and then, and at once when a step takes much longer than usual; the faster
number is used. Steps are compared with others of their size, since a prompt and a token may need different numbers.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import torch

FIRST, LONGEST = 4, 256
"""Steps between two trials: FIRST to begin with, doubled up to LONGEST after each trial that was not faster."""
BETTER, WORSE, STRETCHED = 0.9, 1.5, 2.0
"""Ratios to the usual time of a step: below BETTER a number is adopted, above WORSE numbers further away are not tried,
and a step above STRETCHED starts a trial."""


class ThreadChoice:
    """most: the maximum number of threads, one for each core. use: sets the number for the operations that follow."""

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
        """Time the computation of a step of `tokens` tokens, with the number of threads chosen for it."""
        size = self._sizes.setdefault(tokens.bit_length(), _StepSize(self._most))
        count = size.next()
        if count != self._current:
            self._use(count)
            self._current = count
        began = self._clock()
        yield
        size.record(count, (self._clock() - began) / tokens)


class _StepSize:
    """The choice for steps with about the same number of tokens. trials: numbers still to be tried, nearest first.
    times: seconds per token of the numbers that were tried."""

    def __init__(self, most: int) -> None:
        self.most = self.count = most
        self.usual = 0.0
        self.interval = self.steps_left = FIRST
        self.trials: list[int] = []
        self.times: dict[int, float] = {}

    def next(self) -> int:
        """Return the number of threads for the next step."""
        return self.trials[0] if self.trials else self.count

    def record(self, count: int, seconds: float) -> None:
        """Record the time of a step with `count` threads, in seconds per token."""
        if self.trials:
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
            self.steps_left = self.interval
            return
        stretched = bool(self.usual) and seconds > STRETCHED * self.usual
        self.usual = 0.7 * self.usual + 0.3 * seconds if self.usual else seconds
        self.steps_left -= 1
        if self.steps_left <= 0 or stretched:
            self.interval = FIRST if stretched else self.interval
            self.steps_left, self.times = self.interval, {}
            halves = [self.count >> shift for shift in range(1, self.count.bit_length())]
            doubles = [min(self.count << shift, self.most) for shift in range(1, self.most.bit_length())]
            self.trials = [*halves, *(more for more in dict.fromkeys(doubles) if more > self.count)]
