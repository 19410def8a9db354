"""The answer to `GET /agui/capabilities`: what the agent and its loaded model can do, and no more."""

from __future__ import annotations

from typing import Literal

from ag_ui.core import (
    AgentCapabilities,
    ExecutionCapabilities,
    HumanInTheLoopCapabilities,
    IdentityCapabilities,
    MultiAgentCapabilities,
    MultimodalCapabilities,
    MultimodalInputCapabilities,
    MultimodalOutputCapabilities,
    OutputCapabilities,
    ReasoningCapabilities,
    StateCapabilities,
    SubagentInfo,
    ToolsCapabilities,
    TransportCapabilities,
)

from agent_server.agents.agent import Agent
from agent_server.agents.compaction_settings import Compaction
from agent_server.agents.turn import LanguageModel
from agent_server.engine_protocol.protocol import EngineError
from agent_server.models.prompting.prompt import Prompts
from agent_server.version import version

SERVER_TYPE = "agent-server"


def capabilities_of(agent: Agent, model: LanguageModel, compaction: Compaction | None = None) -> AgentCapabilities:
    """The agent's capabilities. Those that depend on a model that is not ready yet are left out (which the protocol
    reads as unknown), not denied. compaction: the settings for its long conversations."""
    approvals = [tool for tool in agent.server_tools if tool.requires_approval is not False]
    subagents = [SubagentInfo(name=each.name, description=each.description or None) for each in agent.subagents]
    reasoning = _format_part(model, "reasoning")
    tools, prompts = _format_part(model, "tools"), _prompts(model)
    parallel: bool | None = None
    if prompts is not None:  # calls are parallel if the model's template renders more than one in a turn
        analysis = prompts.analysis(True)
        parallel = analysis is not None and analysis.capabilities.parallel_calls
    # The media that the model accepts; others are refused, except for documents, whose text it gets. Images and audio
    # are unknown while the model is loading.
    accepted = None if prompts is None else model.engine.info.placeholders
    image, audio = (None if accepted is None else kind in accepted for kind in ("image", "audio"))
    return AgentCapabilities(
        identity=IdentityCapabilities(
            name=agent.name,
            type=SERVER_TYPE,
            description=agent.description or None,
            version=version(),
            metadata={"model": model.name},
        ),
        transport=TransportCapabilities(streaming=True, websocket=True, http_binary=True, resumable=True),
        tools=ToolsCapabilities(
            supported=tools,
            items=[tool.declaration() for tool in agent.server_tools] or None,
            parallel_calls=parallel,
            client_provided=tools,
        ),
        output=OutputCapabilities(structured_output=_enforces(model)),
        state=StateCapabilities(
            snapshots=agent.shares_state, deltas=agent.shares_state, memory=False, persistent_state=agent.shares_state
        ),
        multi_agent=MultiAgentCapabilities(
            supported=bool(subagents), delegation=bool(subagents), handoffs=False, subagents=subagents or None
        ),
        reasoning=ReasoningCapabilities(
            supported=reasoning if agent.reasoning == "full" or not reasoning else agent.reasoning == "summary",
            streaming=reasoning and agent.reasoning == "full" if reasoning is not None else None,
            encrypted=agent.reasoning != "full",
        ),
        multimodal=MultimodalCapabilities(
            input=MultimodalInputCapabilities(image=image, audio=audio, video=False, pdf=True, file=True),
            output=MultimodalOutputCapabilities(image=False, audio=False),
        ),
        custom={
            # unless a request opts out
            "constrainedToolCalls": model.output.constrain_tools and _enforces(model) is True,
            **({"compaction": compaction.mode} if compaction is not None else {}),
        },
        execution=ExecutionCapabilities(code_execution=False, max_iterations=agent.max_steps),
        human_in_the_loop=HumanInTheLoopCapabilities(
            supported=True,
            approvals=bool(approvals),
            interrupts=bool(agent.server_tools),
            approve_with_edits=any(tool.approval_edits for tool in approvals),
            interventions=False,
            feedback=False,
        ),
    )


def _enforces(model: LanguageModel) -> bool | None:
    """Whether the engine can constrain the output to a grammar; None while it is not loaded."""
    try:
        return model.engine.info.supports_constraints
    except EngineError:
        return None


def _prompts(model: LanguageModel) -> Prompts | None:
    """The prompt builder; None while the model is loading, or if it failed to load."""
    try:
        return model.prompts
    except EngineError:
        return None


def _format_part(model: LanguageModel, part: Literal["tools", "reasoning"]) -> bool | None:
    """Whether the model's output format has this part; None while the model is not loaded."""
    prompts = _prompts(model)
    if prompts is None:
        return None
    format = prompts.output_format(part == "tools")
    return (format.tools if part == "tools" else format.reasoning) is not None
