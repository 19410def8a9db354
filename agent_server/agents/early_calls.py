"""Work done before a turn ends: calls started before their message is complete, and the next prompt computed ahead.

A call of a tool with `early` starts when its arguments are complete. It is invisible until the message is complete: its
events are held, it changes a copy of the state, and its result is sent in the order of the calls. If the message fails,
is stopped, or is refused, the call is discarded: it is cancelled, logged, and left out of the results and the thread.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Sequence
from types import TracebackType

import jsonpatch
import msgspec
from ag_ui.core import AssistantMessage, Message, RunAgentInput, ToolMessage

from agent_server.agents.conversation import Conversation
from agent_server.agents.running import CallResult, PendingCall
from agent_server.agents.server_tools import ToolFault
from agent_server.agents.state import SharedState, copied
from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.built_prompt import Prompt
from agent_server.observability.tracing import add_span_event
from events.metadata import is_cut
from events.options import GenerationOptions
from events.vocabulary import Event, ToolCallArgs, ToolCallEnd, ToolCallStart

log = logging.getLogger("agent_server.agent")
MAX_HELD_EVENTS = 256
"""How many events of one call are held until its message is complete. Further ones, which are progress, are dropped."""
DISCARD_SECONDS = 1.0
"""How long a run waits for discarded calls to end. Code that does not honour cancellation is left running."""


class StagedEffects:
    """The effects of an early call on the run, held until its message is complete.

    state: a copy of the shared state, for the call to change. emit: sends events after `release`.
    """

    def __init__(self, emit: Callable[[Event], None], shared: SharedState) -> None:
        self.state = copied(shared.value)
        self._before = copied(shared.value)
        self._shared = shared
        self._emit = emit
        self._held_events: list[Event] | None = []

    def emit(self, event: Event) -> None:
        if self._held_events is None:
            self._emit(event)
        elif len(self._held_events) < MAX_HELD_EVENTS:
            self._held_events.append(event)

    def release(self) -> None:
        """The message is complete: send the held events, and later ones at once."""
        held_events, self._held_events = self._held_events or [], None
        for event in held_events:
            self._emit(event)

    def push(self) -> None:
        """Send what changed in the state, if the message is complete. Raises ToolFault as `merge`."""
        if self._held_events is None:
            self.merge()
            self._shared.push()

    def merge(self) -> None:
        """Apply the changes of the copy to the shared state. Raises ToolFault if the copy is not JSON, or if another
        call changed a value that this one replaces."""
        # Other calls may have changed the state since the copy was made. Test each value before replacing it, so that a
        # later call does not silently undo an earlier one's change.
        try:
            current = copied(self.state)
            changes = jsonpatch.make_patch(self._before, current).patch
            paths = [each["path"] for each in changes if each["op"] != "add"]
            values = [jsonpatch.JsonPointer(path).resolve(self._before, None) for path in paths]
            tests = [{"op": "test", "path": path, "value": value} for path, value in zip(paths, values, strict=True)]
            merged = jsonpatch.apply_patch(self._shared.value, [*tests, *changes])
        except (TypeError, ValueError, jsonpatch.JsonPatchException, jsonpatch.JsonPointerException) as error:
            reason = "another call changed it" if isinstance(error, jsonpatch.JsonPatchException) else str(error)
            raise ToolFault(f"The change to the shared state was refused: {reason}.") from None
        self._shared.value.clear()
        self._shared.value.update(merged)
        self._before = current


class EarlyCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was started early, its held effects, and its task."""

    pending: PendingCall
    stage: StagedEffects
    task: asyncio.Task[CallResult]


class EarlyCalls:
    """The early calls of one message.

    names: of the tools that may start early. start: (id, name, arguments as written) → the started call; None if it
    must not be made.
    """

    def __init__(self, names: Collection[str], start: Callable[[str, str, str], EarlyCall | None]) -> None:
        self._names = names
        self._start = start
        self._open: dict[str, tuple[str, list[str]]] = {}
        self._calls: dict[str, EarlyCall] = {}

    def observe(self, event: Event) -> None:
        """Observe an event of the message after it was sent."""
        if isinstance(event, ToolCallArgs):
            if (open_call := self._open.get(event.tool_call_id)) is not None:
                open_call[1].append(event.delta)
        elif isinstance(event, ToolCallStart):
            if event.tool_call_name in self._names:
                self._open[event.tool_call_id] = (event.tool_call_name, [])
        elif isinstance(event, ToolCallEnd) and (open_call := self._open.pop(event.tool_call_id, None)) is not None:
            early_call = None
            if not is_cut(event.metadata):
                early_call = self._start(event.tool_call_id, open_call[0], "".join(open_call[1]))
            if early_call is not None:
                self._calls[event.tool_call_id] = early_call

    def take(self, call_id: str) -> EarlyCall | None:
        """Take over a started call, because its message is complete; None if it was not started."""
        return self._calls.pop(call_id, None)

    async def discard(self) -> None:
        """Cancel the calls that were started and not taken."""
        discarded, self._calls = list(self._calls.values()), {}
        self._open.clear()
        for call in discarded:
            state = "ended" if call.task.done() else "stopped"
            call.task.cancel()
            call.pending.context.cancel()
            add_span_event("tool_call_discarded", tool__name=call.pending.name, tool__call__id=call.pending.call_id)
            log.info("tool %s was started early and discarded with its message (it was %s)", call.pending.name, state)
        # Only briefly: a tool may swallow its cancellation, and the turn must not wait for it.
        if discarded:
            await asyncio.wait([call.task for call in discarded], timeout=DISCARD_SECONDS)


TurnRequest = tuple[RunAgentInput, GenerationOptions, str | None]
RESULTS = ("a", "Z")
"""Two placeholder results that begin with different characters, to find the part of a prompt before the result."""
MIN_READ_AHEAD = 64
"""The shortest prompt prefix that is computed ahead, in tokens."""
_continuing_tasks: set[asyncio.Task[None]] = set()


class ReadAhead:
    """Computes the beginning of the next prompt while the calls of a turn run.

    Entering the block starts it, each result extends the known beginning, and leaving the block stops it, unless
    `continues` is set: then it finishes what is known, because the next turn comes in a later run.

    next_request: the next turn on the current conversation. build: the prompt for a turn. compute: has the engine
    compute and hold the beginning of a prompt; None if the engine cannot.
    """

    def __init__(
        self,
        conversation: Conversation,
        next_request: Callable[[], TurnRequest],
        build: Callable[[RunAgentInput, GenerationOptions, str | None], Awaitable[Prompt]],
        compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]] | None,
    ) -> None:
        self.continues = False
        self._conversation = conversation
        self._next_request = next_request
        self._build = build
        self._compute = compute
        self._changed = asyncio.Event()
        self._closed = False
        self._computed: tuple[int, ...] = ()
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
        self._closed = True
        self._changed.set()
        if self._task is None:
            return
        _continuing_tasks.add(self._task)
        self._task.add_done_callback(_continuing_tasks.discard)
        if kind is not None or not self.continues:
            self._task.cancel()

    async def _read(self, compute: Callable[[tuple[int, ...], GenerationOptions], Awaitable[None]]) -> None:
        """Compute the known beginning, again with every result, until all calls are answered. Never raises: without it,
        the turn only takes longer."""
        try:
            while True:
                self._changed.clear()
                input, options, instructions = self._next_request()
                known_messages = known_so_far(input.messages)
                if known_messages is None:
                    return
                messages, call_id = known_messages
                # The tokens that the prompt begins with do not depend on the result of the call.
                prompts: list[Prompt] = []
                for result in RESULTS:
                    answered = ToolMessage(id=result, tool_call_id=call_id, content=result)
                    candidate = input.model_copy(update={"messages": [*messages, answered]})
                    prompts.append(await self._build(candidate, options, instructions))
                one, other = prompts
                beginning = () if one.media else common_beginning(one.token_ids, other.token_ids)
                if len(beginning) >= MIN_READ_AHEAD and beginning != self._computed:
                    await compute(beginning, options)
                    self._computed = beginning
                if self._closed and not self._changed.is_set():
                    return
                await self._changed.wait()
        except EngineError as error:
            log.debug("the next prompt was not read ahead: %s", error.message)
        except Exception:  # an agent's instructions or a template may raise anything; the turn itself reports it
            log.warning("the next prompt could not be read ahead", exc_info=True)


def known_so_far(messages: Sequence[Message]) -> tuple[Sequence[Message], str] | None:
    """The messages up to the result of the last assistant message's first unanswered call, and that call's id; None if
    all its calls are answered."""
    index = next((at for at in reversed(range(len(messages))) if isinstance(messages[at], AssistantMessage)), None)
    if index is None:
        return None
    message = messages[index]
    calls = message.tool_calls or () if isinstance(message, AssistantMessage) else ()
    results = {each.tool_call_id: each for each in messages[index + 1 :] if isinstance(each, ToolMessage)}
    known_messages = list(messages[: index + 1])
    for call in calls:
        if call.id not in results:
            return known_messages, call.id
        known_messages.append(results[call.id])
    return None


def common_beginning(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    lengths = range(1, min(len(one), len(other)) + 1)
    return one[: bisect_left(lengths, True, key=lambda length: one[:length] != other[:length])]
