"""Questions to a person: asking them, and the protocol's rules for the answers (AG-UI, "Interrupts", contract rules).

Anything unclear is a denial or a RUN_ERROR: a call is made only if a person clearly approved it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from ag_ui.core import ResumeEntry

from adapters.errors import RequestError
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_context import APPROVAL, InputRequired
from agent_server.models.prompting.schemas import moved
from agent_server.models.prompting.validation import mismatch
from agent_server.runs.store.records import InterruptAnswer, InterruptRecord, PendingQuestion
from events.vocabulary import Interrupt

DENIED = "The user did not approve this call; it was not made."
EXPIRED = "No answer came in time; the call was not made."
FAULT_LENGTH = 300
UNKNOWN = "The call was begun, but the server stopped before its outcome was known. It was not repeated."


class WrongAnswer(Exception):
    """An answer does not fit a tool's question, which stays open. faults: the errors by interrupt id."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a person's answer means for the call.

    arguments: replace the model's. refusal: the model gets it instead of a result. answers: what the tool's `ask`
    returns, in order; None for a question that was cancelled or expired. fault: why the last answer does not fit its
    question.
    """

    record: InterruptRecord
    entry: ResumeEntry
    arguments: dict[str, object]
    answers: tuple[object, ...] = ()
    refusal: str | None = None
    fault: str | None = None


def approval(tool: Tool, arguments: dict[str, object], call_id: str, interrupt_id: str, now: datetime) -> Interrupt:
    """The interrupt that asks to approve a call, with `editedArgs` in its schema if the person may change the
    arguments."""
    properties: dict[str, object] = {"approved": {"type": "boolean"}}
    if tool.approval_edits:
        properties["editedArgs"] = {
            **moved(tool.parameters, "#/properties/editedArgs"),
            "description": "Full replacement of the tool's arguments. Not merged.",
        }
    return Interrupt(
        id=interrupt_id,
        reason=APPROVAL,
        message=tool.question(arguments),
        tool_call_id=call_id,
        response_schema={"type": "object", "properties": properties, "required": ["approved"]},
        expires_at=_expiry(tool.approval_seconds, now),
        metadata={"toolName": tool.name, "arguments": arguments},
    )


def question(question: InputRequired, call_id: str, interrupt_id: str, now: datetime) -> Interrupt:
    """The interrupt for a tool's question."""
    return Interrupt(
        id=interrupt_id,
        reason=question.reason,
        message=question.message,
        tool_call_id=call_id,
        response_schema=question.schema,
        expires_at=_expiry(question.seconds, now),
        metadata=question.metadata,
    )


def _expiry(seconds: float | None, now: datetime) -> str | None:
    return None if seconds is None else (now + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def expired(record: InterruptRecord, now: datetime) -> bool:
    """Whether `expiresAt` is past; a time that cannot be parsed counts as past."""
    until = record.interrupt.get("expiresAt")
    # No `expiresAt`: it may be answered at any time.
    if until is None:
        return False
    try:
        moment = datetime.fromisoformat(until)
    except ValueError:
        return True
    return now >= (moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def is_question(record: InterruptRecord) -> bool:
    """Whether a tool asks a question (`ToolContext.ask`), rather than the server for approval of the call."""
    return record.interrupt.get("reason") != APPROVAL


def unanswered(record: InterruptRecord) -> Decision:
    """The decision for a tool's question without an answer: the tool continues with None."""
    entry = ResumeEntry(interrupt_id=record.id, status="cancelled")
    answers = (*record.call.get("answers", ()), None)
    return Decision(record=record, entry=entry, arguments=dict(record.call["arguments"]), answers=answers)


def is_replay(resume: Sequence[ResumeEntry], records: Sequence[InterruptRecord]) -> bool:
    """Rule 5: whether every entry repeats exactly an answer that was accepted before."""
    records_by_id = {record.id: record for record in records}
    return bool(resume) and all(
        entry.interrupt_id in records_by_id and records_by_id[entry.interrupt_id].answer == recorded_answer(entry)
        for entry in resume
    )


def recorded_answer(entry: ResumeEntry) -> InterruptAnswer:
    return {"status": entry.status, "payload": entry.payload}


async def decide(
    resume: Sequence[ResumeEntry], records: Sequence[InterruptRecord], now: datetime, agent: str
) -> list[Decision]:
    """Check a resume against the thread's interrupts, rules 2 to 4 and 6 to 8.

    agent: the name of the agent that is to continue; an interrupt must be resumed by the agent that raised it. Raises
    RequestError, which the client gets as RUN_ERROR, and WrongAnswer if an answer does not fit a tool's question: then
    all open questions must be asked again.
    """
    # Answered interrupts stay in the records, to distinguish a repeated answer from one to an unknown interrupt.
    waiting = {record.id: record for record in records if record.status == "open"}
    if not resume:
        # Expired interrupts do not block the thread, since they can no longer be answered.
        live = [record for record in waiting.values() if not expired(record, now)]
        if live:
            raise _refusal(f"The thread has {len(live)} open interrupt(s). Send a resume that answers them.")
        return []
    answered_ids = [entry.interrupt_id for entry in resume]
    if len(set(answered_ids)) != len(answered_ids):
        raise _refusal("The resume answers the same interrupt more than once.")
    if any(each not in {record.id for record in records} for each in answered_ids):
        raise _refusal("The resume names an interrupt that does not exist in this thread.")
    if any(each not in waiting for each in answered_ids):
        raise _refusal("The resume answers an interrupt that has already been answered differently.")
    # Their calls belong to one turn, and the model continues only when all of its calls have a result.
    if set(waiting) - set(answered_ids):
        raise _refusal("The resume must answer every open interrupt of the thread; partial resumes are not possible.")
    for record in waiting.values():
        if (own := record.call.get("agent", agent)) != agent:
            raise _refusal(f"The interrupt belongs to the agent {own}. Send the resume to that agent.")
    # Decide all before acting on any: a resume is accepted or refused as a whole.
    decisions = [await _decision(waiting[entry.interrupt_id], entry, now) for entry in resume]
    if faults := {each.record.id: each.fault for each in decisions if each.fault is not None}:
        raise WrongAnswer(faults)
    return decisions


async def _decision(record: InterruptRecord, entry: ResumeEntry, now: datetime) -> Decision:
    if expired(record, now):
        raise _refusal("The interrupt has expired.")
    if entry.status == "cancelled" and is_question(record):
        return unanswered(record)
    arguments, answers = dict(record.call["arguments"]), tuple(record.call.get("answers", ()))
    if entry.status == "cancelled":
        return Decision(record=record, entry=entry, arguments=arguments, refusal=DENIED)
    # After a wrong answer a tool's question is asked again; an approval is refused, since no call may follow from it.
    fault: str | None = None
    # The interrupt's metadata may name a payload that declines the question and need not fit the schema.
    declining = (record.interrupt.get("metadata") or {}).get("declinePayload")
    declines = is_question(record) and declining is not None and entry.payload == declining
    if not declines and entry.payload is None:
        fault = "The resume has the status resolved but no payload."
    elif (
        not declines
        and (answer_schema := record.interrupt.get("responseSchema")) is not None
        and (problem := await mismatch(entry.payload, answer_schema)) is not None
    ):
        where, text = problem
        text = text if len(text) <= FAULT_LENGTH else text[:FAULT_LENGTH] + "..."
        fault = f"The resume's payload does not fit the interrupt's responseSchema at {where or 'payload'}: {text}."
    if is_question(record):
        all_answers = (*answers, entry.payload)
        return Decision(record=record, entry=entry, arguments=arguments, answers=all_answers, fault=fault)
    if fault is not None:
        raise _refusal(fault)
    approved, edited = approval_of(entry.payload)
    if not approved:
        reason = entry.payload.get("reason") if isinstance(entry.payload, dict) else None
        reasoned_denial = f"{DENIED} They said: {reason[:1000]}" if isinstance(reason, str) and reason else DENIED
        return Decision(record=record, entry=entry, arguments=arguments, refusal=reasoned_denial)
    # Ignoring the edits would make a different call from the one that the person approved.
    schema = record.interrupt.get("responseSchema") or {}
    if edited is not None and "editedArgs" not in schema.get("properties", {}):
        raise _refusal("The arguments of this call may not be edited: approve it as it is, or deny it.")
    final_arguments = arguments if edited is None else edited
    return Decision(record=record, entry=entry, arguments=final_arguments, answers=answers)


def repeat_question(record: InterruptRecord, faults: Mapping[str, str]) -> PendingQuestion:
    """An open interrupt to ask again, under the same id. If its last answer was wrong, the error precedes the
    question."""
    fault, question = faults.get(record.id), record.call.get("question", record.interrupt.get("message"))
    message = question if fault is None else f"{fault}\n{question or ''}".rstrip()
    interrupt = msgspec.convert({**record.interrupt, "message": message}, Interrupt)
    return {"interrupt": interrupt, "call": {**record.call, "question": question}}


def approval_of(payload: object) -> tuple[bool, dict[str, object] | None]:
    """Whether the payload approves the call, and its edited arguments. Only a literal true approves."""
    # "yes", 1 and "true" are not consent: a client that means it follows the schema.
    if not isinstance(payload, dict) or payload.get("approved") is not True:
        return False, None
    edited = payload.get("editedArgs")
    return True, edited if isinstance(edited, dict) else None


def _refusal(message: str) -> RequestError:
    return RequestError("invalid_request", message, "resume")
