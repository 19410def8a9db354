"""The inference server that speaks AG-UI natively.

Users import from here alone: `from agent_server import Agent, tool, create_app`. What is not used is not loaded.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agent_server._names import require_own

if TYPE_CHECKING:
    from agent_server.agents import (
        A2ui,
        Agent,
        ClientCredentials,
        Compaction,
        Forward,
        InputRequired,
        McpServer,
        PredictState,
        Tool,
        ToolContext,
        ToolFault,
        ToolLimits,
        User,
        UserConsent,
        tool,
    )
    from agent_server.agents.generative_ui import Component, Surface, bound, each, event
    from agent_server.agents.guests import GuestError, RemoteAgent
    from agent_server.agents.guests.in_process import openai_client as openai_client
    from agent_server.agents.guests.in_process import pydantic_ai_model as pydantic_ai_model
    from agent_server.agents.guests.langchain_model import ServerModel as ServerModel
    from agent_server.http.app import create_app
    from agent_server.settings import Settings

__all__ = [
    "A2ui",
    "Agent",
    "ClientCredentials",
    "Compaction",
    "Component",
    "Forward",
    "GuestError",
    "InputRequired",
    "McpServer",
    "PredictState",
    "RemoteAgent",
    "Settings",
    "Surface",
    "Tool",
    "ToolContext",
    "ToolFault",
    "ToolLimits",
    "User",
    "UserConsent",
    "bound",
    "create_app",
    "each",
    "event",
    "tool",
]
_SURFACES = dict.fromkeys(("Component", "Surface", "bound", "each", "event"), "agent_server.agents.generative_ui")
_GUESTS = dict.fromkeys(("GuestError", "RemoteAgent"), "agent_server.agents.guests")
_ELSEWHERE = {"create_app": "agent_server.http.app", "Settings": "agent_server.settings", **_SURFACES, **_GUESTS}

_OPTIONAL = {
    "ServerModel": "agent_server.agents.guests.langchain_model",
    "openai_client": "agent_server.agents.guests.in_process",
    "pydantic_ai_model": "agent_server.agents.guests.in_process",
}
"""Names that need an extra; they are not in `__all__`, so that `import *` works without."""

require_own("events", "adapters")


def __getattr__(name: str) -> Any:
    if name in _OPTIONAL:
        return getattr(importlib.import_module(_OPTIONAL[name]), name)
    if name not in __all__:
        raise AttributeError(f"module 'agent_server' has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "agent_server.agents")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_OPTIONAL})
