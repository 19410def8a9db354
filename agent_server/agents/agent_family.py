"""What an agent has together with those that it may call: models, guards, MCP servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from agent_server.agents.agent import Agent
from agent_server.agents.guardrails import Guards, as_guard
from agent_server.agents.mcp.mcp_server import McpServer
from agent_server.agents.sealing import Sealer
from agent_server.agents.turn import LanguageModel
from agent_server.runs.store import Store
from agent_server.settings import ToolLimits

if TYPE_CHECKING:
    from agent_server.agents.mcp.app_requests import AppRequests
    from agent_server.agents.mcp.mcp_tools import McpConnections, McpTools


def model_of(agent: Agent, models: Mapping[str, LanguageModel]) -> LanguageModel:
    """The model that an agent names; the first, "", where it names none. Raises ValueError for an unknown one."""
    for each in family(agent):
        if each.model not in models:
            known = ", ".join(name for name in models if name) or "one, which has no name of its own here"
            raise ValueError(f"agent {each.name}: there is no model {each.model}; the models are {known}")
    return models[agent.model]


def guards_of(agent: Agent, others: Guards | None) -> Guards | None:
    """The guards of whoever calls an agent, and its own; None if there are none."""
    if not agent.guards:
        return others
    return (others or Guards(())).and_also(as_guard(each) for each in agent.guards)


def family(agent: Agent) -> list[Agent]:
    """The agent and every agent it may call, directly or not."""
    return [agent, *(each for child in agent.subagents for each in family(child))]


def mcp_of(agent: Agent, shared: McpConnections | None, limits: ToolLimits) -> tuple[dict[str, McpTools], AppRequests]:
    """The MCP tools of an agent and of those that it may call, by their names, and what answers the tools' pages. The
    client is imported here, because most servers have no such tools. ValueError for two servers of one name."""
    from agent_server.agents.mcp.app_requests import AppRequests
    from agent_server.agents.mcp.mcp_tools import McpConnections, McpTools

    connections = shared or McpConnections()
    distinct: list[McpServer] = []
    for server in (server for each in family(agent) for server in each.mcp_servers):
        connections.add(server)
        if server not in distinct:
            distinct.append(server)
    names = [server.name for server in distinct]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"agent {agent.name}: more than one MCP server is called {sorted(twice)[0]}")
    tools = {each.name: McpTools(each.mcp_servers, connections) for each in family(agent) if each.mcp_servers}
    return tools, AppRequests(distinct, connections, limits.seconds)


def mcp_connections(
    agents: Sequence[Agent], store: Store | None, sealer: Sealer, public_url: str
) -> McpConnections | None:
    """What agents share of MCP servers; None if they name none. store, sealer, public_url: for what users grant there,
    who come back to this server's URL."""
    if not any(each.mcp_servers for agent in agents for each in family(agent)):
        return None
    from agent_server.agents.mcp.consent import CALLBACK_PATH, Consents
    from agent_server.agents.mcp.mcp_tools import McpConnections

    return McpConnections(None if store is None else Consents(store, sealer, public_url.rstrip("/") + CALLBACK_PATH))
