"""What an agent says of an MCP server. The client behind it (`mcp.py`) takes a quarter of the server's start to import,
so it is loaded where an agent has such a server."""

from __future__ import annotations

import msgspec


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server: `command` for stdio (the program and its arguments) or `url` for streamable HTTP.

    env: added to the little that the program inherits anyway; headers: sent with every request. only: names of the
    tools to offer; none means all. prefix: put before the tools' names. requires_approval: a person is asked before
    any call (True) or before calls of these tools.
    """

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    env: dict[str, str] = {}
    cwd: str | None = None
    headers: dict[str, str] = {}
    only: frozenset[str] = frozenset()
    prefix: str = ""
    requires_approval: bool | frozenset[str] = False
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.name}: give either a command or a url")
