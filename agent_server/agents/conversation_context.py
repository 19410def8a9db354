"""What one conversation within a run owns, and the tools that the model may call in it. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from ag_ui.core import Context
from ag_ui.core import Tool as ToolDeclaration

from agent_server.agents.checkpoints import Checkpointer
from agent_server.agents.conversation import Conversation
from agent_server.agents.guardrails import Guards
from agent_server.agents.running import Callee, ToolConcurrency
from agent_server.agents.server_tools import Tool
from agent_server.agents.state import SharedState
from agent_server.agents.tool_search import ToolIndex
from agent_server.runs import RunContext
from events.vocabulary import Event


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that the model may call.

    declarations: of the server's tools, for the prompt. approvals: tools that may need a person's approval. early:
    names of tools whose calls may start before their message is complete. clients: names of the tools that the client
    runs. deferred: tools that the prompt does not declare and the model must search for. context: the client's context
    entries that the prompt includes.
    """

    callees: Mapping[str, Callee] = {}
    declarations: Sequence[ToolDeclaration] = ()
    approvals: Mapping[str, Tool] = {}
    early: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    deferred: ToolIndex | None = None
    context: Sequence[Context] = ()


class ConversationContext(msgspec.Struct, frozen=True, kw_only=True):
    """What one conversation within a run owns: the run's own conversation, or a subagent's.

    run: what is fixed for the run. emit: sends an event (a subagent's are marked on the way). may_ask: whether a person
    can be asked, which needs a stored thread. concurrency: the server's limits for tool calls. checkpointer: None for a
    subagent, whose run is part of a call. guards: None if there are none.
    """

    run: RunContext
    conversation: Conversation
    state: SharedState
    emit: Callable[[Event], None]
    may_ask: bool
    concurrency: ToolConcurrency
    tools: Toolset = Toolset()
    checkpointer: Checkpointer | None = None
    guards: Guards | None = None
