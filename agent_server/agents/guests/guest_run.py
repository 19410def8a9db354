"""One run of a guest: what it is given, what is made of its events, and how it ends."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
from ag_ui.core import ActivityMessage, ResumeEntry

from adapters.errors import RequestError
from agent_server.agents.calling import CUT_OFF
from agent_server.agents.checkpoints import RunStart, tell_again
from agent_server.agents.guardrails import Forbidden, GuardedStream, Guards, withheld
from agent_server.agents.guests.event_normalizer import EventNormalizer
from agent_server.agents.guests.guest import Guest, GuestError, GuestInput
from agent_server.agents.guests.own_engine import CutShort, OwnEngine
from agent_server.agents.running import failure
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs import Ending, Recorder, RunContext
from agent_server.runs.store.records import AskedPerson, HeldCall
from events.message import Folder
from events.run_output import Wire
from events.vocabulary import (
    PROTOCOL_VERSION,
    Custom,
    Event,
    Interrupt,
    InterruptOutcome,
    MessagesSnapshot,
    RunError,
    RunFinished,
    StateSnapshot,
    SuccessOutcome,
    ToolCallResult,
)

if TYPE_CHECKING:
    from agent_server.agents.turn import LanguageModel

logger = logging.getLogger("agent_server.hosted")
OLD_INTERRUPT = "on_interrupt"
"""The CUSTOM event with which bridges before AG-UI 1.0 (ag-ui-langgraph) tell of an interrupt, and then succeed."""
UNKNOWN_OUTCOME = "These answers were given to the agent before, and how that run ended is not known."
NOBODY_TO_ASK = "The agent asks a question, and on this connection nothing is kept that could be resumed."


class GuestRun:
    """Runs a guest once. See `Guest` for what it is expected to be, and `EventNormalizer` for what is made of it.

    messages: the opening's, in wire form, which are changed.
    """

    def __init__(
        self,
        guest: Guest,
        name: str,
        model: LanguageModel | None,
        context: RunContext,
        recorder: Recorder,
        opening: RunStart,
        messages: Sequence[Wire],
        guards: Guards | None = None,
    ) -> None:
        self._guest = guest
        self._name = name
        self._context = context
        self._recorder = recorder
        self._opening = opening
        self._engine = None if model is None else OwnEngine(model, context, recorder, guards)
        self._guarded = None if guards is None else GuardedStream(guards)
        self._folder = Folder(state=self._state(), owned=messages)
        self._old_interrupts: list[Any] = []
        recorder.messages = lambda: list(self._folder.messages)
        recorder.state = self._folder.state
        self._mender = EventNormalizer(
            self._emit,
            recorder.warn,
            context.new_id,
            messages=messages,
            clients=frozenset(tool.name for tool in context.input.tools or ()),
            resumed=frozenset(each.record.call["id"] for each in opening.decisions),
            partial=guest.partial_snapshots,
        )

    async def run(self) -> Ending:
        opening = self._opening
        if opening.repeated is not None:
            if self._folder.state:
                self._recorder.emit(StateSnapshot(snapshot=self._folder.state))
            return tell_again(self._context, self._recorder.emit, self._folder.messages, opening.repeated)
        if opening.waiting:
            return self._asking(list(opening.waiting))
        if any(not each.fresh or each.record.answer is not None for each in opening.settled):
            raise RequestError("conflict", UNKNOWN_OUTCOME, "resume")
        try:
            return await self._ending(await self._work())
        except Forbidden as forbidden:
            # Show that the answer was stopped, and keep that with the thread.
            self._recorder.close_open()
            self._emit(withheld(self._context.new_id("activity"), forbidden))
            return Ending(reason="content_filter")
        except CutShort:
            # The model's output ended within a call: no call of that message was made, and each is answered with that.
            self._recorder.close_open()
            for id in self._mender.calls():
                result = failure(CUT_OFF)
                self._emit(
                    ToolCallResult(
                        message_id=self._context.new_id("msg"),
                        tool_call_id=id,
                        content=result.content,
                        role="tool",
                        metadata={"isError": True},
                    )
                )
            assert self._engine is not None
            return Ending(reason=self._engine.cut_short or "length")
        finally:
            self._recorder.state = self._folder.state
            for decision in opening.decisions:
                if self._context.thread is not None:
                    await self._context.thread.record_result(decision.record.id, None, None)

    # ---- what the guest is given ------------------------------------------------------------------------------------

    def _state(self) -> Any:
        """The client's state; the thread's where the client sent none."""
        given, thread = self._context.input.state, self._context.thread
        return thread.snapshot.state if not given and thread is not None else given

    def _input(self) -> GuestInput:
        given = self._context.input
        messages = [each for each in self._opening.messages if not isinstance(each, ActivityMessage)]
        values = {name: getattr(given, name) for name in type(given).model_fields}
        return GuestInput(
            **{
                **values,
                "thread_id": guest_thread(self._context.tenant, given.thread_id),
                "protocol_version": PROTOCOL_VERSION,
                "messages": messages,
                "state": self._folder.state,
                "resume": self._resume() or None,
                "forwarded_props": self._forwarded(),
                "kept": self._context.thread is not None,
            }
        )

    def _resume(self) -> list[ResumeEntry]:
        """The answers in the guest's words; questions that nobody answered in time are cancelled."""
        answered = [
            ResumeEntry(interrupt_id=_own_id(each.record.call, each.record.id), status=each.entry.status,
                        payload=each.entry.payload)
            for each in self._opening.decisions
        ]  # fmt: skip
        expired = [
            ResumeEntry(interrupt_id=_own_id(each.record.call, each.record.id), status="cancelled")
            for each in self._opening.settled
        ]
        return [*answered, *expired]

    def _forwarded(self) -> Any:
        """With the answer where bridges before AG-UI 1.0 read it, for a question that came in their way."""
        given = self._context.input.forwarded_props
        old = [each for each in self._opening.decisions if each.record.call.get("old")]
        if not old:
            return given
        return {**(given or {}), "command": {"resume": old[0].entry.payload}}

    # ---- its events -------------------------------------------------------------------------------------------------

    async def _work(self) -> RunFinished:
        """Let the guest work to its end. Raises RequestError or EngineError for a failure."""
        if self._engine is not None:
            self._engine.enter()
        try:
            return await self._read()
        except Forbidden:
            raise
        except Exception as error:
            # Frameworks have errors of their own for what their model raised.
            if self._engine is not None and self._engine.cut_short is not None:
                raise CutShort from error
            if isinstance(error, RequestError | EngineError):
                raise
            if isinstance(error, GuestError):
                raise RequestError("internal", str(error)) from error
            raise self._failure(error) from error
        finally:
            if self._engine is not None:
                await self._engine.close()

    async def _read(self) -> RunFinished:
        given = self._context.input
        async with contextlib.aclosing(_closable(self._guest.run(self._input()))) as events:
            async for event in events:
                await self._context.controls.gate()
                last = self._mender.take(event) if self._guarded is None else await self._read_by(self._guarded, event)
                if isinstance(last, RunError):
                    raise self._told(last)
                if last is not None:
                    return last
        if self._guarded is not None:
            await self._tell_read(self._guarded, await self._guarded.finish())
        return RunFinished(thread_id=given.thread_id, run_id=given.run_id)

    async def _read_by(self, guarded: GuardedStream, given: object) -> RunFinished | RunError | None:
        """As the mender takes an event, with what guards let through of it. Raises Forbidden."""
        for event in self._mender.read(given):
            before = await guarded.finish() if isinstance(event, RunFinished | RunError) else []
            last = await self._tell_read(guarded, before) or await self._tell_read(guarded, await guarded.take(event))
            if last is not None:
                return last
        return None

    async def _tell_read(self, guarded: GuardedStream, events: Sequence[Event]) -> RunFinished | RunError | None:
        last = None
        for event in events:
            last = self._mender.tell(event)
        if guarded.forbidden is not None:
            raise guarded.forbidden
        return last

    def _emit(self, event: Event) -> None:
        if isinstance(event, Custom) and event.name == OLD_INTERRUPT:
            self._old_interrupts.append(event.value)
            return
        self._recorder.emit(event)
        self._folder.add(event)

    def _told(self, error: RunError) -> Exception:
        if self._guest.careful:
            return GuestError(error.message)
        logger.error("the agent %s failed: %s", self._name, error.message)
        return self._masked()

    def _failure(self, error: Exception) -> Exception:
        """Our own errors as they are, also inside of a framework's; of others the client learns nothing."""
        seen: BaseException | None = error
        while seen is not None:
            if isinstance(seen, RequestError | EngineError):
                return seen
            seen = seen.__cause__ or seen.__context__
        logger.error("the agent %s failed", self._name, exc_info=error)
        return self._masked()

    def _masked(self) -> RequestError:
        return RequestError("internal", f"The agent {self._name} failed. The server's log says why.")

    # ---- its end ----------------------------------------------------------------------------------------------------

    async def _ending(self, last: RunFinished) -> Ending:
        for used in last.usage or ():
            # What the guest used of models elsewhere.
            if used.model is None or used.model not in self._recorder.usage:
                self._recorder.usage[used.model or self._name] = used
        asked = list(last.outcome.interrupts) if isinstance(last.outcome, InterruptOutcome) else []
        if asked or self._old_interrupts:
            old = [] if asked else self._old_interrupts
            return self._asking([*map(self._question, asked), *map(self._old_question, old)])
        pending = self._pending(last)
        outcome = SuccessOutcome(pending_tool_call_ids=pending or None)
        return Ending(outcome=outcome, result=last.result, reason="tool_calls" if pending else "stop")

    def _pending(self, last: RunFinished) -> list[str]:
        """Calls that the client is to answer: those that the guest names, else those of the client's tools."""
        if isinstance(last.outcome, SuccessOutcome) and last.outcome.pending_tool_call_ids:
            return list(last.outcome.pending_tool_call_ids)
        clients = {tool.name for tool in self._context.input.tools or ()}
        return [id for id, name in self._mender.calls().items() if name in clients]

    def _question(self, asked: Interrupt) -> AskedPerson:
        """A guest's interrupt with what the store keeps beside it. Its id is changed where the thread has it already:
        LangGraph gives two questions of one node the same."""
        thread = self._context.thread
        taken = {record.id for record in thread.interrupts} if thread is not None else set()
        id = asked.id if asked.id not in taken else self._context.new_id("int")
        name, arguments = self._call(asked.tool_call_id)
        call: HeldCall = {"id": asked.tool_call_id or id, "name": name, "arguments": arguments, "answers": [],
                "agent": self._name, "own": asked.id}  # fmt: skip
        return {"interrupt": msgspec.structs.replace(asked, id=id), "call": call}

    def _old_question(self, value: object) -> AskedPerson:
        message = value if isinstance(value, str) else None
        metadata = None if message is not None else {"value": value}
        asked = Interrupt(id=self._context.new_id("int"), reason="input_required", message=message, metadata=metadata)
        question = self._question(asked)
        question["call"]["old"] = True
        return question

    def _call(self, call_id: str | None) -> tuple[str, dict[str, object]]:
        for message in self._folder.messages:
            for call in message.get("toolCalls") or ():
                if call["id"] == call_id:
                    return call["function"]["name"], _object(call["function"]["arguments"])
        return "", {}

    def _asking(self, waiting: list[AskedPerson]) -> Ending:
        if self._context.thread is None:
            raise RequestError("invalid_request", NOBODY_TO_ASK)
        recorder = self._recorder
        recorder.interrupts = waiting
        recorder.close_open()
        if self._folder.state:
            recorder.emit(StateSnapshot(snapshot=self._folder.state))
        shown = [each for each in self._folder.messages if each.get("role") != "activity"]
        recorder.emit(MessagesSnapshot(messages=shown))
        asked: list[Interrupt] = [each["interrupt"] for each in waiting]
        return Ending(outcome=InterruptOutcome(interrupts=asked), reason="tool_calls")


async def _closable(events: Any) -> AsyncGenerator[object, None]:
    """A guest's events as a generator that can be closed, whatever its `run` gave: some give them only when awaited."""
    if inspect.isawaitable(events):
        events = await events
    try:
        async for event in events:
            yield event
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def guest_thread(tenant: str, thread_id: str) -> str:
    """A thread's id that no other tenant's thread has."""
    if not tenant and not thread_id.startswith(":"):
        return thread_id
    return f":{quote(tenant, safe='')}:{thread_id}"


def _own_id(call: Mapping[str, Any], id: str) -> str:
    return str(call.get("own", id))


def _object(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
