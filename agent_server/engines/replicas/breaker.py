"""The circuit breaker of one replica: after failures in a row it gets no generations, then one on trial."""

from __future__ import annotations

from typing import Literal

State = Literal["closed", "open", "half_open"]


class Breaker:
    """closed: every generation passes. open: none passes until the cooldown is over. half_open: one generation is on
    trial; its first token closes the circuit, its failure opens it for twice as long. Times in seconds."""

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
        """A generation that `allows` admitted begins. True if it is on trial: then its result must be reported with
        `answered`, `succeeded`, `failed` or `give_up`."""
        if self.state == "closed":
            return False
        self.state, self._trying = "half_open", True
        return True

    def give_up(self) -> None:
        """The trial ended without showing whether the replica works, for example because its reader cancelled."""
        self._trying = False

    def answered(self) -> None:
        """A generation yielded its first token."""
        if self.state != "closed":
            self.state, self._trying = "closed", False
            # One token proves little: the next failure opens the circuit again at once, with the longer cooldown.
            self._failures = self._allowed - 1

    def succeeded(self) -> None:
        """A generation was completed, which resets the count of failures and the cooldown."""
        self.state, self._trying = "closed", False
        self._failures, self._cooldown = 0, self._first_cooldown

    def failed(self, now: float) -> None:
        """A generation was lost."""
        # When a replica dies, all its generations fail together; only the first of them may start a cooldown.
        if self.state == "open":
            return
        self._failures += 1
        self._trying = False
        if self.state == "closed" and self._failures < self._allowed:
            return
        self._until = now + self._cooldown
        self._cooldown = min(self._longest, 2 * self._cooldown)
        self.state = "open"
