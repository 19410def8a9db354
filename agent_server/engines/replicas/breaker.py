"""The circuit breaker of one replica: after failures in a row it is left alone, then tried with one generation."""

from __future__ import annotations

from typing import Literal

State = Literal["closed", "open", "half_open"]


class Breaker:
    """closed: everything passes. open: nothing, until the cooldown is over. half_open: one generation is on trial; its
    first token closes the circuit, but one more failure opens it again, for twice as long. Times in seconds."""

    def __init__(self, failures: int, cooldown: float, longest_cooldown: float) -> None:
        self._allowed = failures
        self._first_cooldown = self._cooldown = cooldown
        self._longest = longest_cooldown
        self._failures = 0
        self._until = 0.0
        self._trying = False
        self.state: State = "closed"

    def allows(self, now: float) -> bool:
        if self.state == "closed":
            return True
        return not self._trying and (self.state == "half_open" or now >= self._until)

    def begin(self) -> bool:
        """A generation that is allowed begins; True if it is on trial, and then `give_up` must follow unless another
        word does."""
        if self.state == "closed":
            return False
        self.state, self._trying = "half_open", True
        return True

    def give_up(self) -> None:
        """The trial ended without saying anything about the replica."""
        self._trying = False

    def answered(self) -> None:
        """A first token came."""
        if self.state != "closed":
            self.state, self._trying = "closed", False
            self._failures = self._allowed - 1

    def succeeded(self) -> None:
        """A generation came to its end."""
        self.state, self._trying = "closed", False
        self._failures, self._cooldown = 0, self._first_cooldown

    def failed(self, now: float) -> None:
        """A generation was lost. Those that are lost together while the circuit is open change nothing."""
        if self.state == "open":
            return
        self._failures += 1
        self._trying = False
        if self.state == "closed" and self._failures < self._allowed:
            return
        self._until = now + self._cooldown
        self._cooldown = min(self._longest, 2 * self._cooldown)
        self.state = "open"
