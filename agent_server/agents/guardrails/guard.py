"""What a guard is, and several as one."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Literal, Protocol, get_args

from adapters.errors import RequestError
from agent_server.observability.audit import note

log = logging.getLogger("agent_server.guardrails")
Where = Literal["prompt", "text", "reasoning", "arguments", "results"]
"""What is read: what a client sends, the model's text, its reasoning and its calls' arguments, and tools' results."""
WHERE: tuple[Where, ...] = get_args(Where)
MESSAGE = "A guard of this server does not let this through."
LARGE = 64 * 1024
"""Characters that are read on the event loop before others get a turn."""


CLEARED = 1024
"""Documents that are remembered as let through: conversations send theirs again with every turn."""


class Forbidden(RequestError):
    """A guard stopped something. The message is for the client, and says nothing of what was found."""

    def __init__(self, where: Where, message: str) -> None:
        super().__init__("content_filter", message)
        self.where: Where = where


class Watch(Protocol):
    """A guard's reading of one message as it is written."""

    async def read(self, delta: str, *, last: bool) -> tuple[int, bool]:
        """(how many characters of the message may leave, whether what follows them is forbidden). last: the message
        ends here, so nothing more need be waited for."""

    def restart(self) -> None:
        """Another message follows. What it says may go on with what the one before it said last: some clients see
        both as one."""


class Guard(Protocol):
    """Reads what is sent and said.

    name: for the operator, in logs and the audit log. on: what it reads. message: told to the client of what it
    stopped; "" for a sentence that fits all. stops: False only notes what it finds. newest: of a prompt it reads only
    what follows the last answer.
    """

    @property
    def name(self) -> str: ...
    @property
    def on(self) -> frozenset[Where]: ...
    @property
    def message(self) -> str: ...
    @property
    def stops(self) -> bool: ...
    @property
    def newest(self) -> bool: ...

    def watch(self) -> Watch: ...

    async def forbids(self, text: str) -> bool:
        """Whether a whole text may not go on."""


class Guards:
    """All guards of an agent: the server's and its own."""

    def __init__(self, guards: Iterable[Guard]) -> None:
        self._guards = tuple(guards)
        self._by: Mapping[Where, tuple[Guard, ...]] = {
            where: tuple(each for each in self._guards if where in each.on) for where in WHERE
        }
        self._cleared: OrderedDict[bytes, None] = OrderedDict()

    def of(self, where: Where) -> Sequence[Guard]:
        return self._by[where]

    def and_also(self, guards: Iterable[Guard]) -> Guards:
        return Guards((*self._guards, *guards))

    async def check(self, text: str, where: Where) -> None:
        """Read a whole text. Raises Forbidden."""
        for guard in self._by[where]:
            await judge(guard, text, where)

    async def check_prompt(self, everything: Iterable[str], newest: str) -> None:
        """Read what a client sent. newest: what follows the last answer. Raises Forbidden."""
        thorough = [guard for guard in self._by["prompt"] if not guard.newest]
        characters = 0
        for text in everything if thorough else ():
            for guard in thorough:
                await judge(guard, text, "prompt")
            if (characters := characters + len(text)) > LARGE:
                characters = 0
                await asyncio.sleep(0)
        for guard in self._by["prompt"]:
            if guard.newest and newest:
                await judge(guard, newest, "prompt")

    async def check_document(self, pages: Sequence[tuple[str, str]], where: Where) -> None:
        """Read a document. pages: what the model is told of each, and its own words. Guards that know what they look
        for read it whole, so that a page's end divides no phrase; the others are asked a page at a time. What was let
        through is not read again. Raises Forbidden."""
        if not (guards := self._by[where]):
            return
        whole = "\n".join(said for _, said in pages)
        told = "\n".join(told for told, _ in pages)
        key = await asyncio.to_thread(_digest, where, told) if len(told) > LARGE else _digest(where, told)
        if key in self._cleared:
            self._cleared.move_to_end(key)
            return
        headings = "\n".join(told.removesuffix(said) for told, said in pages)
        for guard in guards:
            for text in [page for page, _ in pages] if guard.newest else (whole, headings):
                await judge(guard, text, where)
        self._cleared[key] = None
        if len(self._cleared) > CLEARED:
            self._cleared.popitem(last=False)


def _digest(where: Where, text: str) -> bytes:
    return blake2b(f"{where}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()


async def judge(guard: Guard, text: str, where: Where) -> None:
    if text and await guard.forbids(text):
        found(guard, where)


def found(guard: Guard, where: Where) -> None:
    """Note that a guard found something. Raises Forbidden if it stops what it finds."""
    log.warning("the guard %s found something in: %s%s", guard.name, where, "" if guard.stops else " (let through)")
    note("content.withheld" if guard.stops else "content.found", guard=guard.name, where=where)
    if guard.stops:
        raise Forbidden(where, guard.message or MESSAGE)
