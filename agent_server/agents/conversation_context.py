"""What one conversation within a run has: its parts, and the tools that the model may call in it. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
from ag_ui.core import Context
from ag_ui.core import Tool as ToolDeclaration

from agent_server.agents.checkpoints import Checkpointer
from agent_server.agents.conversation import Conversation
from agent_server.agents.guardrails import Guards
from agent_server.agents.running import Callee, ToolConcurrency
from agent_server.agents.server_tools import Tool
from agent_server.agents.state import SharedState
from agent_server.agents.surfaces import Surfaces
from agent_server.agents.tool_search import ToolIndex
from agent_server.runs import Recorder, RunContext
from events.vocabulary import Event

if TYPE_CHECKING:
    from agent_server.agents.mcp.mcp_tools import McpTools


class Toolset(msgspec.Struct, frozen=True, kw_only=True):
    """What the model may call. declarations: of the server's tools, for the prompt. approvals: tools that may need a
    person's yes. early: names of those that may begin before their message is done. clients: names of the tools that
    the client runs. deferred: those that the prompt does not declare, to be searched. context: the client's, as
    the model is told it."""

    callees: Mapping[str, Callee]
    declarations: Sequence[ToolDeclaration]
    approvals: Mapping[str, Tool] = {}
    early: frozenset[str] = frozenset()
    clients: frozenset[str] = frozenset()
    deferred: ToolIndex | None = None
    context: Sequence[Context] = ()


class ConversationContext(msgspec.Struct, frozen=True, kw_only=True):
    """One conversation within a run: the run's own, or a subagent's. emit: where its events go (a subagent's are marked
    on the way). may_ask: a person can be asked, since what is asked is stored. surfaces: the run's. places: the
    server's, for tool calls. checkpointer: None for a subagent, which
    is part of a call. guards: what reads it; None if nothing does. requested_mcp: connections to
    servers that the request names, which end with the run."""

    context: RunContext
    recorder: Recorder
    conversation: Conversation
    state: SharedState
    emit: Callable[[Event], None]
    may_ask: bool
    surfaces: Surfaces
    places: ToolConcurrency
    checkpointer: Checkpointer | None = None
    guards: Guards | None = None
    requested_mcp: list[McpTools] = []
