"""The inference server that speaks AG-UI natively.

Users import from here alone: `from agent_server import Agent, tool, create_app`.
"""

from __future__ import annotations

from agent_server._names import require_own

require_own("events", "adapters")
