"""MCP servers as sources of tools."""

from __future__ import annotations

import msgspec


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """One MCP server; give `command` (stdio) or `url` (streamable HTTP)."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
