"""How a run begins on a thread that was interrupted: which answers it brings, and what is done about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from ag_ui.core import Message, ResumeEntry

from adapters.errors import RequestError
from agent_server.agents import interrupts
from agent_server.agents.checkpoints import RunCheckpoint, read_checkpoint
from agent_server.agents.interrupts import Decision
from agent_server.observability.audit import note
from agent_server.pacing import in_turns
from agent_server.runs import Ending, OpenThread, RunContext
from agent_server.runs.store.records import AskedPerson, InterruptAnswer, InterruptRecord, RunRecord
from events.message import each_model
from events.vocabulary import Event, MessagesSnapshot, RunOutcome, SuccessOutcome, ToolCallResult


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """A result that is known without making a call: recorded before, or what stands in for one."""

    record: InterruptRecord
    content: Any
    message_id: str | None
    failed: bool = False
    fresh: bool = False


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a run begins with. repeated: the run that already followed this very resume to its end; nothing but what
    it left is told again. waiting: questions that are asked again, since an answer to one of them does not fit. kept:
    the run as its server left it when it ended; there is nothing to be resumed then."""

    messages: Sequence[Message]
    decisions: Sequence[Decision] = ()
    settled: Sequence[Settled] = ()
    repeated: RunRecord | None = None
    waiting: Sequence[AskedPerson] = ()
    kept: RunCheckpoint | None = None

    @property
    def resumes(self) -> bool:
        return bool(self.decisions or self.settled)


async def open_run(context: RunContext, agent: str) -> Opening:
    """Apply the interrupt rules to the run's input. agent: the own name of the one that is run. Raises RequestError,
    which the client gets as RUN_ERROR."""
    thread, resume = context.thread, context.input.resume or []
    if context.kept is not None:
        kept = read_checkpoint(context.kept)
        return Opening(messages=await in_turns(each_model(kept.conversation())), kept=kept)
    if thread is None:
        if resume:
            raise RequestError("invalid_request", "Nothing was kept of this thread to be resumed.", "resume")
        return Opening(messages=context.input.messages)
    # A client need not send what the thread holds.
    held: Sequence[Message] = context.input.messages
    if thread.found.messages:
        held = await in_turns(each_model(thread.found.messages))
    now = datetime.now(UTC)
    # A client that got no answer sends its resume again: before the rules, for its interrupts are not open any more.
    if interrupts.is_replay(resume, thread.interrupts):
        return await _replay(thread, resume, held)
    try:
        decisions = await interrupts.decide(resume, thread.interrupts, now, agent)
    except interrupts.WrongAnswer as wrong:
        waiting = [record for record in thread.interrupts if record.status == "open"]
        asked = [interrupts.asked_again(record, wrong.faults) for record in waiting]
        return Opening(messages=await _messages(thread, waiting, held), waiting=asked)
    messages = await _messages(thread, [each.record for each in decisions], held)
    # Accepted before any call is made: of two runs that answer the same question one alone goes on.
    if decisions:
        await _claim(thread, {each.record.id: interrupts.answer_of(each.entry) for each in decisions})
        _note_answers(context, decisions)
        return Opening(messages=messages, decisions=decisions)
    # No answer came in time: each call gets a result that says so, since a call without one is an error to models. A
    # tool that asked goes on without an answer and makes that result itself.
    late = [record for record in thread.interrupts if record.status == "open"]
    if late:
        await _claim(thread, {record.id: {"status": "expired", "payload": None} for record in late})
    made = [record for record in late if _made(messages, record)]
    decisions = [interrupts.unanswered(record) for record in made if interrupts.is_question(record)]
    settled = [
        Settled(record=record, content=interrupts.EXPIRED, message_id=None, failed=True, fresh=True)
        for record in made
        if not interrupts.is_question(record)
    ]
    return Opening(messages=messages, decisions=decisions, settled=settled)


def tell_again(
    context: RunContext, emit: Callable[[Event], None], messages: Sequence[Mapping[str, Any]], run: RunRecord
) -> Ending:
    """What a run left, for a client that repeats the resume which began it: the results that it lacks, then all
    messages. messages: the thread's, in wire form."""
    given, thread = context.input, context.thread
    assert thread is not None
    held = {message.id for message in given.messages}
    answered = {entry.interrupt_id for entry in given.resume or ()}
    calls = {record.call["id"] for record in thread.interrupts if record.id in answered}
    for each in messages:
        if each["role"] == "tool" and each["toolCallId"] in calls and each["id"] not in held:
            emit(
                ToolCallResult(
                    message_id=each["id"], tool_call_id=each["toolCallId"], content=each["content"], role="tool"
                )
            )
    emit(MessagesSnapshot(messages=[dict(each) for each in messages]))
    return Ending(outcome=msgspec.convert(run.outcome, RunOutcome) if run.outcome else SuccessOutcome())


def _note_answers(context: RunContext, decisions: Sequence[Decision]) -> None:
    """Tell the audit log who agreed to a call, changed it, refused it or answered its question."""
    for each in decisions:
        call = each.record.call
        edited = each.arguments != call["arguments"]
        given = "answered" if each.answers else "edited" if edited else "approved"
        refused = each.refusal is not None or each.entry.status == "cancelled"
        note(
            "call.refused" if refused else f"call.{given}",
            thread=context.input.thread_id,
            run=context.input.run_id,
            tool_call=str(call["id"]),
            tool=str(call["name"]),
            interrupt=each.record.id,
        )


async def _claim(thread: OpenThread, answers: Mapping[str, InterruptAnswer]) -> None:
    if not await thread.claim(answers):
        raise RequestError("conflict", "Another run is answering these interrupts.", "resume")


async def _replay(thread: OpenThread, resume: Sequence[ResumeEntry], held: Sequence[Message]) -> Opening:
    """Rule 5: the same answers again. Nothing is done twice; what is known of the first time is told again."""
    given = {entry.interrupt_id for entry in resume}
    answered = [record for record in thread.interrupts if record.id in given]
    run = await thread.run(answered[0].resumed_by or "")
    # A run that failed or broke is followed again, from the results that were recorded before it did.
    if run is not None and run.status in ("finished", "interrupted", "cancelled"):
        return Opening(messages=await in_turns(each_model(await thread.messages())), repeated=run)
    messages = await _messages(thread, answered, held)
    return Opening(messages=messages, settled=[_known(record) for record in answered])


def _known(record: InterruptRecord) -> Settled:
    """The recorded result; a call that was begun and has none is not made again."""
    if record.status == "answered" and record.result_message_id is not None:
        return Settled(record=record, content=record.result, message_id=record.result_message_id)
    return Settled(record=record, content=interrupts.UNKNOWN, message_id=None, failed=True, fresh=True)


async def _messages(
    thread: OpenThread, records: Sequence[InterruptRecord], held: Sequence[Message]
) -> Sequence[Message]:
    """The conversation as the client holds it; with what the thread holds where the calls that are being answered are
    missing from that."""
    if all(_made(held, record) for record in records):
        return held
    stored: list[Message] = await in_turns(each_model(await thread.messages()))
    known = {message.id for message in stored}
    return [*stored, *(message for message in held if message.id not in known)]


def _made(messages: Sequence[Message], record: InterruptRecord) -> bool:
    wanted = record.call["id"]
    calls = [call.id for message in messages for call in getattr(message, "tool_calls", None) or ()]
    return wanted in calls
