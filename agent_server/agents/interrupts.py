"""Questions to a person: asking them, and the protocol's rules for the answers (AG-UI, "Interrupts", contract rules).

Whatever is unclear is a denial or a RUN_ERROR: a call is made only where a person clearly agreed to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from ag_ui.core import ResumeEntry

from adapters.errors import RequestError
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_context import APPROVAL, InputRequired
from agent_server.models.prompting.schemas import mismatch, moved
from agent_server.runs.store.records import AskedPerson, InterruptAnswer, InterruptRecord
from events.vocabulary import Interrupt

DENIED = "The user did not approve this call; it was not made."
EXPIRED = "No answer came in time; the call was not made."
FAULT_LENGTH = 300
UNKNOWN = "The call was begun, but the server stopped before its outcome was known. It was not repeated."


class WrongAnswer(Exception):
    """An answer to a tool's question that does not fit it. The question stays open; `faults`: what is wrong, by the
    interrupts' ids."""

    def __init__(self, faults: Mapping[str, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer means for the call it was asked about. `arguments` replace the model's; `refusal` is told to the
    model instead of a result. `answers` are what the tool's `ask` returns, in order; None for a question that was
    cancelled or expired. `fault`: why the last of them does not fit what was asked."""

    record: InterruptRecord
    entry: ResumeEntry
    arguments: dict[str, object]
    answers: tuple[object, ...] = ()
    refusal: str | None = None
    fault: str | None = None


def approval(tool: Tool, arguments: dict[str, object], call_id: str, interrupt_id: str, now: datetime) -> Interrupt:
    """The interrupt that asks whether a call may be made; with `editedArgs` if the person may change it."""
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


def question(asked: InputRequired, call_id: str, interrupt_id: str, now: datetime) -> Interrupt:
    """The interrupt for what a tool asked."""
    return Interrupt(
        id=interrupt_id,
        reason=asked.reason,
        message=asked.message,
        tool_call_id=call_id,
        response_schema=asked.schema,
        expires_at=_expiry(asked.seconds, now),
        metadata=asked.metadata,
    )


def _expiry(seconds: float | None, now: datetime) -> str | None:
    return None if seconds is None else (now + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def expired(record: InterruptRecord, now: datetime) -> bool:
    """Past `expiresAt`; a time that cannot be read counts as past."""
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
    """Whether a tool asked for an answer (`ToolContext.ask`), and not the server for leave to make the call."""
    return record.interrupt.get("reason") != APPROVAL


def unanswered(record: InterruptRecord) -> Decision:
    """The decision about a tool's question that got no answer: the tool goes on with None."""
    entry = ResumeEntry(interrupt_id=record.id, status="cancelled")
    answers = (*record.call.get("answers", ()), None)
    return Decision(record=record, entry=entry, arguments=dict(record.call["arguments"]), answers=answers)


def is_replay(resume: Sequence[ResumeEntry], records: Sequence[InterruptRecord]) -> bool:
    """Rule 5: every entry repeats, word for word, an answer that was accepted before."""
    known = {record.id: record for record in records}
    return bool(resume) and all(
        entry.interrupt_id in known and known[entry.interrupt_id].answer == answer_of(entry) for entry in resume
    )


def answer_of(entry: ResumeEntry) -> InterruptAnswer:
    return {"status": entry.status, "payload": entry.payload}


async def decide(
    resume: Sequence[ResumeEntry], records: Sequence[InterruptRecord], now: datetime, agent: str
) -> list[Decision]:
    """Check a resume against the thread's interrupts, rules 2 to 4 and 6 to 8. RequestError is the RUN_ERROR.

    agent: the name of the one that is asked to go on; an interrupt is for its own agent to follow. WrongAnswer: what
    a tool asked got an answer that does not fit; all that is open is to be asked again.
    """
    # Answered ones stay among the records, so that a repeated answer is told from one to something unknown.
    waiting = {record.id: record for record in records if record.status == "open"}
    if not resume:
        # Expired ones do not hold the thread: nobody can answer them any more.
        live = [record for record in waiting.values() if not expired(record, now)]
        if live:
            raise _refused(f"The thread waits for the answer to {len(live)} interrupt(s); the input must resume them.")
        return []
    given = [entry.interrupt_id for entry in resume]
    if len(set(given)) != len(given):
        raise _refused("The resume answers the same interrupt more than once.")
    if any(each not in {record.id for record in records} for each in given):
        raise _refused("The resume names an interrupt that this thread does not have.")
    if any(each not in waiting for each in given):
        raise _refused("The resume answers an interrupt that was answered otherwise before.")
    # Their calls are of one turn, and the model is asked again only when all of its calls have a result.
    if set(waiting) - set(given):
        raise _refused("The resume must answer every open interrupt of the thread; partial resumes are not possible.")
    for record in waiting.values():
        if (own := record.call.get("agent", agent)) != agent:
            raise _refused(f"The interrupt is one of the agent {own}; the resume must go to it.")
    # All are decided before any is followed: a resume is taken as a whole or refused as a whole.
    decisions = [await _decision(waiting[entry.interrupt_id], entry, now) for entry in resume]
    if faults := {each.record.id: each.fault for each in decisions if each.fault is not None}:
        raise WrongAnswer(faults)
    return decisions


async def _decision(record: InterruptRecord, entry: ResumeEntry, now: datetime) -> Decision:
    if expired(record, now):
        raise _refused("The interrupt has expired.")
    if entry.status == "cancelled" and is_question(record):
        return unanswered(record)
    arguments, answers = dict(record.call["arguments"]), tuple(record.call.get("answers", ()))
    if entry.status == "cancelled":
        return Decision(record=record, entry=entry, arguments=arguments, refusal=DENIED)
    # A tool's question with a wrong answer is asked again; an approval with one is refused, since no call may follow
    # it.
    fault = None
    # Whether an answer is the one that declines the question, as the interrupt's metadata names it.
    declining = (record.interrupt.get("metadata") or {}).get("declinePayload")
    declines = is_question(record) and declining is not None and entry.payload == declining
    if not declines:
        fault = await _fault(entry.payload, record.interrupt.get("responseSchema"))
    if is_question(record):
        given = (*answers, entry.payload)
        return Decision(record=record, entry=entry, arguments=arguments, answers=given, fault=fault)
    if fault is not None:
        raise _refused(fault)
    approved, edited = approval_of(entry.payload)
    if not approved:
        reason = entry.payload.get("reason") if isinstance(entry.payload, dict) else None
        reasoned_denial = f"{DENIED} They said: {reason[:1000]}" if isinstance(reason, str) and reason else DENIED
        return Decision(record=record, entry=entry, arguments=arguments, refusal=reasoned_denial)
    # Ignoring them would run a call that is not the one that the person saw.
    if edited is not None and not _offers_edits(record):
        raise _refused("The arguments of this call may not be edited: approve it as it is, or deny it.")
    chosen = arguments if edited is None else edited
    return Decision(record=record, entry=entry, arguments=chosen, answers=answers)


def _offers_edits(record: InterruptRecord) -> bool:
    schema = record.interrupt.get("responseSchema") or {}
    return "editedArgs" in schema.get("properties", {})


async def _fault(payload: object, schema: object) -> str | None:
    """What is wrong with an answer, in a sentence; None if nothing is."""
    if payload is None:
        return "The resume says resolved but carries no payload."
    wrong = None if schema is None else await mismatch(payload, schema)
    if wrong is None:
        return None
    where, message = wrong
    said = message if len(message) <= FAULT_LENGTH else message[:FAULT_LENGTH] + "..."
    return f"The resume's payload does not fit the interrupt's responseSchema at {where or 'payload'}: {said}."


def asked_again(record: InterruptRecord, faults: Mapping[str, str]) -> AskedPerson:
    """An open interrupt as it is asked once more, under its id: with what was wrong before its question, where the
    last answer to it was."""
    fault, question = faults.get(record.id), record.call.get("question", record.interrupt.get("message"))
    message = question if fault is None else f"{fault}\n{question or ''}".rstrip()
    interrupt = msgspec.convert({**record.interrupt, "message": message}, Interrupt)
    return {"interrupt": interrupt, "call": {**record.call, "question": question}}


def approval_of(payload: object) -> tuple[bool, dict[str, object] | None]:
    """Only a literal true approves."""
    # "yes", 1 and "true" are no consent: a client that means it follows the schema.
    if not isinstance(payload, dict) or payload.get("approved") is not True:
        return False, None
    edited = payload.get("editedArgs")
    return True, edited if isinstance(edited, dict) else None


def _refused(message: str) -> RequestError:
    return RequestError("invalid_request", message, "resume")
