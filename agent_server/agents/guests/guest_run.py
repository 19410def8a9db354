"""One run of a guest: its input, the handling of its events, and its end."""

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
from agent_server.agents.checkpoints import RunStart, repeat_events
from agent_server.agents.guardrails import Forbidden, GuardedStream, Guards, withheld
from agent_server.agents.guests.event_normalizer import EventNormalizer
from agent_server.agents.guests.guest import Guest, GuestError, GuestInput
from agent_server.agents.guests.own_engine import OwnEngine, TruncatedCall
from agent_server.agents.running import failure
from agent_server.engine_protocol.protocol import EngineError
from agent_server.runs import Ending, RunContext
from agent_server.runs.store.records import HeldCall, PendingQuestion
from events.message import Folder
from events.run_output import Wire
from events.vocabulary import (
    PROTOCOL_VERSION,
    ActivityDelta,
    Custom,
    Event,
    Interrupt,
    InterruptOutcome,
    MessagesSnapshot,
    RunError,
    RunFinished,
    StateDelta,
    StateSnapshot,
    SuccessOutcome,
    ToolCallResult,
)

if TYPE_CHECKING:
    from agent_server.agents.turn import LanguageModel

logger = logging.getLogger("agent_server.hosted")
OLD_INTERRUPT = "on_interrupt"
"""The CUSTOM event with which bridges before AG-UI 1.0 (ag-ui-langgraph) report an interrupt before they succeed."""
UNKNOWN_OUTCOME = "The agent already got these answers, and the outcome of that run is unknown."
NOBODY_TO_ASK = "The agent asks a question, but this thread is not stored, so the run could not be resumed."


class GuestRun:
    """Runs a guest once. `Guest` describes what it must provide, `EventNormalizer` how its events are corrected.

    messages: of the opening, in wire form; they are modified.
    """

    def __init__(
        self,
        guest: Guest,
        name: str,
        model: LanguageModel | None,
        context: RunContext,
        opening: RunStart,
        messages: Sequence[Wire],
        guards: Guards | None = None,
    ) -> None:
        self._guest = guest
        self._name = name
        recorder = context.recorder
        self._context = context
        self._recorder = recorder
        self._opening = opening
        self._engine = None if model is None else OwnEngine(model, context, guards)
        self._guarded = None if guards is None else GuardedStream(guards)
        # The client's state; the thread's if the client sent none.
        state: Any = context.input.state
        if not state and context.thread is not None:
            state = context.thread.snapshot.state
        self._folder = Folder(state=state, owned=messages)
        self._old_interrupts: list[Any] = []
        recorder.messages = lambda: list(self._folder.messages)
        recorder.state = self._folder.state
        self._normalizer = EventNormalizer(
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
            return repeat_events(self._context, self._recorder.emit, self._folder.messages, opening.repeated)
        if opening.questions:
            return self._interrupted(list(opening.questions))
        if any(not each.fresh or each.record.answer is not None for each in opening.known_results):
            raise RequestError("conflict", UNKNOWN_OUTCOME, "resume")
        try:
            return await self._end(await self._work())
        except Forbidden as forbidden:
            # Show that the answer was stopped, and store that with the thread.
            self._recorder.close_open()
            self._emit(withheld(self._context.new_id("activity"), forbidden))
            return Ending(reason="content_filter")
        except TruncatedCall:
            # The model's output ended within a call: no call of that message is made, and each result says so.
            self._recorder.close_open()
            for id in self._normalizer.calls():
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

    # ---- the guest's input ------------------------------------------------------------------------------------------

    def _input(self) -> GuestInput:
        source = self._context.input
        # The answers with the guest's own interrupt ids; expired questions are cancelled.
        resume = [
            ResumeEntry(interrupt_id=_own_id(each.record.call, each.record.id), status=each.entry.status,
                        payload=each.entry.payload)
            for each in self._opening.decisions
        ]  # fmt: skip
        resume += [
            ResumeEntry(interrupt_id=_own_id(each.record.call, each.record.id), status="cancelled")
            for each in self._opening.known_results
        ]
        # A bridge before AG-UI 1.0 expects the answer to its question in the forwarded props.
        props: Any = source.forwarded_props
        for decision in self._opening.decisions:
            if decision.record.call.get("old"):
                props = {**(props or {}), "command": {"resume": decision.entry.payload}}
                break
        messages = [each for each in self._opening.messages if not isinstance(each, ActivityMessage)]
        values = {name: getattr(source, name) for name in type(source).model_fields}
        return GuestInput(
            **{
                **values,
                "thread_id": guest_thread(self._context.tenant, source.thread_id),
                "protocol_version": PROTOCOL_VERSION,
                "messages": messages,
                "state": self._folder.state,
                "resume": resume or None,
                "forwarded_props": props,
                "stored": self._context.thread is not None,
            }
        )

    # ---- its events -------------------------------------------------------------------------------------------------

    async def _work(self) -> RunFinished:
        """Run the guest to its end. Raises RequestError or EngineError for a failure."""
        if self._engine is not None:
            self._engine.enter()
        input, normalizer, guarded = self._context.input, self._normalizer, self._guarded
        try:
            async with contextlib.aclosing(_closable(self._guest.run(self._input()))) as events:
                async for event in events:
                    await self._context.controls.gate()
                    if self._recorder.journal.is_bursting:
                        await self._recorder.journal.pause()
                    last = normalizer.take(event) if guarded is None else await self._take_guarded(guarded, event)
                    if isinstance(last, RunError):
                        if self._guest.errors_for_clients:
                            raise GuestError(last.message)
                        logger.error("the agent %s failed: %s", self._name, last.message)
                        raise self._masked()
                    if last is not None:
                        return last
            if guarded is not None:
                await self._emit_guarded(guarded, await guarded.finish())
            return RunFinished(thread_id=input.thread_id, run_id=input.run_id)
        except Forbidden:
            raise
        except Exception as error:
            # Frameworks wrap errors of their model in errors of their own.
            if self._engine is not None and self._engine.cut_short is not None:
                raise TruncatedCall from error
            if isinstance(error, RequestError | EngineError):
                raise
            if isinstance(error, GuestError):
                raise RequestError("internal", str(error)) from error
            # The client gets an error of this server, even if a framework wrapped it, and otherwise a general one.
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, RequestError | EngineError):
                cause = cause.__cause__ or cause.__context__
            if cause is not None:
                raise cause from error
            logger.error("the agent %s failed", self._name, exc_info=error)
            raise self._masked() from error
        finally:
            if self._engine is not None:
                await self._engine.close()

    async def _take_guarded(self, guarded: GuardedStream, raw_event: object) -> RunFinished | RunError | None:
        """As `EventNormalizer.take`, for what the guards let through. Raises Forbidden."""
        for event in self._normalizer.read(raw_event):
            before = await guarded.finish() if isinstance(event, RunFinished | RunError) else []
            last = await self._emit_guarded(guarded, before) or await self._emit_guarded(
                guarded, await guarded.take(event)
            )
            if last is not None:
                return last
        return None

    async def _emit_guarded(self, guarded: GuardedStream, events: Sequence[Event]) -> RunFinished | RunError | None:
        last = None
        for event in events:
            last = self._normalizer.emit(event)
        guarded.raise_forbidden()
        return last

    def _emit(self, event: Event) -> None:
        if isinstance(event, Custom) and event.name == OLD_INTERRUPT:
            self._old_interrupts.append(event.value)
            return
        if isinstance(event, StateDelta | ActivityDelta):
            issues = len(self._folder.issues)
            self._folder.add(event)
            # A patch that does not apply is not sent: clients drop it as well, unless it only is too large for us.
            if len(self._folder.issues) > issues:
                self._recorder.warn(self._folder.issues[-1])
            else:
                self._recorder.emit(event)
            return
        self._recorder.emit(event)
        self._folder.add(event)

    def _masked(self) -> RequestError:
        return RequestError("internal", f"The agent {self._name} failed. The server's log says why.")

    # ---- its end ----------------------------------------------------------------------------------------------------

    async def _end(self, last: RunFinished) -> Ending:
        for used in last.usage or ():
            # What the guest used of other servers' models.
            if used.model is None or used.model not in self._recorder.usage:
                self._recorder.usage[used.model or self._name] = used
        interrupts = list(last.outcome.interrupts) if isinstance(last.outcome, InterruptOutcome) else []
        if interrupts or self._old_interrupts:
            questions = [self._question(each) for each in interrupts]
            for value in [] if interrupts else self._old_interrupts:
                message = value if isinstance(value, str) else None
                metadata = None if message is not None else {"value": value}
                interrupt = Interrupt(
                    id=self._context.new_id("int"), reason="input_required", message=message, metadata=metadata
                )
                question = self._question(interrupt)
                question["call"]["old"] = True
                questions.append(question)
            return self._interrupted(questions)
        # The calls for the client to answer: those that the guest names, otherwise those of the client's tools.
        pending: list[str] = []
        if isinstance(last.outcome, SuccessOutcome):
            pending = list(last.outcome.pending_tool_call_ids or ())
        if not pending:
            clients = {tool.name for tool in self._context.input.tools or ()}
            pending = [id for id, name in self._normalizer.calls().items() if name in clients]
        outcome = SuccessOutcome(pending_tool_call_ids=pending or None)
        return Ending(outcome=outcome, result=last.result, reason="tool_calls" if pending else "stop")

    def _question(self, interrupt: Interrupt) -> PendingQuestion:
        """A guest's interrupt with the call that the store keeps with it. It gets a new id if the thread has that id
        already: LangGraph gives two questions of one node the same id."""
        thread = self._context.thread
        used_ids = {record.id for record in thread.interrupts} if thread is not None else set()
        id = interrupt.id if interrupt.id not in used_ids else self._context.new_id("int")
        name, arguments = self._call(interrupt.tool_call_id)
        call: HeldCall = {"id": interrupt.tool_call_id or id, "name": name, "arguments": arguments, "answers": [],
                "agent": self._name, "own": interrupt.id}  # fmt: skip
        return {"interrupt": msgspec.structs.replace(interrupt, id=id), "call": call}

    def _call(self, call_id: str | None) -> tuple[str, dict[str, object]]:
        """The name and the arguments of a call in the conversation; empty if there is no such call."""
        for message in self._folder.messages:
            for call in message.get("toolCalls") or ():
                if call["id"] != call_id:
                    continue
                try:
                    arguments = msgspec.json.decode(call["function"]["arguments"])
                except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                    arguments = None
                return call["function"]["name"], arguments if isinstance(arguments, dict) else {}
        return "", {}

    def _interrupted(self, questions: list[PendingQuestion]) -> Ending:
        if self._context.thread is None:
            raise RequestError("invalid_request", NOBODY_TO_ASK)
        recorder = self._recorder
        recorder.interrupts = questions
        recorder.close_open()
        if self._folder.state:
            recorder.emit(StateSnapshot(snapshot=self._folder.state))
        messages = [each for each in self._folder.messages if each.get("role") != "activity"]
        recorder.emit(MessagesSnapshot(messages=messages))
        interrupts: list[Interrupt] = [each["interrupt"] for each in questions]
        return Ending(outcome=InterruptOutcome(interrupts=interrupts), reason="tool_calls")


async def _closable(events: Any) -> AsyncGenerator[object, None]:
    """A guest's events as a generator that can be closed. Some guests' `run` must be awaited first."""
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
    """A thread id that is unique across tenants."""
    if not tenant and not thread_id.startswith(":"):
        return thread_id
    return f":{quote(tenant, safe='')}:{thread_id}"


def _own_id(call: Mapping[str, Any], id: str) -> str:
    return str(call.get("own", id))
