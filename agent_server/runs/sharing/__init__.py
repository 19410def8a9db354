"""Runs shared between gateways through Redis: any gateway can read, control and list them. One gateway needs no
Redis."""

from agent_server.runs.sharing.gateway import Gateway
from agent_server.runs.sharing.interfaces import AnyRun, Sharing
from agent_server.runs.sharing.link import RedisLink
from agent_server.runs.sharing.remote import RemoteRun

__all__ = ["AnyRun", "Gateway", "RedisLink", "RemoteRun", "Sharing"]
