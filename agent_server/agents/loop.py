"""The agent loop: prompt → model → calls → results → again, until text, a client's tool, a question or max_steps."""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence

import msgspec
from ag_ui.core import ToolCall

from agent_server.agents.agent import Agent
from agent_server.agents.calling import CUT_OFF, Caller
from agent_server.agents.checkpoints import RunCheckpoint, RunStart
from agent_server.agents.compaction import Compactor
from agent_server.agents.conversation import instructions_of, without_repeated_calls
from agent_server.agents.conversation_context import ConversationContext
from agent_server.agents.early_calls import TurnRequest
from agent_server.agents.guardrails import Forbidden
from agent_server.agents.tool_search import discovered
from agent_server.agents.turn import CannotContinue, TurnTaker
from agent_server.agents.turn_output import TurnMessages
from agent_server.engine_protocol.protocol import EngineError
from agent_server.pacing import collect_yielding
from agent_server.runs import Ending
from agent_server.runs.journal import ReplayDiverged
from agent_server.runs.store.records import PendingQuestion
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
REPEATED = "The model repeated its calls and got the same results, so its next turn was without tools."


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one conversation's loop ended.

    text: of the model's last message. pending: ids of calls that the client answers. questions: to a person.
    """

    text: str = ""
    reason: str = "stop"
    pending: tuple[str, ...] = ()
    questions: tuple[PendingQuestion, ...] = ()


class Loop:
    """Drives one conversation of one agent within a run. A subagent has its own loop over its own conversation."""

    def __init__(
        self,
        agent: Agent,
        context: ConversationContext,
        turns: TurnTaker,
        options: GenerationOptions,
        compactor: Compactor | None = None,
    ) -> None:
        self._compactor = compactor
        self._agent = agent
        self._turns = turns
        self._tools = context.tools
        self._options = options
        self._context = context.run
        self._recorder = context.run.recorder
        self._conversation = context.conversation
        self._state = context.state
        self._emit = context.emit
        self._checkpointer = context.checkpointer
        self._caller = Caller(agent, context)

    async def resume(self, opening: RunStart) -> Outcome:
        """Answer the interrupted calls, then continue the loop. The events of the calls are not sent again."""
        for result in opening.known_results:
            await self._caller.send_known_result(result)
        return self._outcome_if_unanswered(await self._caller.follow_decisions(opening.decisions)) or await self.run()

    async def resume_orphan(self, checkpoint: RunCheckpoint) -> Outcome:
        """Continue a run whose server stopped during a turn of the model, or while tool calls were running."""
        assert self._checkpointer is not None
        self._checkpointer.resume(checkpoint)
        if checkpoint.turn is not None:
            outcome = await self._resume_turn(checkpoint)
        elif checkpoint.step and self._recorder.is_open(_step_name(checkpoint.step)):
            outcome = await self._run_step(checkpoint.step, self._resume_calls(checkpoint), started=True)
        else:
            outcome = await self._resume_calls(checkpoint)
        return outcome or await self.run(checkpoint.step + 1)

    async def _resume_turn(self, checkpoint: RunCheckpoint) -> Outcome | None:
        """Continue an interrupted turn. If the engine cannot, start the turn again and send readers a snapshot of the
        conversation before it."""
        try:
            return await self._run_step(
                checkpoint.step, self._turn_and_calls(checkpoint.step, resumed=True), started=True
            )
        except (ReplayDiverged, CannotContinue) as reason:
            log.info("a turn of a resumed run starts again: %s", reason)
        self._recorder.journal.forget_turn()
        self._recorder.close_open()
        self._conversation.restart(await collect_yielding(each_model(checkpoint.conversation())))
        self._emit(Custom(name=TAKEN_UP_EVENT, value={"step": checkpoint.step, "calls": []}))
        self._emit(MessagesSnapshot(messages=await collect_yielding(self._conversation.snapshot())))
        return await self._take_step(checkpoint.step)

    async def _resume_calls(self, checkpoint: RunCheckpoint) -> Outcome | None:
        return self._outcome_if_unanswered(await self._caller.resume_calls(checkpoint.calls))

    def _outcome_if_unanswered(self, questions: Sequence[PendingQuestion]) -> Outcome | None:
        """The outcome if the run must end before the model's next turn: with questions to a person, or with calls that
        the client has not answered."""
        if questions:
            return Outcome(reason="tool_calls", questions=tuple(questions))
        if pending := self._unanswered_by_client():
            return Outcome(reason="tool_calls", pending=pending)
        return None

    async def run(self, first: int = 1) -> Outcome:
        """Run the loop on the current conversation. first: the number of the model's next turn, from 1."""
        if self._compactor is not None and self._options.compact is not None and self._options.compact.now:
            if self._unanswered_by_client():
                message = "The conversation has tool calls without results. Send the results before compacting it."
                raise EngineError("invalid_request", message, param="messages")
            await self._compactor.compact_all(lambda: self._next_request(1))
            return Outcome()
        for number in range(first, self._agent.max_steps + 1):
            outcome = await self._take_step(number)
            if outcome is not None:
                return outcome
        self._recorder.warn(
            f"The run stopped after {self._agent.max_steps} model turns (max_steps) before the model had finished."
        )
        return Outcome(reason="length")

    async def _take_step(self, number: int) -> Outcome | None:
        """Take one turn and make its calls. Returns None if the loop continues."""
        return await self._run_step(number, self._turn_and_calls(number))

    async def _run_step(
        self, number: int, work: Coroutine[object, object, Outcome | None], *, started: bool = False
    ) -> Outcome | None:
        """Await the work, within a step's events if the agent has tools.

        started: an earlier server already sent STEP_STARTED.
        """
        name = _step_name(number)
        reports_steps = bool(self._tools.callees)
        # A server may have stopped between STEP_STARTED and the turn's checkpoint. A subagent has no checkpoints: an
        # open step with this name is its caller's.
        started = started or (self._checkpointer is not None and self._recorder.is_open(name))
        if reports_steps and not started:
            self._emit(StepStarted(step_name=name))
        outcome = await work
        if reports_steps:
            self._emit(StepFinished(step_name=name))
        return outcome

    async def _turn_and_calls(self, number: int, *, resumed: bool = False) -> Outcome | None:
        early, output = self._caller.early_calls(), TurnMessages()
        try:
            if self._compactor is not None:
                await self._compactor.fit(lambda: self._next_request(number))
            if self._checkpointer is not None and not resumed:
                await self._checkpointer.begin_turn(number)
            on_event = early.observe if self._tools.early else None
            request = self._next_request(number)
            _, options, _ = request
            if options.tool_choice.mode == "none" and self._options.tool_choice.mode != "none":
                self._recorder.warn(REPEATED)
            try:
                turn = await self._turns.take(*request, on_event=on_event, repeats_calls=self._agent.repeats_calls)
            finally:
                output = self._turns.messages_so_far()
                self._conversation.add(output.messages, output.visible)
                # Answered here, so that no client makes them and the model sees that they were cut off.
                self._caller.reject(output.cut_calls, CUT_OFF)
            if not output.calls:
                return Outcome(text=output.text, reason=turn.finished.reason)
            server_calls, pending = self._split_calls(output.calls)
            with self._turns.read_ahead(self._conversation, lambda: self._next_request(number + 1)) as read_ahead:
                questions = await self._caller.call(server_calls, turn.invalid, early)
                read_ahead.continues = bool(questions or pending)
        except Forbidden:
            server_calls, _ = self._split_calls(output.calls)
            self._caller.reject(server_calls)
            raise
        finally:
            await early.discard()
        reason = "tool_calls" if turn.finished.reason == "stop" and not output.cut_calls else turn.finished.reason
        if questions:
            return Outcome(reason=reason, questions=tuple(questions))
        if pending:
            return Outcome(text=output.text, reason=reason, pending=tuple(call.id for call in pending))
        # A message that was cut off within a call is the run's last: the next one would run out of tokens as well.
        return Outcome(text=output.text, reason=reason) if output.cut_calls else None

    def _next_request(self, number: int) -> TurnRequest:
        """The input, options and instructions of a turn on the current conversation and tools."""
        source = self._context.input
        clients = [each for each in source.tools or () if each.name in self._tools.clients]
        messages = list(self._conversation.prompt) if self._compactor is None else self._compactor.view()
        repeatable = {name for name, callee in self._tools.callees.items() if callee.repeatable}
        messages, repeated = without_repeated_calls(messages, () if self._agent.repeats_calls else repeatable)
        deferred = self._tools.deferred
        searched = [] if deferred is None else discovered(messages, deferred)
        input = source.model_copy(
            update={
                "messages": messages,
                "tools": [*self._tools.declarations, *clients, *searched],
                "context": list(self._tools.context),
            }
        )
        # A forced tool choice applies to the first turn only; otherwise the model could never answer with text.
        options = self._options
        if number > 1 and options.tool_choice.mode in ("required", "named"):
            options = msgspec.structs.replace(options, tool_choice=ToolChoice())
        if repeated and options.tool_choice.mode == "auto":
            options = msgspec.structs.replace(options, tool_choice=ToolChoice("none"))
        instructions = self._agent.instructions
        text = instructions(self._state.value) if callable(instructions) else instructions
        state = self._state.value if self._agent.state_in_prompt else None
        return input, options, instructions_of(text, state)

    def _split_calls(self, calls: Sequence[ToolCall]) -> tuple[list[ToolCall], list[ToolCall]]:
        """Split calls into those that the server answers and those that the client answers.

        The server answers a call of an undeclared tool, with an error for the model, if the agent has tools;
        otherwise it is left to the client.
        """
        server_calls: list[ToolCall] = []
        client_calls: list[ToolCall] = []
        for call in calls:
            name = call.function.name
            ours = name in self._tools.callees or (name not in self._tools.clients and bool(self._tools.callees))
            (server_calls if ours else client_calls).append(call)
        return server_calls, client_calls

    def _unanswered_by_client(self) -> tuple[str, ...]:
        """The calls of the last assistant message that the client has not answered."""
        calls = next((m.tool_calls for m in reversed(self._conversation.prompt) if m.role == "assistant"), None)
        answered = self._conversation.answered_calls() if calls else frozenset()
        return tuple(call.id for call in calls or () if call.id not in answered)


def _step_name(number: int) -> str:
    return f"step {number}"


def ending_of(outcome: Outcome) -> Ending:
    """An outcome in the form that RUN_FINISHED carries."""
    if outcome.questions:
        interrupts = [each["interrupt"] for each in outcome.questions]
        return Ending(outcome=InterruptOutcome(interrupts=interrupts), reason=outcome.reason)
    if outcome.pending:
        return Ending(outcome=SuccessOutcome(pending_tool_call_ids=list(outcome.pending)), reason=outcome.reason)
    return Ending(reason=outcome.reason)
