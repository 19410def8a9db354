"""Checkpoints, and how a run begins or resumes from what is stored.

Every run of a stored thread is saved beside its stream (see `runs.journal`): its events, the tokens of the model's
current turn, and a checkpoint, which says from where those are read. A checkpoint is made when a turn begins, when its
calls begin and with each of their results. No call is made before the checkpoint that contains it is saved, so a server
that resumes the run knows of each call whether it ended, and repeats none that may have had an effect
(`Callee.repeats`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from ag_ui.core import Message, ResumeEntry, RunAgentInput

from adapters.errors import RequestError
from agent_server.agents import interrupts
from agent_server.agents.conversation import Conversation
from agent_server.agents.interrupts import Decision
from agent_server.agents.running import Activity, CallResult
from agent_server.agents.state import SharedState
from agent_server.observability.audit import note
from agent_server.pacing import PART, collect_yielding
from agent_server.runs import Ending, OpenThread, RunContext
from agent_server.runs.joining import asked_digest, bare_input
from agent_server.runs.store import StoreUnavailable
from agent_server.runs.store.records import AskedPerson, InterruptAnswer, InterruptRecord, RunRecord
from events.message import each_model, to_dicts
from events.options import GenerationOptions
from events.vocabulary import Event, MessagesSnapshot, RunOutcome, SuccessOutcome, TokenUsage, ToolCallResult

if TYPE_CHECKING:
    from agent_server.runs import Recorder, RunContext

SAVE_SECONDS = 5.0
"""How long calls that may not be made twice wait for a store that is at fault."""
AGAIN_SECONDS = 0.1


class CallCheckpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call of the turn that a run waits for. asks: it was to be agreed to by a person, and is not begun. answers:
    to what the tool asked before. continuation: what its callee stored with the last of those questions.
    interrupt_id: of the interrupt whose answer allowed it. content, failed, activities: of its result, once it
    `ended`. asked: it ended with a question, so what it does before that is harmless to do twice.
    """

    id: str
    name: str
    arguments: dict[str, object] = {}
    asks: bool = False
    answers: list[object] = []
    continuation: Any = None
    interrupt_id: str | None = None
    message_id: str | None = None
    ended: bool = False
    asked: bool = False
    content: Any = ""
    failed: bool = False
    activities: list[Activity] = []

    @property
    def result(self) -> CallResult | None:
        if not self.ended:
            return None
        return CallResult(content=self.content, failed=self.failed, activities=tuple(self.activities))


class RunCheckpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A run as it stood. input: in wire form; the state as it was, and with the last message alone once it has `begun`.
    messages: the conversation in wire form. step: the number of the model's turn; 0 for calls that a person agreed to.
    turn: the number of the event behind which that turn began, while it goes on; None while its `calls` are answered.
    turns: of a model that the run has taken. asked: once the run has ended, the digest of what it was asked. user: the
    name of who asked for it.
    """

    input: msgspec.Raw
    options: GenerationOptions
    begun: bool = False
    whole: bool = False
    messages: list[msgspec.Raw] = []
    step: int = 0
    turn: int | None = None
    turns: int = 0
    calls: list[CallCheckpoint] = []
    usage: list[TokenUsage] = []
    warnings: list[str] = []
    asked: str = ""
    user: str = ""

    def run_input(self) -> RunAgentInput:
        """What the run is begun with anew. Once it has begun the conversation is `messages`."""
        return RunAgentInput.model_validate_json(bytes(self.input))

    def conversation(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(each) for each in self.messages]


def first_checkpoint(input: RunAgentInput, options: GenerationOptions, *, whole: bool, user: str = "") -> str:
    """Of a run that has not begun."""
    raw = msgspec.Raw(input.model_dump_json(by_alias=True, exclude_none=True).encode())
    return encoded(RunCheckpoint(input=raw, options=options.without_secrets(), whole=whole, user=user))


def ended_checkpoint(input: RunAgentInput, options: GenerationOptions) -> str:
    """Of a run that ended: what its events are told again with, and nothing that was said."""
    return encoded(RunCheckpoint(input=bare_input(input), options=options.without_secrets(), asked=asked_digest(input)))


def encoded(checkpoint: RunCheckpoint) -> str:
    return msgspec.json.encode(checkpoint).decode()


def read_checkpoint(text: str) -> RunCheckpoint:
    """Raises msgspec.MsgspecError or ValueError for what this version does not read."""
    return msgspec.json.decode(text, type=RunCheckpoint)


class Checkpointer:
    """Keeps the checkpoint of one run up to date."""

    def __init__(self, context: RunContext, recorder: Recorder, conversation: Conversation, state: SharedState) -> None:
        self._context = context
        self._recorder = recorder
        self._journal = recorder.journal
        self._conversation = conversation
        self._state = state
        self._input: dict[str, Any] | None = None
        self._messages: dict[int, tuple[Message, msgspec.Raw]] = {}
        self._step = 0
        self._turn: int | None = None
        self._calls: dict[str, CallCheckpoint] = {}
        self._made = ""

    @property
    def _saves(self) -> bool:
        return self._journal.is_open

    async def begin_turn(self, step: int) -> None:
        """The model's turn of that number begins with the conversation as it stands."""
        if not self._saves:
            return
        # The first turn of a long thread encodes all of its messages: a slice at a time, for others stream meanwhile.
        for at in range(0, len(self._conversation.shown), PART):
            self._encoded(self._conversation.shown[at : at + PART])
            if at:
                await asyncio.sleep(0)
        self._step, self._calls = step, {}
        self._turn = self._journal.begin_turn()
        self._made = self._make()
        self._journal.body = lambda: self._made
        self._journal.changed()

    def resume_turn(self, checkpoint: RunCheckpoint) -> None:
        """Go on in the middle of a turn; its checkpoint stays as it is saved."""
        assert checkpoint.turn is not None and self._context.saved is not None
        self._step, self._turn = checkpoint.step, checkpoint.turn
        self._journal.resume_turn(checkpoint.turn, self._context.saved.turn(checkpoint.turn))

    @contextlib.asynccontextmanager
    async def during(self, calls: Sequence[CallCheckpoint], *, harmless: bool) -> AsyncIterator[None]:
        """Around these calls. harmless: all of them may be made twice. RequestError if they may not, and the store does
        not take the checkpoint that knows of them: none must be made then. Superseded if another server goes on."""
        self._journal.end_turn()
        if not self._saves or all(each.ended or each.asks for each in calls):
            yield
            return
        self._turn = None
        self._calls = {each.id: each for each in calls}
        self._journal.body = self._make  # whenever events are saved: results that were told are in the conversation
        self._journal.changed()
        await self._save(0.0 if harmless else SAVE_SECONDS)
        yield

    async def _save(self, patience: float) -> None:
        """Wait until the checkpoint is saved; a store that is at fault is asked again for so many seconds."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while True:
            try:
                await self._journal.flush()
                return
            except StoreUnavailable:
                if not patience:
                    return
                if loop.time() > until:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)

    async def ended(self, call_id: str, result: CallResult) -> None:
        """Keep what a call gave before anyone is told. A store that is at fault does not hold it up."""
        call = self._calls.get(call_id)
        if call is None or not self._saves:
            return
        if result.question is not None:
            call.asked = True
        else:
            call.ended, call.content, call.failed = True, result.content, result.failed
            call.activities = list(result.activities)
        self._journal.changed()
        with contextlib.suppress(RequestError):  # one whose run another server goes on with is stopped besides
            await self._journal.flush()

    def told(self) -> None:
        """A result was told: it is in the conversation now."""
        if self._saves and self._calls:
            self._journal.changed()

    def _make(self) -> str:
        return encoded(
            RunCheckpoint(
                input=msgspec.Raw(msgspec.json.encode({**self._bare_input(), "state": self._state.told})),
                options=self._context.options.without_secrets(),
                begun=True,
                messages=self._encoded(self._conversation.shown),
                step=self._step,
                turn=self._turn,
                turns=self._recorder.turns,
                calls=list(self._calls.values()),
                usage=list(self._recorder.usage.values()),
                warnings=list(self._recorder.warnings),
                user=self._context.user.name,
            )
        )

    def _bare_input(self) -> dict[str, Any]:
        if self._input is None:
            source = self._context.input
            without = {"messages", "state"}
            self._input = source.model_dump(mode="json", by_alias=True, exclude=without, exclude_none=True)
            self._input["messages"] = to_dicts(source.messages[-1:])
        return self._input

    def _encoded(self, messages: Sequence[Message]) -> list[msgspec.Raw]:
        """The messages in wire form. Each is encoded once."""
        raws = []
        for message in messages:
            known = self._messages.get(id(message))
            if known is None:
                (wire,) = to_dicts([message])
                known = self._messages[id(message)] = message, msgspec.Raw(msgspec.json.encode(wire))
            raws.append(known[1])
        return raws


class KnownResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result that is known without making a call: recorded before, or what stands in for one."""

    record: InterruptRecord
    content: Any
    message_id: str | None
    failed: bool = False
    fresh: bool = False


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a run begins with. repeated: the run that already followed this very resume to its end; nothing but what
    it left is told again. waiting: questions that are asked again, since an answer to one of them does not fit. kept:
    the run as its server left it when it ended; there is nothing to be resumed then."""

    messages: Sequence[Message]
    decisions: Sequence[Decision] = ()
    settled: Sequence[KnownResult] = ()
    repeated: RunRecord | None = None
    waiting: Sequence[AskedPerson] = ()
    kept: RunCheckpoint | None = None

    @property
    def resumes(self) -> bool:
        return bool(self.decisions or self.settled)


async def open_run(context: RunContext, agent: str) -> RunStart:
    """Apply the interrupt rules to the run's input. agent: the own name of the one that is run. Raises RequestError,
    which the client gets as RUN_ERROR."""
    thread, resume = context.thread, context.input.resume or []
    if context.kept is not None:
        kept = read_checkpoint(context.kept)
        return RunStart(messages=await collect_yielding(each_model(kept.conversation())), kept=kept)
    if thread is None:
        if resume:
            raise RequestError("invalid_request", "Nothing was kept of this thread to be resumed.", "resume")
        return RunStart(messages=context.input.messages)
    # A client need not send what the thread holds.
    held: Sequence[Message] = context.input.messages
    if thread.found.messages:
        held = await collect_yielding(each_model(thread.found.messages))
    now = datetime.now(UTC)
    # A client that got no answer sends its resume again: before the rules, for its interrupts are not open any more.
    if interrupts.is_replay(resume, thread.interrupts):
        return await _replay(thread, resume, held)
    try:
        decisions = await interrupts.decide(resume, thread.interrupts, now, agent)
    except interrupts.WrongAnswer as wrong:
        waiting = [record for record in thread.interrupts if record.status == "open"]
        asked = [interrupts.asked_again(record, wrong.faults) for record in waiting]
        return RunStart(messages=await _messages(thread, waiting, held), waiting=asked)
    messages = await _messages(thread, [each.record for each in decisions], held)
    # Accepted before any call is made: of two runs that answer the same question one alone goes on.
    if decisions:
        await _claim(thread, {each.record.id: interrupts.answer_of(each.entry) for each in decisions})
        _note_answers(context, decisions)
        return RunStart(messages=messages, decisions=decisions)
    # No answer came in time: each call gets a result that says so, since a call without one is an error to models. A
    # tool that asked goes on without an answer and makes that result itself.
    late = [record for record in thread.interrupts if record.status == "open"]
    if late:
        await _claim(thread, {record.id: {"status": "expired", "payload": None} for record in late})
    made = [record for record in late if _made(messages, record)]
    decisions = [interrupts.unanswered(record) for record in made if interrupts.is_question(record)]
    settled = [
        KnownResult(record=record, content=interrupts.EXPIRED, message_id=None, failed=True, fresh=True)
        for record in made
        if not interrupts.is_question(record)
    ]
    return RunStart(messages=messages, decisions=decisions, settled=settled)


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


async def _replay(thread: OpenThread, resume: Sequence[ResumeEntry], held: Sequence[Message]) -> RunStart:
    """Rule 5: the same answers again. Repeat what the first resume produced, and do nothing twice."""
    given = {entry.interrupt_id for entry in resume}
    answered = [record for record in thread.interrupts if record.id in given]
    run = await thread.run(answered[0].resumed_by or "")
    # A run that failed or broke is followed again, from the results that were recorded before it did.
    if run is not None and run.status in ("finished", "interrupted", "cancelled"):
        return RunStart(messages=await collect_yielding(each_model(await thread.messages())), repeated=run)
    messages = await _messages(thread, answered, held)
    return RunStart(messages=messages, settled=[_known(record) for record in answered])


def _known(record: InterruptRecord) -> KnownResult:
    """The recorded result; a call that was begun and has none is not made again."""
    if record.status == "answered" and record.result_message_id is not None:
        return KnownResult(record=record, content=record.result, message_id=record.result_message_id)
    return KnownResult(record=record, content=interrupts.UNKNOWN, message_id=None, failed=True, fresh=True)


async def _messages(
    thread: OpenThread, records: Sequence[InterruptRecord], held: Sequence[Message]
) -> Sequence[Message]:
    """The conversation as the client holds it; with what the thread holds where the calls that are being answered are
    missing from that."""
    if all(_made(held, record) for record in records):
        return held
    stored: list[Message] = await collect_yielding(each_model(await thread.messages()))
    known = {message.id for message in stored}
    return [*stored, *(message for message in held if message.id not in known)]


def _made(messages: Sequence[Message], record: InterruptRecord) -> bool:
    wanted = record.call["id"]
    calls = [call.id for message in messages for call in getattr(message, "tool_calls", None) or ()]
    return wanted in calls
