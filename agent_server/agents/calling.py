"""The calls of one conversation: judged, begun early, made at once, asked about, and answered in their order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from itertools import chain

import msgspec
from ag_ui.core import ActivityMessage, ToolCall, ToolMessage

from agent_server.agents import interrupts
from agent_server.agents.agent import Agent
from agent_server.agents.checkpoints import CallCheckpoint, KnownResult
from agent_server.agents.conversation_context import ConversationContext, Toolset
from agent_server.agents.early_calls import Begun, EarlyCalls, Stage
from agent_server.agents.guardrails import Forbidden, Guards, joined, strings
from agent_server.agents.running import Callee, CallResult, Pending, answer_all, failure
from agent_server.agents.server_tools import Tool, ToolFault, read_arguments
from agent_server.agents.tool_context import InputRequired, ToolActivity, ToolContext
from agent_server.models.prompting.schemas import validate
from agent_server.observability.tracing import failed, note_content, span
from agent_server.runs.store.records import AskedPerson, HeldCall
from events.vocabulary import ActivitySnapshot, Interrupt, ToolCallResult

Waiting = list[AskedPerson]
CANNOT_ASK = "This call needs a person's agreement, and this connection cannot ask for it. It was not made."

NOT_MADE = "A guard of this server stopped the message, so the call was not made."
CUT_OFF = "The answer ended within this call, so it was not made. Make it again, with shorter arguments if it was long."
WITHHELD = "A guard of this server withheld the result."


class Caller:
    """Makes the calls of one conversation of an agent. What a person must be asked is returned, as `Waiting`."""

    def __init__(self, agent: Agent, conversation_context: ConversationContext, tools: Toolset) -> None:
        self._agent = agent.name
        self._user = agent.forward.narrowed(conversation_context.context.user)
        self._tools = tools
        self._warn = conversation_context.recorder.warn
        self._places = conversation_context.places
        self._context = conversation_context.context
        self._conversation = conversation_context.conversation
        self._state = conversation_context.state
        self._emit = conversation_context.emit
        self._may_ask = conversation_context.may_ask
        self._checkpointer = conversation_context.checkpointer
        self._warn = conversation_context.recorder.warn
        self._guards = conversation_context.guards

    def early(self) -> EarlyCalls:
        """The early calls of the message that is written next."""
        return EarlyCalls(self._tools.early, self._begin)

    async def call(self, calls: Sequence[ToolCall], invalid: Mapping[str, str], early: EarlyCalls) -> Waiting:
        """Make calls, but those that need a person's agreement; what a person must be asked. Arguments that do not fit
        the schema (`invalid`) are told to the model, unless the tool checks them itself."""
        waiting: Waiting = []
        pending: list[Pending] = []
        begun: dict[str, Begun] = {}
        for call in calls:
            try:
                callee, arguments, approving = self._judge(call, invalid)
            except ToolFault as fault:
                pending.append(self._known(call.id, call.function.name, failure(str(fault))))
                continue
            # Where nobody can be asked (a subagent's call, a run of which nothing is stored) a call that needs a yes is
            # not made, and the model is told so.
            if approving is not None and self._may_ask:
                waiting.append(self._ask_approval(approving, arguments, call.id))
            elif approving is not None:
                pending.append(self._known(call.id, call.function.name, failure(CANNOT_ASK)))
            # Begun while the message was written: it goes on, and is not made a second time.
            elif (one := early.take(call.id)) is not None:
                begun[call.id] = one
                pending.append(one.pending)
            else:
                pending.append(self._pending(call.id, call.function.name, arguments, callee))
        asked = [_told_of(each["call"]) for each in waiting]
        return waiting + await self._answer_pending(pending, begun, asked)

    async def take_up(self, calls: Sequence[CallCheckpoint]) -> Waiting:
        """Go on with the calls of a run whose server ended: tell the results that are known, make again what is
        harmless to make twice, and say of the others that nobody knows whether they were made."""
        waiting: Waiting = []
        pending: list[Pending] = []
        for call in calls:
            callee = self._tools.callees.get(call.name)
            asking = self._asking(call, callee)
            if callee is None and not call.ended:
                found = self._known(call.id, call.name, failure(f"There is no tool called {call.name} any more."))
            elif asking is not None:
                waiting.append(self._ask_approval(asking, call.arguments, call.id))
                continue
            # Nobody knows how far a call came that has no result. It is made again only where that does no harm.
            elif call.ended or not (call.asked or call.has_handle or (callee is not None and callee.repeats)):
                unknown = CallResult(content=interrupts.UNKNOWN, failed=True)
                found = self._known(call.id, call.name, call.result or unknown)
            else:
                found = self._pending(
                    call.id, call.name, call.arguments, callee, answers=call.answers, continuation=call.continuation
                )
            ids = {"interrupt_id": call.interrupt_id, "message_id": call.message_id}
            pending.append(msgspec.structs.replace(found, **ids))
        asked = [_told_of(each["call"]) for each in waiting]
        return waiting + await self._answer_pending(pending, {}, asked)

    def _asking(self, call: CallCheckpoint, callee: Callee | None) -> Tool | None:
        """The tool for which a person is asked before a call of an interrupted run is made; None if nobody is."""
        if callee is None or call.ended or not self._may_ask:
            return None
        # Never begun, since a person was to be asked first; so they are asked now.
        if call.asks:
            return self._tools.approvals.get(call.name)
        # Begun, perhaps. Nobody is asked twice about one call, nor about what is harmless or was only a question.
        if callee.asks is None or callee.repeats or call.asked or call.interrupt_id is not None:
            return None
        return msgspec.structs.replace(callee.asks, approval_message=f"{interrupts.UNKNOWN} Make it again?")

    def leave(self, calls: Sequence[ToolCall], reason: str = NOT_MADE) -> None:
        """Answer calls without making them: of a message that a guard stopped, or that were cut off."""
        for call in calls:
            self._answer(call.id, failure(reason))

    def _judge(self, call: ToolCall, invalid: Mapping[str, str]) -> tuple[Callee, dict[str, object], Tool | None]:
        """What answers a call, its arguments, and what a person must agree to first. ToolFault for a call that is not
        made."""
        name = call.function.name
        arguments = read_arguments(call.function.arguments)
        callee = self._tools.callees.get(name)
        if callee is None:
            raise ToolFault(f"There is no tool called {name}.")
        # A server tool takes more than its schema says: what can be converted fits.
        if call.id in invalid and not callee.checks:
            raise ToolFault(f"Invalid arguments: {invalid[call.id]}")
        approving = self._tools.approvals.get(name)
        if approving is None:
            return callee, arguments, None
        # Before a person is asked: they must not agree to a call that could not be made.
        approving.check(arguments)
        return callee, arguments, approving if approving.needs_approval(arguments) else None

    async def follow(self, decisions: Sequence[interrupts.Decision]) -> Waiting:
        """Make the calls that were agreed to and tell the model of those that were not; what is still to be asked."""
        return await self._answer_pending([self._decided(each) for each in decisions], {}, [])

    def _decided(self, decision: interrupts.Decision) -> Pending:
        call = decision.record.call
        callee = self._tools.callees.get(call["name"])
        if decision.refusal is not None or callee is None:
            refusal = decision.refusal or f"There is no tool called {call['name']} any more."
            known = CallResult(content=refusal, failed=True)
            pending = self._known(call["id"], call["name"], known)
        else:
            if decision.arguments != call["arguments"]:
                self._conversation.use_arguments(call["id"], decision.arguments)
            pending = self._pending(
                call["id"],
                call["name"],
                decision.arguments,
                callee,
                answers=decision.answers,
                continuation=call.get("continuation"),
            )
        message_id = self._context.new_id("msg")
        return msgspec.structs.replace(pending, interrupt_id=decision.record.id, message_id=message_id)

    async def settle(self, settled: KnownResult) -> None:
        """Answer a call that an interrupt held back, without making it. A fresh result is kept before anyone is told;
        the others are kept already."""
        message_id = settled.message_id or self._context.new_id("msg")
        if settled.fresh:
            await self._record(settled.record.id, settled.content, message_id)
        call_id = settled.record.call["id"]
        if not self._conversation.answered(call_id):
            self._answer(call_id, CallResult(content=settled.content, failed=settled.failed), message_id)

    def _begin(self, call_id: str, name: str, written: str) -> Begun | None:
        """Begin a call before its message is done; None for one that is not to be made."""
        try:
            arguments = read_arguments(written)
        except ToolFault:
            return None
        callee = self._tools.callees[name]
        stage = Stage(self._emit, self._state)
        pending = self._pending(call_id, name, arguments, callee, stage=stage)
        work = self._make(pending) if callee.checks else self._make_valid(pending, written)
        return Begun(pending=pending, stage=stage, task=asyncio.create_task(work, name=f"tool {name}"))

    async def _make_valid(self, each: Pending, written: str) -> CallResult:
        """A call's answer if its arguments fit its schema. If not, the message's own check tells the model so."""
        declared = next((tool for tool in self._tools.declarations if tool.name == each.name), None)
        found = None if declared is None else await validate(written, declared.parameters)
        return failure(f"Invalid arguments: {found}") if found is not None else await self._make(each)

    async def _make(self, each: Pending) -> CallResult:
        """A call's answer, once there is a place for it."""
        if each.known is not None or each.callee is None:
            return each.known or failure("There is nothing to call.")
        with span("execute_tool", each.name, tool__name=each.name, tool__call__id=each.call_id) as traced:
            answer = await self._make_placed(each, each.callee)
            if self._guards is not None:
                answer = await self._read_by(self._guards, answer)
            note_content(traced, tool__call__arguments=each.arguments, tool__call__result=answer.content)
            if answer.failed:
                failed(traced, "tool_error")
            return answer

    async def _read_by(self, guards: Guards, answer: CallResult) -> CallResult:
        """The answer, or that it was withheld: then neither the model nor a client sees it."""
        try:
            texts = chain(strings(answer.content), joined(answer.content), strings(answer.structured))
            read = texts if guards.of("results") else ()
            for text in read:
                await guards.check(text, "results")
        except Forbidden:
            return failure(WITHHELD)
        return answer

    async def _make_placed(self, each: Pending, callee: Callee) -> CallResult:
        given = self._context
        if not callee.place:
            return await callee.answer(each.arguments, each.context)
        run = given.input.run_id
        async with self._places.place(tenant=given.tenant, run=run, tool=callee.place, at_once=callee.at_once):
            return await callee.answer(each.arguments, each.context)

    async def _answer_pending(
        self, pending: Sequence[Pending], begun: Mapping[str, Begun], asked: Sequence[CallCheckpoint]
    ) -> Waiting:
        """The calls' answers, told in their order; what a person must be asked. begun: those that go on already, by
        id. asked: further calls of the turn, which a person is asked about."""
        waiting: Waiting = []

        async def answer(each: Pending) -> CallResult:
            one = begun.get(each.call_id)
            return await (self._make(each) if one is None else one.task)

        async def tell(each: Pending, answer: CallResult) -> None:
            if answer.question is not None and self._may_ask:
                waiting.append(self._ask_person(each, answer.question))
            # A resume may bring a conversation that has the result already; it is told once.
            elif not self._conversation.answered(each.call_id):
                one = begun.get(each.call_id)
                self._answer(each.call_id, self._final(answer), each.message_id, None if one is None else one.stage)

        try:
            # The message is done, and with it what was held back of early calls.
            for one in begun.values():
                one.stage.release()
            async with self._saved(pending, asked):
                await answer_all(pending, answer, self._keep, tell)
        finally:
            for one in begun.values():  # none is left running, also where this was stopped before its first step
                one.task.cancel()
        return waiting

    def _final(self, answer: CallResult) -> CallResult:
        """The answer, where nobody can be asked what it asks."""
        return answer if answer.question is None else failure(CANNOT_ASK)

    async def _keep(self, each: Pending, answer: CallResult) -> None:
        """Keep the result of a call that an interrupt held back as soon as it is there: it must not be made twice.
        Of other calls it is kept where the run is."""
        if self._checkpointer is not None:
            await self._checkpointer.ended(each.call_id, answer)
        if each.interrupt_id is None:
            return
        if answer.question is not None and self._may_ask:
            await self._record(each.interrupt_id, None, None)
        else:
            await self._record(each.interrupt_id, self._final(answer).content, each.message_id)

    def _saved(self, pending: Sequence[Pending], asked: Sequence[CallCheckpoint]) -> AbstractAsyncContextManager[None]:
        if self._checkpointer is None:
            return contextlib.nullcontext()
        harmless = all(each.callee is None or each.callee.repeats for each in pending)
        return self._checkpointer.during([*asked, *map(_kept_call, pending)], harmless=harmless)

    async def _record(self, interrupt_id: str, content: object, message_id: str | None) -> None:
        assert self._context.thread is not None
        await self._context.thread.record_result(interrupt_id, content, message_id)

    def _answer(
        self, call_id: str, answer: CallResult, message_id: str | None = None, stage: Stage | None = None
    ) -> None:
        """Send a call's result and add it to the conversation, after what the tool did to the state."""
        try:
            if stage is not None:
                stage.merge()
            self._state.push()
        except ToolFault as fault:
            answer = failure(str(fault))
        message_id = message_id or self._context.new_id("msg")
        metadata: dict[str, object] | None = {"isError": True} if answer.failed else None
        if answer.structured is not None:
            metadata = {"structuredContent": answer.structured}
        self._emit(
            ToolCallResult(
                message_id=message_id, tool_call_id=call_id, content=answer.content, role="tool", metadata=metadata
            )
        )
        message = ToolMessage(id=message_id, tool_call_id=call_id, content=answer.content, metadata=metadata)
        self._conversation.add_result(message)
        if self._checkpointer is not None:
            self._checkpointer.told()
        for activity in answer.activities:
            # Send an activity of a call's, and keep it with the thread.
            id = activity.id or self._context.new_id("activity")
            if not activity.told:
                self._emit(
                    ActivitySnapshot(message_id=id, activity_type=activity.kind, content=activity.content, replace=True)
                )
            self._conversation.add_activity(
                call_id, ActivityMessage(id=id, activity_type=activity.kind, content=activity.content)
            )
        for warning in answer.warnings:
            self._warn(warning)

    def _pending(
        self,
        call_id: str,
        name: str,
        arguments: dict[str, object],
        callee: Callee | None,
        *,
        answers: Sequence[object] = (),
        continuation: object = None,
        stage: Stage | None = None,
    ) -> Pending:
        given = self._context
        emit = self._emit if stage is None else stage.emit
        activity = ToolActivity(given.new_id("activity"), {"toolCallId": call_id, "toolName": name}, emit)
        context = ToolContext(
            tool_call_id=call_id,
            tool_name=name,
            thread_id=given.input.thread_id,
            run_id=given.input.run_id,
            tenant=given.tenant,
            forwarded_props=given.input.forwarded_props,
            state=self._state.value if stage is None else stage.state,
            push_state=self._state.push if stage is None else stage.push,
            progress=activity.progress,
            partial=activity.partial,
            answers=answers,
            continuation=continuation,
            may_ask=self._may_ask,
            user=self._user,
            keep=None if self._checkpointer is None else partial(self._checkpointer.keep_handle, call_id),
            is_leaving=lambda: given.stopped_by() in ("shutdown", "superseded"),
        )
        return Pending(call_id=call_id, name=name, arguments=arguments, callee=callee, context=context)

    def _known(self, call_id: str, name: str, answer: CallResult) -> Pending:
        """A call that is answered without being made."""
        return msgspec.structs.replace(self._pending(call_id, name, {}, None), known=answer)

    def _ask_approval(self, tool: Tool, arguments: dict[str, object], call_id: str) -> AskedPerson:
        asked = interrupts.approval(tool, arguments, call_id, self._context.new_id("int"), datetime.now(UTC))
        return self._asked(asked, call_id, tool.name, arguments, [])

    def _ask_person(self, each: Pending, question: InputRequired) -> AskedPerson:
        asked = interrupts.question(question, each.call_id, self._context.new_id("int"), datetime.now(UTC))
        person = self._asked(asked, each.call_id, each.name, each.arguments, each.context.answers)
        if question.continuation is not None:
            person["call"]["continuation"] = question.continuation
        return person

    def _asked(
        self, asked: Interrupt, call_id: str, name: str, arguments: dict[str, object], answers: Sequence[object]
    ) -> AskedPerson:
        """An interrupt with what the store keeps beside it: the call that it stops, and whose it is."""
        call: HeldCall = {
            "id": call_id, "name": name, "arguments": arguments, "answers": answers, "agent": self._agent,
        }  # fmt: skip
        return {"interrupt": asked, "call": call}


def _told_of(call: HeldCall) -> CallCheckpoint:
    """What is kept of a call that a person is asked about."""
    answers = list(call.get("answers", ()))
    return CallCheckpoint(id=call["id"], name=call["name"], arguments=call["arguments"], answers=answers, asks=True)


def _kept_call(each: Pending) -> CallCheckpoint:
    """A call as it is kept while it goes on; one that is answered without being made has its answer at once."""
    kept = CallCheckpoint(
        id=each.call_id, name=each.name, arguments=each.arguments, answers=each.context.answers,
        continuation=each.context.continuation, has_handle=each.context.has_handle, interrupt_id=each.interrupt_id,
        message_id=each.message_id,
    )  # fmt: skip
    if each.known is not None:
        kept.ended, kept.content, kept.failed = True, each.known.content, each.known.failed
        kept.structured, kept.activities = each.known.structured, list(each.known.activities)
    return kept
