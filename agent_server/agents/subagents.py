"""Agents as tools of other agents: a call runs the other agent's loop, and its events are attributed to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from ag_ui.core import Message, Tool, UserMessage

from adapters.errors import RequestError
from agent_server.agents.agent import Agent
from agent_server.agents.conversation import Conversation
from agent_server.agents.loop import Outcome
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool as ServerTool
from agent_server.agents.server_tools import capped
from agent_server.agents.tool_context import ToolContext
from agent_server.engine_protocol.protocol import EngineError
from events.vocabulary import AttributableEvent, Event, SubagentError, SubagentFinished, SubagentStarted

Emit = Callable[[Event], None]
RunNested = Callable[[Agent, Conversation, Emit], Awaitable[Outcome]]
PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"task": {"type": "string", "description": "What to do, with everything needed to do it."}},
    "required": ["task"],
    "additionalProperties": False,
}


def declaration(agent: Agent) -> Tool:
    """The agent as a tool that takes a task."""
    return Tool(name=agent.name, description=agent.description or f"Ask the agent {agent.name}.", parameters=PARAMETERS)


def attributed(event: Event, subagent_run_id: str) -> Event:
    """Attribute an event to the subagent; one that is attributed already belongs to a nested subagent."""
    if isinstance(event, AttributableEvent) and event.subagent_run_id is None:
        return msgspec.structs.replace(event, subagent_run_id=subagent_run_id)
    if isinstance(event, SubagentStarted) and event.parent_subagent_run_id is None:
        return msgspec.structs.replace(event, parent_subagent_run_id=subagent_run_id)
    return event


def is_repeatable(agent: Agent) -> bool:
    """Whether everything that an agent may do is safe to repeat."""
    own = all(each.idempotent or each.early for each in agent.server_tools)
    return own and not agent.mcp_servers and all(is_repeatable(each) for each in agent.subagents)


class SubagentCallee:
    """Calls of one agent by another. add_messages: receives the subagent's messages as clients saw them."""

    checks = False
    early = False
    concurrency_key = ""
    at_once: int | None = None
    retry_approval: ServerTool | None = None

    def __init__(
        self,
        agent: Agent,
        run: RunNested,
        emit: Emit,
        new_id: Callable[[str], str],
        add_messages: Callable[[list[Message]], None],
        limit: int,
    ) -> None:
        self._agent = agent
        self._run = run
        self._emit = emit
        self._new_id = new_id
        self._add_messages = add_messages
        self._limit = limit
        self.repeatable = is_repeatable(agent)

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        task = arguments.get("task")
        if not isinstance(task, str) or not task.strip():
            return failure("Invalid arguments: task must say what to do.")
        run_id = self._new_id("subagent")
        self._emit(
            SubagentStarted(
                subagent_run_id=run_id,
                name=self._agent.name,
                description=self._agent.description or None,
                parent_tool_call_id=context.tool_call_id,
            )
        )
        conversation = Conversation([UserMessage(id=self._new_id("msg"), content=task)], [])
        try:
            outcome = await self._run(self._agent, conversation, lambda event: self._emit(attributed(event, run_id)))
        except (EngineError, RequestError) as error:
            self._emit(SubagentError(subagent_run_id=run_id, message=error.message, code=error.kind))
            return failure(f"{self._agent.name} failed: {error.message}")
        finally:
            self._add_messages([each.model_copy(update={"subagent_run_id": run_id}) for each in conversation.visible])
        self._emit(SubagentFinished(subagent_run_id=run_id, result=outcome.text))
        return CallResult(content=capped(outcome.text, self._limit))
