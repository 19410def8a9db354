"""The tool calls of one conversation: validation, early starts, approvals, execution, and results in order."""

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
from agent_server.agents.conversation_context import ConversationContext
from agent_server.agents.early_calls import EarlyCall, EarlyCalls, StagedEffects
from agent_server.agents.guardrails import Forbidden, joined, strings
from agent_server.agents.running import Callee, CallResult, PendingCall, answer_all, failure
from agent_server.agents.server_tools import Tool, ToolFault, read_arguments
from agent_server.agents.tool_context import ToolActivity, ToolContext
from agent_server.models.prompting.validation import validate
from agent_server.observability.tracing import mark_failed, note_content, span
from agent_server.runs.store.records import HeldCall, PendingQuestion
from events.vocabulary import ActivitySnapshot, Interrupt, ToolCallResult

Questions = list[PendingQuestion]
CANNOT_ASK = "This call needs a person's approval, and this connection cannot ask for it. It was not made."

NOT_MADE = "A guard of this server stopped the message, so the call was not made."
CUT_OFF = "The answer ended within this call, so it was not made. Make it again, with shorter arguments if it was long."
WITHHELD = "A guard of this server withheld the result."


class Caller:
    """Makes the calls of one conversation of an agent. Its methods return the questions to a person, as `Questions`."""

    def __init__(self, agent: Agent, context: ConversationContext) -> None:
        self._agent = agent.name
        self._user = agent.forward.narrowed(context.run.user)
        self._tools = context.tools
        self._warn = context.run.recorder.warn
        self._concurrency = context.concurrency
        self._context = context.run
        self._conversation = context.conversation
        self._state = context.state
        self._emit = context.emit
        self._may_ask = context.may_ask
        self._checkpointer = context.checkpointer
        self._guards = context.guards

    def early_calls(self) -> EarlyCalls:
        """The early calls of the next message."""
        return EarlyCalls(self._tools.early, self._start_early)

    async def call(self, calls: Sequence[ToolCall], invalid: Mapping[str, str], early: EarlyCalls) -> Questions:
        """Make calls, except those that need a person's approval; return the questions to a person.

        invalid: schema errors by call id. They become the call's result, unless the tool checks its arguments itself.
        """
        questions: Questions = []
        pending: list[PendingCall] = []
        early_calls: dict[str, EarlyCall] = {}
        for call in calls:
            name = call.function.name
            try:
                arguments = read_arguments(call.function.arguments)
                callee = self._tools.callees.get(name)
                if callee is None:
                    raise ToolFault(f"There is no tool called {name}.")
                # A server tool accepts more than its schema says: anything that can be converted.
                if call.id in invalid and not callee.checks:
                    raise ToolFault(f"Invalid arguments: {invalid[call.id]}")
                approval_tool = self._tools.approvals.get(name)
                if approval_tool is not None:
                    # Before a person is asked: they must not approve a call that cannot be made.
                    approval_tool.check(arguments)
                    if not approval_tool.needs_approval(arguments):
                        approval_tool = None
            except ToolFault as fault:
                pending.append(self._answered_call(call.id, name, failure(str(fault))))
                continue
            # A subagent or an unstored run cannot ask a person: a call that needs approval then fails with an error
            # for the model.
            if approval_tool is not None and self._may_ask:
                questions.append(self._approval_interrupt(approval_tool, arguments, call.id))
            elif approval_tool is not None:
                pending.append(self._answered_call(call.id, name, failure(CANNOT_ASK)))
            # Started while the message was being written: wait for it instead of making it again.
            elif (early_call := early.take(call.id)) is not None:
                early_calls[call.id] = early_call
                pending.append(early_call.pending)
            else:
                pending.append(self._pending_call(call.id, name, arguments, callee))
        awaiting = [_asking_checkpoint(each["call"]) for each in questions]
        return questions + await self._run_pending(pending, early_calls, awaiting)

    async def resume_calls(self, calls: Sequence[CallCheckpoint]) -> Questions:
        """Resume the calls of a run whose server stopped: send the known results, repeat the calls that are safe to
        repeat, and answer the others with an unknown outcome."""
        questions: Questions = []
        pending: list[PendingCall] = []
        for call in calls:
            callee = self._tools.callees.get(call.name)
            # The tool whose approval a person is asked for before the call.
            approval_tool: Tool | None = None
            if callee is not None and not call.ended and self._may_ask:
                # Not started yet, because a person must approve it first; ask them now.
                if call.asks:
                    approval_tool = self._tools.approvals.get(call.name)
                # It may have been started. Do not ask twice about one call, nor about one that is safe to repeat or
                # only asked a question.
                elif callee.retry_approval is not None and not (
                    callee.repeatable or call.has_question or call.interrupt_id is not None
                ):
                    message = f"{interrupts.UNKNOWN} Make it again?"
                    approval_tool = msgspec.structs.replace(callee.retry_approval, approval_message=message)
            if callee is None and not call.ended:
                pending_call = self._answered_call(
                    call.id, call.name, failure(f"There is no tool called {call.name} any more.")
                )
            elif approval_tool is not None:
                questions.append(self._approval_interrupt(approval_tool, call.arguments, call.id))
                continue
            # A call without a result may have been made. It is repeated only where that is safe.
            elif call.ended or not (call.has_question or call.has_handle or (callee is not None and callee.repeatable)):
                unknown = CallResult(content=interrupts.UNKNOWN, failed=True)
                pending_call = self._answered_call(call.id, call.name, call.result or unknown)
            else:
                pending_call = self._pending_call(
                    call.id, call.name, call.arguments, callee, answers=call.answers, continuation=call.continuation
                )
            ids = {"interrupt_id": call.interrupt_id, "message_id": call.message_id}
            pending.append(msgspec.structs.replace(pending_call, **ids))
        awaiting = [_asking_checkpoint(each["call"]) for each in questions]
        return questions + await self._run_pending(pending, {}, awaiting)

    def reject(self, calls: Sequence[ToolCall], reason: str = NOT_MADE) -> None:
        """Answer calls with an error instead of making them: a guard stopped the message, or it was cut off."""
        for call in calls:
            self._answer(call.id, failure(reason))

    async def follow_decisions(self, decisions: Sequence[interrupts.Decision]) -> Questions:
        """Make the approved calls and answer the denied ones; return the questions that remain."""
        pending: list[PendingCall] = []
        for decision in decisions:
            call = decision.record.call
            call_id, name = call["id"], call["name"]
            callee = self._tools.callees.get(name)
            if decision.refusal is not None or callee is None:
                refusal = decision.refusal or f"There is no tool called {name} any more."
                pending_call = self._answered_call(call_id, name, CallResult(content=refusal, failed=True))
            else:
                if decision.arguments != call["arguments"]:
                    self._conversation.use_arguments(call_id, decision.arguments)
                pending_call = self._pending_call(
                    call_id,
                    name,
                    decision.arguments,
                    callee,
                    answers=decision.answers,
                    continuation=call.get("continuation"),
                )
            ids = {"interrupt_id": decision.record.id, "message_id": self._context.new_id("msg")}
            pending.append(msgspec.structs.replace(pending_call, **ids))
        return await self._run_pending(pending, {}, [])

    async def send_known_result(self, result: KnownResult) -> None:
        """Answer a call that an interrupt stopped, without making it. A fresh result is stored before it is sent; the
        others are stored already."""
        message_id = result.message_id or self._context.new_id("msg")
        if result.fresh:
            await self._record_result(result.record.id, result.content, message_id)
        call_id = result.record.call["id"]
        if not self._conversation.answered(call_id):
            self._answer(call_id, CallResult(content=result.content, failed=result.failed), message_id)

    def _start_early(self, call_id: str, name: str, text: str) -> EarlyCall | None:
        """Start a call before its message is complete; None if its arguments are not a JSON object."""
        try:
            arguments = read_arguments(text)
        except ToolFault:
            return None
        callee = self._tools.callees[name]
        stage = StagedEffects(self._emit, self._state)
        pending = self._pending_call(call_id, name, arguments, callee, stage=stage)

        async def validate_and_execute() -> CallResult:
            declaration = next((tool for tool in self._tools.declarations if tool.name == name), None)
            # An error here is not sent: the check of the complete message reports it.
            if declaration is not None and not callee.checks:
                problem = await validate(text, declaration.parameters)
                if problem is not None:
                    return failure(f"Invalid arguments: {problem}")
            return await self._execute(pending)

        task = asyncio.create_task(validate_and_execute(), name=f"tool {name}")
        return EarlyCall(pending=pending, stage=stage, task=task)

    async def _execute(self, pending: PendingCall) -> CallResult:
        """Make a call, once a concurrency slot is free, and return its result."""
        if pending.known_result is not None or pending.callee is None:
            return pending.known_result or failure("There is nothing to call.")
        with span("execute_tool", pending.name, tool__name=pending.name, tool__call__id=pending.call_id) as call_span:
            context, callee = self._context, pending.callee
            slot: AbstractAsyncContextManager[None] = contextlib.nullcontext()
            if callee.concurrency_key:
                run, key = context.input.run_id, callee.concurrency_key
                slot = self._concurrency.slot(tenant=context.tenant, run=run, tool=key, at_once=callee.at_once)
            async with slot:
                answer = await callee.answer(pending.arguments, pending.context)
            # What a guard withholds becomes an error, which the model and the client see in its place.
            if self._guards is not None and self._guards.of("results"):
                try:
                    for text in chain(strings(answer.content), joined(answer.content), strings(answer.structured)):
                        await self._guards.check(text, "results")
                except Forbidden:
                    answer = failure(WITHHELD)
            note_content(call_span, tool__call__arguments=pending.arguments, tool__call__result=answer.content)
            if answer.failed:
                mark_failed(call_span, "tool_error")
            return answer

    async def _run_pending(
        self, pending: Sequence[PendingCall], early_calls: Mapping[str, EarlyCall], awaiting: Sequence[CallCheckpoint]
    ) -> Questions:
        """Make the calls, send their results in order, and return the questions to a person.

        early_calls: those that are running already, by id. awaiting: further calls of the turn, which wait for a
        person's approval.
        """
        questions: Questions = []

        async def answer(each: PendingCall) -> CallResult:
            if (early_call := early_calls.get(each.call_id)) is not None:
                return await early_call.task
            result = await self._execute(each)
            # Sent as soon as the call has ended, so that it is saved with the result, which waits for earlier calls.
            return result if result.question is not None else self._push_state(result)

        async def record_end(each: PendingCall, answer: CallResult) -> None:
            """Save the result in the checkpoint and, for a call that an interrupt stopped, with the interrupt as well:
            such a call must not be made twice. An early call is safe to repeat; until its result is sent, its change to
            the state is nowhere but in its stage."""
            if self._checkpointer is not None and each.call_id not in early_calls:
                await self._checkpointer.save_result(each.call_id, answer)
            if each.interrupt_id is None:
                return
            if answer.question is not None and self._may_ask:
                await self._record_result(each.interrupt_id, None, None)
            else:
                await self._record_result(each.interrupt_id, self._without_question(answer).content, each.message_id)

        async def send(each: PendingCall, answer: CallResult) -> None:
            if answer.question is not None and self._may_ask:
                interrupt = interrupts.question(
                    answer.question, each.call_id, self._context.new_id("int"), datetime.now(UTC)
                )
                person = self._asked_person(interrupt, each.call_id, each.name, each.arguments, each.context.answers)
                if answer.question.continuation is not None:
                    person["call"]["continuation"] = answer.question.continuation
                questions.append(person)
            # The conversation of a resume may contain the result already; send it only once.
            elif not self._conversation.answered(each.call_id):
                early_call = early_calls.get(each.call_id)
                self._answer(
                    each.call_id,
                    self._without_question(answer),
                    each.message_id,
                    None if early_call is None else early_call.stage,
                )

        try:
            # The message is complete, so the held events of early calls can be sent.
            for early_call in early_calls.values():
                early_call.stage.release()
            checkpointed: AbstractAsyncContextManager[None] = contextlib.nullcontext()
            if self._checkpointer is not None:
                harmless = all(each.callee is None or each.callee.repeatable for each in pending)
                checkpoints = [*awaiting, *map(_call_checkpoint, pending)]
                checkpointed = self._checkpointer.checkpointed(checkpoints, harmless=harmless)
            async with checkpointed:
                await answer_all(pending, answer, record_end, send)
        finally:
            # Leave none running, even if this coroutine was cancelled before its first step.
            for early_call in early_calls.values():
                early_call.task.cancel()
        return questions

    def _without_question(self, answer: CallResult) -> CallResult:
        """Return the result; a question becomes an error in runs that cannot ask a person."""
        return answer if answer.question is None else failure(CANNOT_ASK)

    async def _record_result(self, interrupt_id: str, content: object, message_id: str | None) -> None:
        assert self._context.thread is not None
        await self._context.thread.record_result(interrupt_id, content, message_id)

    def _push_state(self, answer: CallResult, stage: StagedEffects | None = None) -> CallResult:
        """Push what changed in the state, for an early call in its stage. Return the result, or an error in its place
        if the change is refused."""
        try:
            if stage is not None:
                stage.merge()
            self._state.push()
        except ToolFault as fault:
            return failure(str(fault))
        return answer

    def _answer(
        self, call_id: str, answer: CallResult, message_id: str | None = None, stage: StagedEffects | None = None
    ) -> None:
        """Push the call's changes to the state, then send its result and add it to the conversation."""
        answer = self._push_state(answer, stage)
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
            self._checkpointer.result_sent()
        for activity in answer.activities:
            # Send the call's activities, and store them with the thread.
            id = activity.id or self._context.new_id("activity")
            self._emit(
                ActivitySnapshot(message_id=id, activity_type=activity.kind, content=activity.content, replace=True)
            )
            self._conversation.add_activity(
                call_id, ActivityMessage(id=id, activity_type=activity.kind, content=activity.content)
            )
        for warning in answer.warnings:
            self._warn(warning)

    def _pending_call(
        self,
        call_id: str,
        name: str,
        arguments: dict[str, object],
        callee: Callee | None,
        *,
        answers: Sequence[object] = (),
        continuation: object = None,
        stage: StagedEffects | None = None,
    ) -> PendingCall:
        run = self._context
        emit = self._emit if stage is None else stage.emit
        activity = ToolActivity(run.new_id("activity"), {"toolCallId": call_id, "toolName": name}, emit)
        context = ToolContext(
            tool_call_id=call_id,
            tool_name=name,
            thread_id=run.input.thread_id,
            run_id=run.input.run_id,
            tenant=run.tenant,
            forwarded_props=run.input.forwarded_props,
            state=self._state.value if stage is None else stage.state,
            push_state=self._state.push if stage is None else stage.push,
            progress=activity.progress,
            partial=activity.partial,
            answers=answers,
            continuation=continuation,
            may_ask=self._may_ask,
            user=self._user,
            keep=None if self._checkpointer is None else partial(self._checkpointer.keep_handle, call_id),
            is_leaving=lambda: run.stopped_by() in ("shutdown", "superseded"),
        )
        return PendingCall(call_id=call_id, name=name, arguments=arguments, callee=callee, context=context)

    def _answered_call(self, call_id: str, name: str, answer: CallResult) -> PendingCall:
        """A call with a known result, which is not made."""
        return msgspec.structs.replace(self._pending_call(call_id, name, {}, None), known_result=answer)

    def _approval_interrupt(self, tool: Tool, arguments: dict[str, object], call_id: str) -> PendingQuestion:
        interrupt = interrupts.approval(tool, arguments, call_id, self._context.new_id("int"), datetime.now(UTC))
        return self._asked_person(interrupt, call_id, tool.name, arguments, [])

    def _asked_person(
        self, interrupt: Interrupt, call_id: str, name: str, arguments: dict[str, object], answers: Sequence[object]
    ) -> PendingQuestion:
        """An interrupt with the call that it stops and the agent that made the call, as the store keeps them."""
        call: HeldCall = {
            "id": call_id, "name": name, "arguments": arguments, "answers": answers, "agent": self._agent,
        }  # fmt: skip
        return {"interrupt": interrupt, "call": call}


def _asking_checkpoint(call: HeldCall) -> CallCheckpoint:
    """The checkpoint of a call that waits for a person's approval."""
    answers = list(call.get("answers", ()))
    return CallCheckpoint(id=call["id"], name=call["name"], arguments=call["arguments"], answers=answers, asks=True)


def _call_checkpoint(pending: PendingCall) -> CallCheckpoint:
    """The checkpoint of a running call. A call with a known result has already ended."""
    checkpoint = CallCheckpoint(
        id=pending.call_id, name=pending.name, arguments=pending.arguments, answers=pending.context.answers,
        continuation=pending.context.continuation, has_handle=pending.context.has_handle,
        interrupt_id=pending.interrupt_id, message_id=pending.message_id,
    )  # fmt: skip
    if pending.known_result is not None:
        result = pending.known_result
        checkpoint.ended, checkpoint.content, checkpoint.failed = True, result.content, result.failed
        checkpoint.structured, checkpoint.activities = result.structured, list(result.activities)
    return checkpoint
