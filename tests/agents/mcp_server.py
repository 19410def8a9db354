"""An MCP server for tests: `python mcp_server.py PIDFILE [PORT]`; stdio without a port, streamable HTTP with one."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent, ToolAnnotations

server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look(place: str) -> str:
    """Look somewhere, and change nothing."""
    return f"seen: {place}"


@server.tool()
async def hang(ctx: Context) -> str:
    """Say that the work has begun, and never end."""
    await ctx.report_progress(1, 10, "begun")
    await asyncio.Event().wait()
    return ""


def stumble() -> str:
    """Take the whole server down at the first call of all."""
    marker = Path(sys.argv[1] + ".stumbled")
    if marker.exists():
        return "on my feet"
    marker.write_text("")
    os._exit(1)


server.add_tool(stumble, name="stumble", annotations=ToolAnnotations(idempotent_hint=True))
server.add_tool(stumble, name="stumble_badly")


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no good")


@server.tool()
def picture() -> list[TextContent | ImageContent]:
    """A picture."""
    return [TextContent(type="text", text="a dot"), ImageContent(type="image", data="AAAA", mime_type="image/png")]


@server.tool()
def traced(ctx: Context) -> str:
    """The trace that the call belongs to, as it was told with it."""
    return str((ctx.request_context.meta or {}).get("traceparent"))


@server.tool()
def environment() -> str:
    """What the server was given."""
    return " ".join(sorted(os.environ))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(str(os.getpid()))
    if len(sys.argv) > 2:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run(transport="stdio")
