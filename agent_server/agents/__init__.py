"""Agents: instructions, tools and the loop that drives a model with them."""

from agent_server.agents.a2ui_settings import A2ui
from agent_server.agents.agent import Agent
from agent_server.agents.compaction_settings import Compaction, CompactionMode
from agent_server.agents.loading import LoadError, load_agents, load_objects
from agent_server.agents.mcp.mcp_server import ClientCredentials, McpServer, UserConsent
from agent_server.agents.sealing import Sealer
from agent_server.agents.served import ServedAgent, serve_agents
from agent_server.agents.server_tools import Tool, ToolFault, tool
from agent_server.agents.state import PredictState
from agent_server.agents.tool_context import InputRequired, ToolContext
from agent_server.settings import ToolLimits
from agent_server.user import Forward, User

__all__ = [
    "A2ui",
    "Agent",
    "ClientCredentials",
    "Compaction",
    "CompactionMode",
    "Forward",
    "InputRequired",
    "LoadError",
    "McpServer",
    "PredictState",
    "Sealer",
    "ServedAgent",
    "Tool",
    "ToolContext",
    "ToolFault",
    "ToolLimits",
    "User",
    "UserConsent",
    "load_agents",
    "load_objects",
    "serve_agents",
    "tool",
]
