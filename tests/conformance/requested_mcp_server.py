"""An MCP server that notes who asks: `python requested_mcp_server.py PORT LOG`.

LOG gets a line for each request: its path and its Authorization. /away?PORT redirects to another origin.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from starlette.types import ASGIApp, Receive, Scope, Send

PORT, LOG = int(sys.argv[1]), Path(sys.argv[2])
server = MCPServer("test")


@server.tool()
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def search(query: str) -> str:
    """Search the web."""
    return f"One page about {query}."


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("no good")


def note(line: str) -> None:
    with LOG.open("a") as log:
        log.write(line)


def noting(app: ASGIApp) -> ASGIApp:
    async def noted(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            note(f"{scope['path']} {headers.get(b'authorization', b'-').decode()}\n")
            if scope["path"] == "/away":
                where = f"http://localhost:{scope['query_string'].decode()}/mcp".encode()
                await send({"type": "http.response.start", "status": 307, "headers": [(b"location", where)]})
                await send({"type": "http.response.body", "body": b""})
                return
        await app(scope, receive, send)

    return noted


if __name__ == "__main__":
    uvicorn.run(noting(server.streamable_http_app()), host="127.0.0.1", port=PORT, log_level="error")
