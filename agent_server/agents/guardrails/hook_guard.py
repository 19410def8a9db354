"""A guard that is a function, with or without `await`: it is asked about a text and says whether it may not go on.

On a stream it is asked at the end of each sentence, about the message so far, and what it was not asked about is held
back. What it finds only in hindsight may have begun in text that has left; `every=0` asks about whole messages.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable
from typing import cast

from agent_server.agents.guardrails.guard import WHERE, Guard, Where

Hook = Callable[[str], bool | Awaitable[bool]]
EVERY = 200
WINDOW = 8000
"""Characters of a message that a hook is told of while it is written: the last ones."""
_SENTENCE_END = re.compile(r"[.!?…。！？\n]['\")\]]?(?:\s|$)")


class HookGuard:
    """forbids: told a text, whether it may not go on; what it raises ends the run. every: characters after which it is
    asked although no sentence has ended; 0: only about whole messages."""

    newest = True

    def __init__(
        self,
        name: str,
        forbids: Hook,
        *,
        on: Iterable[Where] = WHERE,
        every: int = EVERY,
        message: str = "",
        stops: bool = True,
    ) -> None:
        if every < 0:
            raise ValueError(f"the guard {name}: every must be 0 or more")
        self.name = name
        self.on = frozenset(on)
        self.every = every
        self.message = message
        self.stops = stops
        self._forbids = forbids

    def watch(self) -> HookWatch:
        return HookWatch(self.forbids, self.every)

    async def forbids(self, text: str) -> bool:
        answer = self._forbids(text)
        return bool(await answer if inspect.isawaitable(answer) else answer)


class HookWatch:
    def __init__(self, forbids: Callable[[str], Awaitable[bool]], every: int) -> None:
        self._forbids = forbids
        self._every = every
        self._text = ""
        self._length = self._cleared = 0

    def restart(self) -> None:
        self._text = ""
        self._length = self._cleared = 0

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        self._text = (self._text + delta)[-max(WINDOW, self._fresh + len(delta)) :]
        self._length += len(delta)
        if self._fresh and (last or self._due(delta)):
            if await self._forbids(self._text):
                return self._cleared, True
            self._cleared = self._length
        return self._cleared, False

    @property
    def _fresh(self) -> int:
        """Characters that it was not asked about."""
        return self._length - self._cleared

    def _due(self, delta: str) -> bool:
        if not self._every:
            return False
        return self._fresh >= self._every or _SENTENCE_END.search(delta) is not None


def as_guard(given: object) -> Guard:
    """A guard, or a function as one. TypeError for what is neither."""
    if hasattr(given, "watch") and hasattr(given, "forbids"):
        return cast(Guard, given)
    if not callable(given):
        raise TypeError(f"{type(given).__name__} is no guard: give a PatternGuard, a HookGuard or a function of a text")
    return HookGuard(getattr(given, "__name__", type(given).__name__), given)
