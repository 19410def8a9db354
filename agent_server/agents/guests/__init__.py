"""Agents of other frameworks and remote agents, served as agents of this server."""

from agent_server.agents.guests.finding import Named, load_named, serve_named
from agent_server.agents.guests.guest import Guest, GuestError
from agent_server.agents.guests.host import HostedAgent
from agent_server.agents.guests.remote_agent import RemoteAgent

__all__ = ["Guest", "GuestError", "HostedAgent", "Named", "RemoteAgent", "load_named", "serve_named"]
