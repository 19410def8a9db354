"""An agent together with its model: what the run manager runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from ag_ui.core import Message, RunAgentInput, SystemMessage, UserMessage
from pydantic import BaseModel

from agent_server.agent.agent import Agent
from agent_server.agent.conversation import Conversation
from agent_server.agent.loop import Loop, Toolset, ending_of
from agent_server.agent.reasoning import ReasoningPolicy, unsealed
from agent_server.agent.running import FunctionCallee, Limits
from agent_server.agent.sealing import Sealer
from agent_server.agent.state import Predictor, SharedState
from agent_server.agent.turn import LanguageModel, TurnTaker
from agent_server.runs import Ending, Execution
from events.options import GenerationOptions, SamplingParams

SUMMARY_INSTRUCTIONS = "Summarise the following thoughts in one or two short sentences, in their language."
SUMMARY_TOKENS = 96


class ServedAgent:
    """Runs one agent. One instance serves every run; what belongs to a run is made in `run`."""

    def __init__(
        self, agent: Agent, model: LanguageModel, *, sealer: Sealer | None = None, limits: Limits | None = None
    ) -> None:
        self.agent = agent
        self.name = agent.name
        self._model = model
        self._sealer = sealer or Sealer()
        self._limits = limits or Limits()

    async def run(self, execution: Execution) -> Ending:
        agent, emit = self.agent, execution.emit
        state = SharedState(self._state_to_begin_with(execution), emit, _schema(agent))
        predictor = Predictor(agent.predict_state, state)
        predictor.announce(emit)
        if agent.shares_state:
            state.snapshot()
        conversation = self._conversation(execution)
        execution.messages = conversation.wire()
        turns = TurnTaker(
            self._model,
            execution,
            emit,
            reasoning=self._reasoning(execution),
            follow=predictor.follow if agent.predict_state else None,
        )
        options = effective_options(agent, execution.options)
        loop = Loop(agent, execution, turns, self._toolset(execution), conversation, state, emit, options=options)
        try:
            outcome = await loop.run()
        finally:
            execution.messages = conversation.wire()
            if agent.shares_state:
                execution.state = state.value
        return ending_of(outcome)

    def _state_to_begin_with(self, execution: Execution) -> Any:
        """The client's state; the thread's where the client sent none; else the agent's own."""
        given = execution.input.state
        if not given and execution.thread is not None:
            given = execution.thread.state
        return self.agent.state if not given and isinstance(self.agent.state, dict) else given

    def _conversation(self, execution: Execution) -> Conversation:
        messages = execution.input.messages
        opened = unsealed(
            messages,
            self._sealer,
            tenant=execution.tenant,
            thread_id=execution.input.thread_id,
            warn=execution.warn,
        )
        return Conversation(opened, messages)

    def _toolset(self, execution: Execution) -> Toolset:
        tools = self.agent.server_tools
        limits = Limits(
            seconds=self.agent.time_limit or self._limits.seconds,
            characters=self.agent.result_limit or self._limits.characters,
        )
        callees = {tool.name: FunctionCallee(tool, limits) for tool in tools}
        clients = frozenset(each.name for each in execution.input.tools or ()) - set(callees)
        return Toolset(
            callees=callees,
            declarations=[tool.declaration() for tool in tools],
            approvals={tool.name: tool for tool in tools if tool.requires_approval is not False},
            clients=clients,
        )

    def _reasoning(self, execution: Execution) -> ReasoningPolicy | None:
        if self.agent.reasoning == "full":
            return None

        async def summarise(text: str) -> str:
            return await self._summary(execution, text)

        return ReasoningPolicy(
            self.agent.reasoning,
            self._sealer,
            tenant=execution.tenant,
            thread_id=execution.input.thread_id,
            summarise=self.agent.summarise or summarise,
        )

    async def _summary(self, execution: Execution, text: str) -> str:
        """The model's own summary of its reasoning, made in a turn of which nothing is sent."""
        messages: list[Message] = [
            SystemMessage(id="summary-instructions", content=SUMMARY_INSTRUCTIONS),
            UserMessage(id="summary-text", content=text),
        ]
        input = RunAgentInput(
            thread_id=execution.input.thread_id, run_id=execution.input.run_id, messages=messages, tools=[]
        )
        options = GenerationOptions(sampling=SamplingParams(temperature=0.0, max_tokens=SUMMARY_TOKENS), thinking=False)
        turn = await TurnTaker(self._model, execution, lambda event: None).take(input, options)
        return turn.text.strip()


def _schema(agent: Agent) -> type[BaseModel] | None:
    return agent.state if isinstance(agent.state, type) else None


def effective_options(agent: Agent, options: GenerationOptions) -> GenerationOptions:
    """The request's options, completed with the agent's own settings."""
    changes: dict[str, Any] = {}
    if agent.sampling is not None:
        neutral = SamplingParams()
        given = options.sampling
        changes["sampling"] = msgspec.structs.replace(
            given,
            **{
                name: getattr(agent.sampling, name)
                for name in SamplingParams.__struct_fields__
                if getattr(given, name) == getattr(neutral, name)
            },
        )
    if options.thinking is None and agent.thinking is not None:
        changes["thinking"] = agent.thinking
    return msgspec.structs.replace(options, **changes) if changes else options


def serve_agents(
    agents: Sequence[Agent], model: LanguageModel, *, sealer: Sealer | None = None, limits: Limits | None = None
) -> Mapping[str, ServedAgent]:
    """Agents by name, for the run manager. The first one also answers as "default" if none is called that; with no
    agent at all the default one serves the model as it is."""
    shared = sealer or Sealer()
    served = {agent.name: ServedAgent(agent, model, sealer=shared, limits=limits) for agent in agents}
    if len(served) != len(agents):
        raise ValueError("two agents have the same name")
    if "default" not in served:
        first = agents[0] if agents else Agent(name="default")
        served["default"] = ServedAgent(first, model, sealer=shared, limits=limits)
    return served
