"""An MCP server over standard input and output, with one tool."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("paint")


@server.tool()
def mix(one: str, other: str) -> str:
    """Mix two colours of paint."""
    return f"{one} and {other} give purple."


if __name__ == "__main__":
    server.run("stdio")
