"""Checkpoints: what a server needs to go on with a run where another one ended.

Every run of a stored thread is saved beside its stream (see `runs.journal`): its events, the tokens of the model's
turn that goes on, and a checkpoint, which says from where those are read. A checkpoint is made when a turn begins,
when its calls begin and with each of their results. No call is made before the checkpoint that knows of it is saved: a
server that resumes the run knows of each call whether it ended, and makes none again that may have done something
(`Callee.repeats`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from ag_ui.core import Message, RunAgentInput

from adapters.errors import RequestError
from agent_server.agents.conversation import Conversation
from agent_server.agents.running import Activity, CallResult
from agent_server.agents.state import SharedState
from agent_server.pacing import PART
from agent_server.runs.joining import asked_digest, bare_input
from agent_server.runs.store import StoreUnavailable
from events.message import to_dicts
from events.options import GenerationOptions
from events.vocabulary import TokenUsage

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
    return encoded(RunCheckpoint(input=raw, options=options, whole=whole, user=user))


def ended_checkpoint(input: RunAgentInput, options: GenerationOptions) -> str:
    """Of a run that ended: what its events are told again with, and nothing that was said."""
    return encoded(RunCheckpoint(input=bare_input(input), options=options, asked=asked_digest(input)))


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
                options=self._context.options,
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
