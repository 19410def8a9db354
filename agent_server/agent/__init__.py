"""Agents: instructions, tools and the loop that drives a model with them."""

from agent_server.agent.a2ui_settings import A2ui
from agent_server.agent.agent import Agent
from agent_server.agent.compaction_settings import Compaction, CompactionMode
from agent_server.agent.loading import LoadError, load_agents, load_objects
from agent_server.agent.mcp_server import McpServer
from agent_server.agent.sealing import Sealer
from agent_server.agent.served import ServedAgent, serve_agents
from agent_server.agent.server_tools import Tool, ToolFault, tool
from agent_server.agent.state import PredictState
from agent_server.agent.tool_context import InputRequired, ToolContext
from agent_server.settings import ToolLimits

__all__ = [
    "A2ui",
    "Agent",
    "Compaction",
    "CompactionMode",
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
    "load_agents",
    "load_objects",
    "serve_agents",
    "tool",
]
