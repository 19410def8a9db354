"""Work done while a turn is not over: calls begun before their message is complete, and the next prompt computed ahead.

A call of a tool that is safe to begin early starts when its arguments close. It is invisible until the message is
complete: its events are held, the state it changes is a copy, and its result waits for its turn. A message that fails,
is stopped, or is refused discards the call: it is cancelled, logged, and left out of the results and the thread.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType
from typing import Any

import jsonpatch
import msgspec
from ag_ui.core import AssistantMessage, Message, RunAgentInput, ToolMessage

from agent_server.agents.conversation import Conversation
from agent_server.agents.running import CallResult, Pending
from agent_server.agents.server_tools import ToolFault
from agent_server.agents.state import SharedState, copied
from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.observability.tracing import happened
from events.metadata import is_cut
from events.options import GenerationOptions
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


Asked = tuple[RunAgentInput, GenerationOptions, str | None]
RESULTS = ("a", "Z")
"""Two results that begin with different characters."""
LEAST = 64
"""Tokens below which nothing is read ahead."""
_lasting: set[asyncio.Task[None]] = set()


class ReadAhead:
    """Around the calls of one turn. `with` begins to read ahead, each result goes on with it, and the end of the block
    ends it; `lasts` says that it is to go on to what is known by then, because the turn comes in a later run.

    asked: the next turn, as it stands. build: the prompt for a turn. compute: has the engine compute and keep the
    beginning of a prompt; None where the engine does not.
    """

    def __init__(
        self,
        conversation: Conversation,
        asked: Callable[[], Asked],
        build: Callable[[RunAgentInput, GenerationOptions, str | None], Awaitable[Prompt]],
        compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]] | None,
    ) -> None:
        self.lasts = False
        self._conversation = conversation
        self._asked = asked
        self._build = build
        self._compute = compute
        self._changed = asyncio.Event()
        self._over = False
        self._done: tuple[int, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> ReadAhead:
        if self._compute is not None:
            self._conversation.on_result = self._changed.set
            self._task = asyncio.create_task(self._read(self._compute), name="read ahead")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._conversation.on_result = None
        self._over = True
        self._changed.set()
        if self._task is None:
            return
        _lasting.add(self._task)
        self._task.add_done_callback(_lasting.discard)
        if kind is not None or not self.lasts:
            self._task.cancel()

    async def _read(self, compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]]) -> None:
        """Read as far as can be, again with every result, until all calls are answered. Never raises: without it, the
        turn takes longer."""
        try:
            while await self._read_once(compute):
                await self._changed.wait()
        except EngineError as error:
            log.debug("the next prompt was not read ahead: %s", error.message)
        except Exception:  # an agent's own instructions or a template may raise anything; the turn itself tells of it
            log.warning("the next prompt could not be read ahead", exc_info=True)

    async def _read_once(self, compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]]) -> bool:
        """Read what is known now; whether more may come to be known."""
        self._changed.clear()
        input, options, instructions = self._asked()
        known = known_so_far(input.messages)
        if known is None:
            return False
        messages, call_id = known
        input = input.model_copy(update={"messages": messages})
        # The tokens that the prompt begins with, whatever the call's result is.
        prompts: list[Prompt] = []
        for result in RESULTS:
            answered = ToolMessage(id=result, tool_call_id=call_id, content=result)
            made = input.model_copy(update={"messages": [*input.messages, answered]})
            prompts.append(await self._build(made, options, instructions))
        one, other = prompts
        beginning = () if one.media else common_beginning(one.token_ids, other.token_ids)
        if len(beginning) >= LEAST and beginning != self._done:
            await compute(beginning, options)
            self._done = beginning
        return not self._over or self._changed.is_set()


def known_so_far(messages: Sequence[Message]) -> tuple[Sequence[Message], str] | None:
    """The messages up to the result of the first call of the last message that is not answered, and that call's id;
    None if all are answered."""
    place = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], AssistantMessage)), None)
    if place is None:
        return None
    message = messages[place]
    calls = message.tool_calls or () if isinstance(message, AssistantMessage) else ()
    results = {each.tool_call_id: each for each in messages[place + 1 :] if isinstance(each, ToolMessage)}
    known = list(messages[: place + 1])
    for call in calls:
        if call.id not in results:
            return known, call.id
        known.append(results[call.id])
    return None


def common_beginning(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    lengths = range(1, min(len(one), len(other)) + 1)
    return one[: bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])]
