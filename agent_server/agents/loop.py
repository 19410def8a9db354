"""The agent loop: prompt → model → calls → results → again, until text, a client's tool, a question or max_steps."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence

import msgspec
from ag_ui.core import RunAgentInput, ToolCall

from agent_server.agents.agent import Agent
from agent_server.agents.calling import CUT_OFF, Caller
from agent_server.agents.checkpoints import RunCheckpoint, RunStart
from agent_server.agents.compaction import Compactor
from agent_server.agents.conversation import instructions_of
from agent_server.agents.conversation_context import ConversationContext, Toolset
from agent_server.agents.early_calls import Asked, EarlyCalls
from agent_server.agents.guardrails import Forbidden
from agent_server.agents.tool_search import discovered
from agent_server.agents.turn import CannotContinue, TurnTaker
from agent_server.engine_protocol.protocol import EngineError
from agent_server.pacing import collect_yielding
from agent_server.runs import Ending
from agent_server.runs.journal import ReplayDiverged
from agent_server.runs.store.records import AskedPerson
from events.message import each_model
from events.options import GenerationOptions, ToolChoice
from events.vocabulary import (
    TAKEN_UP_EVENT,
    Custom,
    InterruptOutcome,
    MessagesSnapshot,
    StepFinished,
    StepStarted,
    SuccessOutcome,
)

log = logging.getLogger("agent_server.agent")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one conversation's loop ended: the model's last words, or what is waited for."""

    text: str = ""
    reason: str = "stop"
    pending: tuple[str, ...] = ()
    waiting: tuple[AskedPerson, ...] = ()


class Loop:
    """Drives one conversation of one agent within a run. A subagent has its own loop over its own conversation."""

    def __init__(
        self,
        agent: Agent,
        conversation_context: ConversationContext,
        turns: TurnTaker,
        tools: Toolset,
        options: GenerationOptions,
        compactor: Compactor | None = None,
    ) -> None:
        self._compactor = compactor
        self._agent = agent
        self._turns = turns
        self._tools = tools
        self._options = options
        self._context = conversation_context.context
        self._recorder = conversation_context.recorder
        self._conversation = conversation_context.conversation
        self._state = conversation_context.state
        self._emit = conversation_context.emit
        self._checkpointer = conversation_context.checkpointer
        self._caller = Caller(agent, conversation_context, tools)

    async def resume(self, opening: RunStart) -> Outcome:
        """Settle what was interrupted, then go on. The calls themselves are not told again."""
        for settled in opening.settled:
            await self._caller.settle(settled)
        return self._left(await self._caller.follow(opening.decisions)) or await self.run()

    async def take_up(self, kept: RunCheckpoint) -> Outcome:
        """Go on with a run whose server ended in a turn of the model, or while its tools worked."""
        if kept.turn is not None:
            outcome = await self._turn_again(kept)
        elif kept.step and self._recorder.is_open(_step_name(kept.step)):
            outcome = await self._stepped(kept.step, self._calls_again(kept), begun=True)
        else:
            outcome = await self._calls_again(kept)
        return outcome or await self.run(kept.step + 1)

    async def _turn_again(self, kept: RunCheckpoint) -> Outcome | None:
        """Go on in the middle of a turn. Where that is impossible the turn is taken anew, and readers are told what the
        conversation was before it."""
        assert self._checkpointer is not None
        self._checkpointer.resume_turn(kept)
        try:
            return await self._stepped(kept.step, self._turn_and_calls(kept.step, resumed=True), begun=True)
        except (ReplayDiverged, CannotContinue) as reason:
            log.info("a turn of a resumed run is taken anew: %s", reason)
        self._recorder.journal.forget_turn()
        self._recorder.close_open()
        self._conversation.restart(await collect_yielding(each_model(kept.conversation())))
        self._emit(Custom(name=TAKEN_UP_EVENT, value={"step": kept.step, "calls": []}))
        self._emit(MessagesSnapshot(messages=await collect_yielding(self._conversation.snapshot())))
        return await self._step(kept.step)

    async def _calls_again(self, kept: RunCheckpoint) -> Outcome | None:
        return self._left(await self._caller.take_up(kept.calls))

    def _left(self, waiting: Sequence[AskedPerson]) -> Outcome | None:
        """What a run ends with before the model's next turn: questions, or calls that the client has not answered."""
        if waiting:
            return Outcome(reason="tool_calls", waiting=tuple(waiting))
        if left := self._unanswered_by_client():
            return Outcome(reason="tool_calls", pending=left)
        return None

    async def run(self, first: int = 1) -> Outcome:
        """Go on from the conversation as it stands, with the model's turn of that number."""
        if self._compactor is not None and self._options.compact is not None and self._options.compact.now:
            if self._unanswered_by_client():
                message = "The conversation has calls without results; send these before it is made short."
                raise EngineError("invalid_request", message, param="messages")
            await self._compactor.whole(lambda: self._asked(1))
            return Outcome()
        for number in range(first, self._agent.max_steps + 1):
            outcome = await self._step(number)
            if outcome is not None:
                return outcome
        self._recorder.warn(
            f"The run stopped after {self._agent.max_steps} model turns (max_steps); the model was not done."
        )
        return Outcome(reason="length")

    async def _step(self, number: int) -> Outcome | None:
        """One turn and its calls; None to go on."""
        return await self._stepped(number, self._turn_and_calls(number))

    async def _stepped(
        self, number: int, work: Coroutine[object, object, Outcome | None], *, begun: bool = False
    ) -> Outcome | None:
        """The work, told as a step where the agent has tools. begun: an earlier server has told its beginning."""
        name = _step_name(number)
        stepped = bool(self._tools.callees)
        # A server may have ended between the beginning of a step and its turn's checkpoint. A subagent has no
        # checkpoints: where a step of that name is open, it is its caller's.
        begun = begun or (self._checkpointer is not None and self._recorder.is_open(name))
        if stepped and not begun:
            self._emit(StepStarted(step_name=name))
        outcome = await work
        if stepped:
            self._emit(StepFinished(step_name=name))
        return outcome

    async def _turn_and_calls(self, number: int, *, resumed: bool = False) -> Outcome | None:
        early = self._caller.early()
        try:
            return await self._take_turn(number, early, resumed=resumed)
        except Forbidden:
            mine, _ = self._divide(self._turns.said().calls)
            self._caller.leave(mine)
            raise
        finally:
            await early.discard()

    async def _take_turn(self, number: int, early: EarlyCalls, *, resumed: bool) -> Outcome | None:
        try:
            if self._compactor is not None:
                await self._compactor.fit(lambda: self._asked(number))
            if self._checkpointer is not None and not resumed:
                await self._checkpointer.begin_turn(number)
            told = early.see if self._tools.early else None
            turn = await self._turns.take(*self._asked(number), told=told)
        finally:
            said = self._turns.said()
            self._conversation.add(said.messages, said.shown)
            # Answered here, so that no client takes them for its own to make, and the model learns of it.
            self._caller.leave(said.cut_calls, CUT_OFF)
        if not said.calls:
            return Outcome(text=said.text, reason=turn.finished.reason)
        mine, pending = self._divide(said.calls)
        with self._turns.ahead(self._conversation, lambda: self._asked(number + 1)) as ahead:
            waiting = await self._caller.call(mine, turn.invalid, early)
            ahead.lasts = bool(waiting or pending)
        reason = "tool_calls" if turn.finished.reason == "stop" and not said.cut_calls else turn.finished.reason
        if waiting:
            return Outcome(reason=reason, waiting=tuple(waiting))
        if pending:
            return Outcome(text=said.text, reason=reason, pending=tuple(call.id for call in pending))
        # A message that was cut off within a call is the run's last: what it lacks, the next would lack too.
        return Outcome(text=said.text, reason=reason) if said.cut_calls else None

    def _asked(self, number: int) -> Asked:
        """What a turn is asked, as the conversation stands."""
        return self._input(), self._turn_options(number), self._instructions()

    def _input(self) -> RunAgentInput:
        """The run's input with the conversation and the tools as they stand."""
        source = self._context.input
        clients = [each for each in source.tools or () if each.name in self._tools.clients]
        messages = list(self._conversation.prompt) if self._compactor is None else self._compactor.view()
        deferred = self._tools.deferred
        searched = [] if deferred is None else discovered(messages, deferred)
        return source.model_copy(
            update={
                "messages": messages,
                "tools": [*self._tools.declarations, *clients, *searched],
                "context": list(self._tools.context),
            }
        )

    def _instructions(self) -> str | None:
        given = self._agent.instructions
        text = given(self._state.value) if callable(given) else given
        state = self._state.value if self._agent.state_in_prompt else None
        return instructions_of(text, state)

    def _turn_options(self, number: int) -> GenerationOptions:
        """A forced choice of tools holds for the first turn: kept up, the model could never answer with text."""
        choice = self._options.tool_choice
        if number > 1 and choice.mode in ("required", "named"):
            return msgspec.structs.replace(self._options, tool_choice=ToolChoice())
        return self._options

    def _divide(self, calls: Sequence[ToolCall]) -> tuple[list[ToolCall], list[ToolCall]]:
        """The calls that are ours to answer, and those that the client answers. An undeclared name is ours
        if we have tools (the model is told), else the client's to judge."""
        mine: list[ToolCall] = []
        clients: list[ToolCall] = []
        for call in calls:
            name = call.function.name
            ours = name in self._tools.callees or (name not in self._tools.clients and bool(self._tools.callees))
            (mine if ours else clients).append(call)
        return mine, clients

    def _unanswered_by_client(self) -> tuple[str, ...]:
        """Calls of the last assistant message that the client was to answer and has not."""
        calls = next((m.tool_calls for m in reversed(self._conversation.prompt) if m.role == "assistant"), None)
        answered = self._conversation.answered_calls() if calls else frozenset()
        return tuple(call.id for call in calls or () if call.id not in answered)


def _step_name(number: int) -> str:
    return f"step {number}"


def ending_of(outcome: Outcome) -> Ending:
    """An outcome as RUN_FINISHED carries it."""
    if outcome.waiting:
        asked = [each["interrupt"] for each in outcome.waiting]
        return Ending(outcome=InterruptOutcome(interrupts=asked), reason=outcome.reason)
    if outcome.pending:
        return Ending(outcome=SuccessOutcome(pending_tool_call_ids=list(outcome.pending)), reason=outcome.reason)
    return Ending(reason=outcome.reason)
