"""The agent loop: prompt → model → calls → results → again, until text, a client's tool, a question or max_steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from ag_ui.core import ActivityMessage, Context, RunAgentInput, ToolCall, ToolMessage

from agent_server.agent import interrupts
from agent_server.agent.agent import Agent
from agent_server.agent.conversation import Conversation, instructions_of
from agent_server.agent.resuming import Opening, Settled
from agent_server.agent.running import Activity, Callee, CallResult, Pending, answer_all, failure
from agent_server.agent.server_tools import Tool, ToolFault, read_arguments
from agent_server.agent.state import SharedState
from agent_server.agent.surfaces import Surfaces
from agent_server.agent.tool_context import InputRequired, ToolContext
from agent_server.agent.turn import TurnTaker
from agent_server.runs import Ending, Recorder, RunContext
from events.options import GenerationOptions, ToolChoice
from events.vocabulary import (
    ActivitySnapshot,
    Event,
    Interrupt,
    InterruptOutcome,
    StepFinished,
    StepStarted,
    SuccessOutcome,
    ToolCallResult,
)

Emit = Callable[[Event], None]
CANNOT_ASK = "This call needs a person's agreement, and this connection cannot ask for it. It was not made."


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """What the model may call. declarations: of the server's tools, for the prompt. approvals: tools that may need a
    person's yes. clients: names of the tools that the client runs. context: the client's, as the model is told it."""

    callees: Mapping[str, Callee]
    declarations: Sequence[Any]
    approvals: Mapping[str, Tool] = {}
    clients: frozenset[str] = frozenset()
    context: Sequence[Context] = ()


class Talk(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation within a run: the run's own, or a subagent's. emit: where its events go (a subagent's are marked
    on the way). may_ask: a person can be asked, since what is asked is stored. surfaces: the run's."""

    context: RunContext
    recorder: Recorder
    conversation: Conversation
    state: SharedState
    emit: Emit
    may_ask: bool
    surfaces: Surfaces


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one conversation's loop ended: the model's last words, or what is waited for."""

    text: str = ""
    reason: str = "stop"
    pending: tuple[str, ...] = ()
    waiting: tuple[dict[str, Any], ...] = ()


class Loop:
    """Drives one conversation of one agent within a run. A subagent has its own loop over its own conversation."""

    def __init__(self, agent: Agent, talk: Talk, turns: TurnTaker, tools: Toolset, options: GenerationOptions) -> None:
        self._agent = agent
        self._turns = turns
        self._tools = tools
        self._options = options
        self._context = talk.context
        self._recorder = talk.recorder
        self._conversation = talk.conversation
        self._state = talk.state
        self._emit = talk.emit
        self._may_ask = talk.may_ask

    async def resume(self, opening: Opening) -> Outcome:
        """Settle what was interrupted, then go on. The calls themselves are not told again."""
        for settled in opening.settled:
            answer = CallResult(content=settled.content, failed=settled.failed)
            await self._settle(settled.record.call["id"], answer, settled.record.id if settled.fresh else None, settled)
        waiting = await self._follow(opening.decisions)
        if waiting:
            return Outcome(reason="tool_calls", waiting=tuple(waiting))
        if left := self._unanswered_by_client():
            return Outcome(reason="tool_calls", pending=left)
        return await self.run()

    async def run(self) -> Outcome:
        """Go on from the conversation as it stands."""
        for number in range(1, self._agent.max_steps + 1):
            outcome = await self._step(number)
            if outcome is not None:
                return outcome
        self._recorder.warn(
            f"The run stopped after {self._agent.max_steps} model turns (max_steps); the model was not done."
        )
        return Outcome(reason="length")

    async def _step(self, number: int) -> Outcome | None:
        """One turn and its calls; None to go on."""
        name = f"step {number}"
        stepped = bool(self._tools.callees)
        if stepped:
            self._emit(StepStarted(step_name=name))
        outcome = await self._turn_and_calls(number)
        if stepped:
            self._emit(StepFinished(step_name=name))
        return outcome

    async def _turn_and_calls(self, number: int) -> Outcome | None:
        try:
            turn = await self._turns.take(self._input(), self._turn_options(number), self._instructions())
        finally:
            said = self._turns.said()
            self._conversation.add(said.messages, said.shown)
        if not said.calls:
            return Outcome(text=said.text, reason=turn.finished.reason)
        mine, pending = self._divide(said.calls)
        waiting = await self._call(mine, turn.invalid)
        if waiting:
            return Outcome(reason="tool_calls", waiting=tuple(waiting))
        if pending:
            return Outcome(text=said.text, reason="tool_calls", pending=tuple(call.id for call in pending))
        return None

    def _input(self) -> RunAgentInput:
        """The run's input with the conversation and the tools as they stand."""
        source = self._context.input
        clients = [each for each in source.tools or () if each.name in self._tools.clients]
        return source.model_copy(
            update={
                "messages": list(self._conversation.prompt),
                "tools": [*self._tools.declarations, *clients],
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

    async def _call(self, calls: Sequence[ToolCall], invalid: Mapping[str, str]) -> list[dict[str, Any]]:
        """Make calls, but those that need a person's agreement; what a person must be asked. Arguments that do not fit
        the schema (`invalid`) are told to the model, unless the tool checks them itself."""
        waiting: list[dict[str, Any]] = []
        pending: list[Pending] = []
        for call in calls:
            try:
                arguments = read_arguments(call.function.arguments)
                callee = self._tools.callees.get(call.function.name)
                if callee is None:
                    raise ToolFault(f"There is no tool called {call.function.name}.")
                if call.id in invalid and not getattr(callee, "checks", False):
                    raise ToolFault(f"Invalid arguments: {invalid[call.id]}")
                approving = self._tools.approvals.get(call.function.name)
                if approving is not None:
                    approving.check(arguments)
            except ToolFault as fault:
                self._answer(call.id, failure(str(fault)))
                continue
            if approving is None or not approving.needs_approval(arguments):
                pending.append(self._pending(call.id, call.function.name, arguments, callee))
            elif self._may_ask:
                waiting.append(self._ask_approval(approving, arguments, call.id))
            else:
                self._answer(call.id, failure(CANNOT_ASK))
        return waiting + await self._answer_pending(pending)

    async def _answer_pending(self, pending: Sequence[Pending]) -> list[dict[str, Any]]:
        waiting: list[dict[str, Any]] = []

        async def done(each: Pending, answer: CallResult) -> None:
            if answer.question is None:
                await self._settle(each.call_id, answer, each.interrupt_id)
            elif self._may_ask:
                if each.interrupt_id is not None:
                    await self._record(each.interrupt_id, None, None)
                waiting.append(self._ask_person(each, answer.question))
            else:
                await self._settle(each.call_id, failure(CANNOT_ASK), each.interrupt_id)

        await answer_all(pending, done)
        return waiting

    async def _settle(
        self, call_id: str, answer: CallResult, interrupt_id: str | None, settled: Settled | None = None
    ) -> None:
        """Answer a call; the result of one that an interrupt held back is kept before anyone is told."""
        message_id = settled.message_id if settled is not None else None
        message_id = message_id or self._context.new_id("msg")
        if interrupt_id is not None:
            await self._record(interrupt_id, answer.content, message_id)
        if not self._conversation.answered(call_id):
            self._answer(call_id, answer, message_id)

    async def _record(self, interrupt_id: str, content: Any, message_id: str | None) -> None:
        assert self._context.thread is not None
        await self._context.thread.record_result(interrupt_id, content, message_id)

    def _answer(self, call_id: str, answer: CallResult, message_id: str | None = None) -> None:
        """Send a call's result and add it to the conversation, after what the tool did to the state."""
        try:
            self._state.push()
        except ToolFault as fault:
            answer = failure(str(fault))
        message_id = message_id or self._context.new_id("msg")
        metadata = {"isError": True} if answer.failed else None
        self._emit(
            ToolCallResult(
                message_id=message_id, tool_call_id=call_id, content=answer.content, role="tool", metadata=metadata
            )
        )
        message = ToolMessage(id=message_id, tool_call_id=call_id, content=answer.content, metadata=metadata)
        self._conversation.add_result(message)
        for activity in answer.activities:
            self._show(call_id, activity)

    def _show(self, call_id: str, activity: Activity) -> None:
        """Send an activity of a call's, and keep it with the thread."""
        id = activity.id or self._context.new_id("activity")
        if not activity.told:
            self._emit(
                ActivitySnapshot(message_id=id, activity_type=activity.kind, content=activity.content, replace=True)
            )
        self._conversation.add_activity(
            call_id, ActivityMessage(id=id, activity_type=activity.kind, content=activity.content)
        )

    def _pending(
        self, call_id: str, name: str, arguments: dict[str, Any], callee: Callee, answers: Sequence[Any] = ()
    ) -> Pending:
        return Pending(
            call_id=call_id,
            name=name,
            arguments=arguments,
            callee=callee,
            context=self._tool_context(call_id, name, answers),
        )

    def _tool_context(self, call_id: str, name: str, answers: Sequence[Any]) -> ToolContext:
        context = self._context
        activity = context.new_id("activity")

        def progress(content: Mapping[str, Any]) -> None:
            shown = {"toolCallId": call_id, "toolName": name, **content}
            self._emit(ActivitySnapshot(message_id=activity, activity_type="tool_progress", content=shown))

        return ToolContext(
            tool_call_id=call_id,
            tool_name=name,
            thread_id=context.input.thread_id,
            run_id=context.input.run_id,
            tenant=context.tenant,
            forwarded_props=context.input.forwarded_props,
            state=self._state.value,
            push_state=self._state.push,
            progress=progress,
            answers=answers,
        )

    def _ask_approval(self, tool: Tool, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
        asked = interrupts.approval(tool, arguments, call_id, self._context.new_id("int"), datetime.now(UTC))
        return self._asked(asked, call_id, tool.name, arguments, [])

    def _ask_person(self, each: Pending, question: InputRequired) -> dict[str, Any]:
        asked = interrupts.question(question, each.call_id, self._context.new_id("int"), datetime.now(UTC))
        return self._asked(asked, each.call_id, each.name, each.arguments, each.context.answers)

    def _asked(
        self, asked: Interrupt, call_id: str, name: str, arguments: dict[str, Any], answers: Sequence[Any]
    ) -> dict[str, Any]:
        """An interrupt with what the store keeps beside it: the call that it stops, and whose it is."""
        call = {"id": call_id, "name": name, "arguments": arguments, "answers": answers, "agent": self._agent.name}
        return {"interrupt": asked, "call": call}

    async def _follow(self, decisions: Sequence[interrupts.Decision]) -> list[dict[str, Any]]:
        """Make the calls that were agreed to and tell the model of those that were not; what is still to be asked."""
        pending: list[Pending] = []
        for decision in decisions:
            call, record = decision.record.call, decision.record
            callee = self._tools.callees.get(call["name"])
            if decision.refusal is not None or callee is None:
                refusal = decision.refusal or f"There is no tool called {call['name']} any more."
                await self._settle(call["id"], CallResult(content=refusal, failed=True), record.id)
                continue
            if decision.arguments != call["arguments"]:
                self._conversation.use_arguments(call["id"], decision.arguments)
            pending.append(
                Pending(
                    call_id=call["id"],
                    name=call["name"],
                    arguments=decision.arguments,
                    callee=callee,
                    context=self._tool_context(call["id"], call["name"], decision.answers),
                    interrupt_id=record.id,
                )
            )
        return await self._answer_pending(pending)

    def _unanswered_by_client(self) -> tuple[str, ...]:
        """Calls of the last assistant message that the client was to answer and has not."""
        calls = next((m.tool_calls for m in reversed(self._conversation.prompt) if m.role == "assistant"), None)
        answered = self._conversation.answered_calls() if calls else frozenset()
        return tuple(call.id for call in calls or () if call.id not in answered)


def ending_of(outcome: Outcome) -> Ending:
    """An outcome as RUN_FINISHED carries it."""
    if outcome.waiting:
        asked: list[Interrupt] = [each["interrupt"] for each in outcome.waiting]
        return Ending(outcome=InterruptOutcome(interrupts=asked), reason="tool_calls")
    if outcome.pending:
        return Ending(outcome=SuccessOutcome(pending_tool_call_ids=list(outcome.pending)), reason="tool_calls")
    return Ending(reason=outcome.reason)
