"""Runs shared between gateways through Redis: read, steered and listed from any of them. One gateway needs none."""

from agent_server.runs.sharing.gateway import Gateway
from agent_server.runs.sharing.interfaces import AnyRun, Sharing
from agent_server.runs.sharing.link import RedisLink
from agent_server.runs.sharing.remote import RemoteRun

__all__ = ["AnyRun", "Gateway", "RedisLink", "RemoteRun", "Sharing"]
