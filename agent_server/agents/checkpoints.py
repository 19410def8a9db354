"""Checkpoints, and how a run starts or resumes from what is stored.

Every run of a stored thread is saved while it streams (see `runs.journal`): its events, the tokens of the model's
current turn, and a checkpoint, which says from where to read those. A checkpoint is made when a turn starts, when its
calls start, and with each of their results. No call is made before the checkpoint that contains it is saved. A server
that resumes the run therefore knows for each call whether it ended, and repeats none that may have had an effect
(`Callee.repeatable`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

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
from agent_server.runs.resumption import bare_input, request_digest
from agent_server.runs.store import StoreUnavailable
from agent_server.runs.store.records import InterruptAnswer, InterruptRecord, PendingQuestion, RunRecord
from events.message import each_model, to_dicts
from events.options import GenerationOptions
from events.vocabulary import Event, MessagesSnapshot, RunOutcome, SuccessOutcome, TokenUsage, ToolCallResult

SAVE_SECONDS = 5.0
"""How long calls that must not be repeated wait for a store that fails."""
AGAIN_SECONDS = 0.1


class CallCheckpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A call of the turn that a run waits for.

    asks: a person must approve it first, so it has not started. answers: to the tool's earlier questions.
    continuation: stored by its callee with the last of those questions. interrupt_id: of the interrupt whose answer
    allowed it. content, failed, activities: of its result, once it has `ended`. has_question: it ended with a
    question, so everything that it does before the question is safe to repeat.
    has_handle: `continuation` is a handle by which its result is fetched.
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
    has_question: bool = msgspec.field(default=False, name="asked")
    has_handle: bool = False
    content: Any = ""
    structured: dict[str, Any] | None = None
    failed: bool = False
    activities: list[Activity] = []

    @property
    def result(self) -> CallResult | None:
        if not self.ended:
            return None
        return CallResult(
            content=self.content,
            structured=self.structured,
            failed=self.failed,
            activities=tuple(self.activities),
        )


class RunCheckpoint(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The saved state of a run.

    input: in wire form, with the current state; once the run has `begun`, with its last message only. messages: the
    conversation in wire form. step: the number of the model's turn; 0 for calls that a person approved. turn: the
    number of the last event before that turn, while the turn runs; None while its `calls` are answered. turns: how many
    turns of a model the run has taken. request_digest: of its request, once the run has ended. user: the name of the
    user who started it.
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
    request_digest: str = msgspec.field(default="", name="asked")
    user: str = ""

    def run_input(self) -> RunAgentInput:
        """The input to restart the run with. Once the run has begun, the conversation is in `messages`."""
        return RunAgentInput.model_validate_json(bytes(self.input))

    def conversation(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(each) for each in self.messages]


def first_checkpoint(input: RunAgentInput, options: GenerationOptions, *, whole: bool, user: str = "") -> str:
    """Encode the checkpoint of a run that has not started."""
    raw = msgspec.Raw(input.model_dump_json(by_alias=True, exclude_none=True).encode())
    return encode_checkpoint(RunCheckpoint(input=raw, options=options.without_secrets(), whole=whole, user=user))


def ended_checkpoint(input: RunAgentInput, options: GenerationOptions) -> str:
    """Encode the checkpoint of a run that has ended: enough to send its events again, without its messages."""
    options = options.without_secrets()
    return encode_checkpoint(
        RunCheckpoint(input=bare_input(input), options=options, request_digest=request_digest(input))
    )


def encode_checkpoint(checkpoint: RunCheckpoint) -> str:
    return msgspec.json.encode(checkpoint).decode()


def read_checkpoint(text: str) -> RunCheckpoint:
    """Decode a checkpoint. Raises msgspec.MsgspecError or ValueError for one that this version cannot read."""
    return msgspec.json.decode(text, type=RunCheckpoint)


class Checkpointer:
    """Keeps the checkpoint of one run up to date."""

    def __init__(self, context: RunContext, conversation: Conversation, state: SharedState) -> None:
        self._context = context
        self._recorder = context.recorder
        self._journal = context.recorder.journal
        self._conversation = conversation
        self._state = state
        self._input: dict[str, Any] | None = None  # in wire form, without the state and all messages but the last
        self._messages: dict[int, tuple[Message, msgspec.Raw]] = {}
        self._step = 0
        self._turn: int | None = None
        self._calls: dict[str, CallCheckpoint] = {}
        self._last_saved = ""

    @property
    def _saves(self) -> bool:
        return self._journal.is_open

    async def begin_turn(self, step: int) -> None:
        """Checkpoint the start of the model's turn with this number, with the current conversation."""
        if not self._saves:
            return
        # The first turn of a long thread encodes all of its messages; a slice at a time, so that other runs can stream.
        for at in range(0, len(self._conversation.visible), PART):
            self._encoded_messages(self._conversation.visible[at : at + PART])
            if at:
                await asyncio.sleep(0)
        self._step, self._calls = step, {}
        self._turn = self._journal.begin_turn()
        self._last_saved = self._encode_checkpoint()
        self._journal.body = lambda: self._last_saved
        self._journal.changed()

    def resume(self, checkpoint: RunCheckpoint) -> None:
        """Continue from a saved checkpoint, which stays unchanged while an interrupted turn continues."""
        self._step, self._turn = checkpoint.step, checkpoint.turn
        if checkpoint.turn is not None:
            assert self._context.saved is not None
            self._journal.resume_turn(checkpoint.turn, self._context.saved.turn(checkpoint.turn))

    @contextlib.asynccontextmanager
    async def checkpointed(self, calls: Sequence[CallCheckpoint], *, harmless: bool) -> AsyncIterator[None]:
        """Checkpoint these calls, which are made within the block.

        harmless: all of them are safe to repeat. Otherwise the checkpoint must be saved before any is made: raises
        RequestError if the store does not accept it, and Superseded if another server continues the run.
        """
        self._journal.end_turn()
        if not self._saves or all(each.asks for each in calls):  # no result is sent
            yield
            return
        self._turn = None
        self._calls = {each.id: each for each in calls}
        # Encoded whenever events are saved, since results that have been sent are in the conversation by then.
        self._journal.body = self._encode_checkpoint
        self._journal.changed()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SAVE_SECONDS
        are_made = any(not (each.ended or each.asks) for each in calls)
        while are_made:
            try:
                await self._journal.flush()
                break
            except StoreUnavailable:
                if harmless:
                    break
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(AGAIN_SECONDS)
        yield

    async def save_result(self, call_id: str, result: CallResult) -> None:
        """Save a call's result before it is sent. A store that fails does not delay the result."""
        call = self._calls.get(call_id)
        if call is None or not self._saves:
            return
        if result.question is not None:
            call.has_question = True
        else:
            call.ended, call.content, call.failed = True, result.content, result.failed
            call.structured, call.activities = result.structured, list(result.activities)
        await self._keep()

    async def keep_handle(self, call_id: str, handle: object) -> None:
        """Keep that a call's result can be fetched by a handle. A call that began early is kept with its turn."""
        call = self._calls.get(call_id)
        if call is not None and self._saves:
            call.continuation, call.has_handle = handle, True
            await self._keep()

    async def _keep(self) -> None:
        self._journal.changed()
        with contextlib.suppress(RequestError):  # if another server continues the run, this one is stopped elsewhere
            await self._journal.flush()

    def result_sent(self) -> None:
        """A result was sent: it is in the conversation now."""
        if self._saves and self._calls:
            self._journal.changed()

    def _encode_checkpoint(self) -> str:
        if self._input is None:
            source = self._context.input
            without = {"messages", "state"}
            self._input = source.model_dump(mode="json", by_alias=True, exclude=without, exclude_none=True)
            self._input["messages"] = to_dicts(source.messages[-1:])
        return encode_checkpoint(
            RunCheckpoint(
                input=msgspec.Raw(msgspec.json.encode({**self._input, "state": self._state.last_sent})),
                options=self._context.options.without_secrets(),
                begun=True,
                messages=self._encoded_messages(self._conversation.visible),
                step=self._step,
                turn=self._turn,
                turns=self._recorder.turns,
                calls=list(self._calls.values()),
                usage=list(self._recorder.usage.values()),
                warnings=list(self._recorder.warnings),
                user=self._context.user.name,
            )
        )

    def _encoded_messages(self, messages: Sequence[Message]) -> list[msgspec.Raw]:
        """The messages in wire form. Each is encoded only once."""
        raws = []
        for message in messages:
            cached = self._messages.get(id(message))
            if cached is None:
                (wire,) = to_dicts([message])
                cached = self._messages[id(message)] = message, msgspec.Raw(msgspec.json.encode(wire))
            raws.append(cached[1])
        return raws


class KnownResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result that is known without making the call: one recorded earlier, or a substitute.

    fresh: it has not been recorded yet.
    """

    record: InterruptRecord
    content: Any
    message_id: str | None
    failed: bool = False
    fresh: bool = False


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """What a run starts with.

    repeated: the run that already completed this very resume; only its results are sent again. questions: those to
    ask again, because an answer to one of them does not fit. checkpoint: of a run whose server stopped; then nothing
    else is resumed.
    """

    messages: Sequence[Message]
    decisions: Sequence[Decision] = ()
    known_results: Sequence[KnownResult] = ()
    repeated: RunRecord | None = None
    questions: Sequence[PendingQuestion] = ()
    checkpoint: RunCheckpoint | None = None

    @property
    def resumes(self) -> bool:
        return bool(self.decisions or self.known_results)


async def open_run(context: RunContext, agent: str) -> RunStart:
    """Apply the interrupt rules to the run's input. agent: the name of the agent that runs. Raises RequestError, which
    the client gets as RUN_ERROR."""
    thread, resume = context.thread, context.input.resume or []
    if context.checkpoint is not None:
        checkpoint = read_checkpoint(context.checkpoint)
        return RunStart(messages=await collect_yielding(each_model(checkpoint.conversation())), checkpoint=checkpoint)
    if thread is None:
        if resume:
            raise RequestError("invalid_request", "This thread is not stored, so it cannot be resumed.", "resume")
        return RunStart(messages=context.input.messages)
    # A client need not send the messages that the store has.
    client_messages: Sequence[Message] = context.input.messages
    if thread.snapshot.messages:
        client_messages = await collect_yielding(each_model(thread.snapshot.messages))
    # A call that waits for an answer has no result yet, whatever a client shows: TanStack AI sends "User approved this
    # action" as its result, together with the answer.
    if waiting := {record.call["id"] for record in thread.interrupts if record.status == "open"}:
        client_messages = [each for each in client_messages if getattr(each, "tool_call_id", None) not in waiting]
    now = datetime.now(UTC)
    # A client that got no response repeats its resume. Check for that before the rules: its interrupts are closed now.
    if interrupts.is_replay(resume, thread.interrupts):
        return await _replay(thread, resume, client_messages)
    try:
        decisions = await interrupts.decide(resume, thread.interrupts, now, agent)
    except interrupts.WrongAnswer as wrong_answer:
        open_interrupts = [record for record in thread.interrupts if record.status == "open"]
        questions = [interrupts.repeat_question(record, wrong_answer.faults) for record in open_interrupts]
        return RunStart(messages=await _messages(thread, open_interrupts, client_messages), questions=questions)
    messages = await _messages(thread, [each.record for each in decisions], client_messages)
    # Claim the answers before making any call: of two runs that answer the same question only one continues.
    if decisions:
        await _claim(thread, {each.record.id: interrupts.recorded_answer(each.entry) for each in decisions})
        # Record in the audit log who approved, changed or refused a call, or answered its question.
        for each in decisions:
            call = each.record.call
            edited = each.arguments != call["arguments"]
            outcome = "answered" if each.answers else "edited" if edited else "approved"
            refused = each.refusal is not None or each.entry.status == "cancelled"
            note(
                "call.refused" if refused else f"call.{outcome}",
                thread=context.input.thread_id,
                run=context.input.run_id,
                tool_call=str(call["id"]),
                tool=str(call["name"]),
                interrupt=each.record.id,
            )
        return RunStart(messages=messages, decisions=decisions)
    # Interrupts that expired: each call gets a result that says so, since models reject a call without a result. A tool
    # that asked a question continues without an answer and makes that result itself.
    expired = [record for record in thread.interrupts if record.status == "open"]
    if expired:
        await _claim(thread, {record.id: {"status": "expired", "payload": None} for record in expired})
    in_conversation = [record for record in expired if _has_call(messages, record)]
    decisions = [interrupts.unanswered(record) for record in in_conversation if interrupts.is_question(record)]
    known_results = [
        KnownResult(record=record, content=interrupts.EXPIRED, message_id=None, failed=True, fresh=True)
        for record in in_conversation
        if not interrupts.is_question(record)
    ]
    return RunStart(messages=messages, decisions=decisions, known_results=known_results)


def repeat_events(
    context: RunContext, emit: Callable[[Event], None], messages: Sequence[Mapping[str, Any]], run: RunRecord
) -> Ending:
    """Send the outcome of a run again to a client that repeats the resume which started it: the results that the client
    lacks, then all messages. messages: the thread's, in wire form."""
    input, thread = context.input, context.thread
    assert thread is not None
    known_ids = {message.id for message in input.messages}
    answered = {entry.interrupt_id for entry in input.resume or ()}
    calls = {record.call["id"] for record in thread.interrupts if record.id in answered}
    for each in messages:
        if each["role"] == "tool" and each["toolCallId"] in calls and each["id"] not in known_ids:
            emit(
                ToolCallResult(
                    message_id=each["id"], tool_call_id=each["toolCallId"], content=each["content"], role="tool"
                )
            )
    emit(MessagesSnapshot(messages=[dict(each) for each in messages]))
    return Ending(outcome=msgspec.convert(run.outcome, RunOutcome) if run.outcome else SuccessOutcome())


async def _claim(thread: OpenThread, answers: Mapping[str, InterruptAnswer]) -> None:
    if not await thread.claim(answers):
        raise RequestError("conflict", "Another run is answering these interrupts.", "resume")


async def _replay(thread: OpenThread, resume: Sequence[ResumeEntry], client_messages: Sequence[Message]) -> RunStart:
    """Rule 5: the same answers again. Repeat what the first resume produced, without making any call again."""
    answered_ids = {entry.interrupt_id for entry in resume}
    answered = [record for record in thread.interrupts if record.id in answered_ids]
    run = await thread.run(answered[0].resumed_by or "")
    # A run that failed is continued from the results that were recorded before it did.
    if run is not None and run.status in ("finished", "interrupted", "cancelled"):
        return RunStart(messages=await collect_yielding(each_model(await thread.messages())), repeated=run)
    known_results: list[KnownResult] = []
    for record in answered:
        if record.status == "answered" and record.result_message_id is not None:
            result = KnownResult(record=record, content=record.result, message_id=record.result_message_id)
        else:  # the call was started and must not be repeated: its outcome is unknown
            result = KnownResult(record=record, content=interrupts.UNKNOWN, message_id=None, failed=True, fresh=True)
        known_results.append(result)
    messages = await _messages(thread, answered, client_messages)
    return RunStart(messages=messages, known_results=known_results)


async def _messages(
    thread: OpenThread, records: Sequence[InterruptRecord], client_messages: Sequence[Message]
) -> Sequence[Message]:
    """The client's conversation; preceded by the stored messages if it lacks the calls that are being answered."""
    if all(_has_call(client_messages, record) for record in records):
        return client_messages
    stored: list[Message] = await collect_yielding(each_model(await thread.messages()))
    stored_ids = {message.id for message in stored}
    return [*stored, *(message for message in client_messages if message.id not in stored_ids)]


def _has_call(messages: Sequence[Message], record: InterruptRecord) -> bool:
    call_id = record.call["id"]
    calls = [call.id for message in messages for call in getattr(message, "tool_calls", None) or ()]
    return call_id in calls
