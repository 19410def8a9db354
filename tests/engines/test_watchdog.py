"""When a process that stalled is found, by a clock that only sleeping moves."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agent_server.engines.embedded import CHECKS, Watchdog

LIMIT = 8.0


class Process:
    """Answers every question at once until it stalls; `stands_still` makes one sleep take so much longer."""

    def __init__(self, stalls: float, stands_still: float = 0.0) -> None:
        self.now = 0.0
        self.stalls = stalls
        self.stands_still = stands_still
        self.ready_until = 0.0
        self.dog = Watchdog(LIMIT, self.asked, lambda: True, clock=lambda: self.now, sleep=self.sleep)

    def asked(self) -> None:
        if self.now < self.stalls:
            self.dog.reset()

    async def sleep(self, seconds: float) -> None:
        if not self.dog.silent:
            self.ready_until = self.now
        self.now += seconds
        if self.now - self.stalls > LIMIT / 2:
            self.now, self.stands_still = self.now + self.stands_still, 0.0

    def found(self) -> float:
        asyncio.run(self.dog.wait_until_hung())
        return self.now - self.stalls


@given(st.floats(0, 100))
def test_a_stall_is_found_within_the_limit_and_one_look(stalls):
    process = Process(stalls)
    assert process.found() + 1e-6 >= LIMIT and process.now - stalls <= LIMIT + LIMIT / CHECKS + 1e-6
    assert process.ready_until - stalls <= LIMIT / 2 + LIMIT / CHECKS + 1e-6


def test_time_in_which_the_server_stood_still_is_not_counted():
    assert Process(10.5, stands_still=60.0).found() > 60.0 + LIMIT - 2 * LIMIT / CHECKS
