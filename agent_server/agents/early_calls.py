"""Calls that run while the model still writes the message that makes them.

A call of a tool that is safe to begin early starts when its arguments close. Nobody is told of it before the message is
done: its events are held, the state that it changes is a copy, and its result waits for its turn. A message that fails,
is stopped, or is refused discards what was begun: it is cancelled, logged, and left out of the results and the thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

import jsonpatch
import msgspec

from agent_server.agents.running import CallResult, Pending
from agent_server.agents.server_tools import ToolFault
from agent_server.agents.state import SharedState, copied
from agent_server.observability.tracing import happened
from events.metadata import is_cut
from events.vocabulary import Event, ToolCallArgs, ToolCallEnd, ToolCallStart

log = logging.getLogger("agent_server.agent")
HELD = 256
"""Events of one call that are held until its message is done. Further ones are left out: they are progress."""
DISCARD_SECONDS = 1.0
"""How long a run waits for the end of what it discarded. Code that does not let itself be cancelled goes on alone."""


class Stage:
    """What an early call does to the run, kept back until its message is done.

    state: a copy of the shared state, for the call to change. emit: where events go after `release`.
    """

    def __init__(self, emit: Callable[[Event], None], shared: SharedState) -> None:
        self.state = copied(shared.value)
        self._before = copied(shared.value)
        self._shared = shared
        self._emit = emit
        self._held: list[Event] | None = []

    def emit(self, event: Event) -> None:
        if self._held is None:
            self._emit(event)
        elif len(self._held) < HELD:
            self._held.append(event)

    def release(self) -> None:
        """The message is done: send what was held, and hold nothing more."""
        held, self._held = self._held or [], None
        for event in held:
            self._emit(event)

    def push(self) -> None:
        """Send what changed in the state, once the message is done. ToolFault as `merge`."""
        if self._held is None:
            self.merge()
            self._shared.push()

    def merge(self) -> None:
        """Make the changes of the copy in the shared state. ToolFault for what is no JSON, and where another call
        changed what this one builds on."""
        # The call worked on a copy, while others changed the state. Its own changes are made in the state as it is now,
        # behind a test of each value that they replace: a later call must not undo an earlier one's in silence.
        try:
            now = copied(self.state)
            changes = jsonpatch.make_patch(self._before, now).patch
            tests = [_unchanged(each["path"], self._before) for each in changes if each["op"] != "add"]
            merged = jsonpatch.apply_patch(self._shared.value, [*tests, *changes])
        except (TypeError, ValueError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            reason = "another call changed it" if isinstance(error, jsonpatch.JsonPatchException) else str(error)
            raise ToolFault(f"The change to the shared state was refused: {reason}.") from None
        self._shared.value.clear()
        self._shared.value.update(merged)
        self._before = now


def _unchanged(path: str, before: dict[str, Any]) -> dict[str, Any]:
    """The operation that fails unless there is at the path what was there before."""
    return {"op": "test", "path": path, "value": jsonpatch.JsonPointer(path).resolve(before, None)}


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was begun early: what it is, and where it runs."""

    pending: Pending
    stage: Stage
    task: asyncio.Task[CallResult]


class EarlyCalls:
    """The early calls of one message.

    names: of the tools that may begin early. begin: (id, name, arguments as written) → the call, begun; None for one
    that must not be.
    """

    def __init__(self, names: Collection[str], begin: Callable[[str, str, str], Begun | None]) -> None:
        self._names = names
        self._begin = begin
        self._written: dict[str, tuple[str, list[str]]] = {}
        self._begun: dict[str, Begun] = {}

    def see(self, event: Event) -> None:
        """See an event of the message behind its sending."""
        if isinstance(event, ToolCallArgs):
            if (call := self._written.get(event.tool_call_id)) is not None:
                call[1].append(event.delta)
        elif isinstance(event, ToolCallStart):
            if event.tool_call_name in self._names:
                self._written[event.tool_call_id] = (event.tool_call_name, [])
        elif isinstance(event, ToolCallEnd) and (call := self._written.pop(event.tool_call_id, None)) is not None:
            begun = None
            if not is_cut(event.metadata):
                begun = self._begin(event.tool_call_id, call[0], "".join(call[1]))
            if begun is not None:
                self._begun[event.tool_call_id] = begun

    def take(self, call_id: str) -> Begun | None:
        """A call that was begun, for good: the message is done."""
        return self._begun.pop(call_id, None)

    async def discard(self) -> None:
        """Cancel what was begun and not taken."""
        left, self._begun = list(self._begun.values()), {}
        self._written.clear()
        for begun in left:
            state = "ended" if begun.task.done() else "stopped"
            begun.task.cancel()
            begun.pending.context.cancel()
            happened("tool_call_discarded", tool__name=begun.pending.name, tool__call__id=begun.pending.call_id)
            log.info("tool %s was begun early and discarded with its message (it was %s)", begun.pending.name, state)
        # Not longer than a moment: a tool may swallow its cancellation, and the turn must not wait for it.
        if left:
            await asyncio.wait([begun.task for begun in left], timeout=DISCARD_SECONDS)
