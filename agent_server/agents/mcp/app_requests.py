"""Requests of an MCP app's page to its server, which involve neither threads and their locks nor the model.

Only configured servers can be reached, by their names in the settings. A page may read the resources that its server
declares as pages, and call the tools that its server allows for pages. A call that needs a person's approval is
refused, since no one can be asked outside of a run. Errors of the server are logged, and the page only learns that the
request failed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import TypeVar

import msgspec
from mcp import MCPError
from mcp_types import BlobResourceContents, CallToolResult

from adapters.forwarded_props import ProxiedRequest
from agent_server.agents.mcp.apps import SCHEME, app_of
from agent_server.agents.mcp.consent import ConsentRequired
from agent_server.agents.mcp.errors import reason_of
from agent_server.agents.mcp.mcp_callee import argument_problem
from agent_server.agents.mcp.mcp_server import McpServer
from agent_server.agents.mcp.mcp_tools import McpConnections, needs_approval
from agent_server.agents.mcp.sessions import McpConnection, ToolRequest
from agent_server.user import User

logger = logging.getLogger("agent_server.mcp")
T = TypeVar("T")

Result = dict[str, object]

METHODS = ("resources/read", "tools/call", "ping", "notifications/message")
PAGE_BYTES = 4 * 2**20
AT_ONCE = 16
"""Concurrent requests of one tenant's pages; they do not count towards the limits of runs."""
APPROVAL = "This call needs a person's approval, and a page cannot ask for it. Make the call in the conversation."


class PageRefused(Exception):
    """A page's request is refused. The message is a sentence for the page."""


class AppRequests:
    """Answers the requests of one agent's apps. seconds: the time limit of a request, for servers without their own."""

    def __init__(self, servers: Sequence[McpServer], connections: McpConnections, seconds: float) -> None:
        self._servers = {server.name: server for server in servers}
        self._connections = connections
        self._seconds = seconds
        self._active: Counter[str] = Counter()

    async def answer(self, request: ProxiedRequest, user: User) -> Result:
        """Return the MCP result; raises only if cancelled. A refused call is a result with `isError`, as pages expect;
        any other refusal is `{"error"}`."""
        tenant = user.tenant
        if self._active[tenant] >= AT_ONCE:
            return refusal(request, f"{AT_ONCE} requests of apps are running already; try again later.")
        self._active[tenant] += 1
        try:
            if request.method not in METHODS:
                raise PageRefused(f"The method must be one of {', '.join(METHODS)}.")
            server = self._servers.get(request.server)
            if server is None:
                raise PageRefused("There is no MCP server with that id.")
            connection = self._connections.connection_for(server, user)
            if request.method == "resources/read":
                return await self._read(connection, request.params.get("uri"))
            if request.method == "tools/call":
                return await self._call(connection, request.params.get("name"), request.params.get("arguments"))
            return {}
        except PageRefused as error:
            return refusal(request, str(error))
        finally:
            self._active[tenant] -= 1
            if not self._active[tenant]:
                del self._active[tenant]

    async def _call(self, connection: McpConnection, name: object, raw_arguments: object) -> Result:
        arguments = raw_arguments if isinstance(raw_arguments, dict) else {}
        listing = await self._within(connection, connection.tools())
        tool = next((each.tool for each in listing.tools if each.tool.name == name), None)
        # Refuse the call unless pages may make it.
        if tool is None or not app_of(tool).for_app:
            raise PageRefused("The server offers no such tool to apps.")
        if needs_approval(connection.server, tool):
            raise PageRefused(APPROVAL)
        if (problem := await argument_problem(arguments, tool.input_schema)) is not None:
            raise PageRefused(problem)
        call = ToolRequest(name=tool.name, arguments=arguments)
        result, _ = await self._within(connection, connection.call(call))
        if not isinstance(result, CallToolResult):
            raise PageRefused(f"The tool {tool.name} asks a person, and an app's page cannot answer it.")
        wire: Result = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        if len(msgspec.json.encode(wire)) > PAGE_BYTES:
            raise PageRefused(f"The result has more than {PAGE_BYTES} bytes.")
        return wire

    async def _read(self, connection: McpConnection, uri: object) -> Result:
        if not isinstance(uri, str) or not uri.startswith(SCHEME):
            raise PageRefused(f"Only {SCHEME} resources can be read.")
        listing = await self._within(connection, connection.tools())
        if uri not in {app_of(each.tool).uri for each in listing.tools}:
            raise PageRefused("The server declares no app with that URI.")
        result = await self._within(connection, connection.read(uri))
        contents: list[Result] = []
        for each in result.contents:
            page: Result = each.model_dump(mode="json", by_alias=True, exclude_none=True)
            kind = (each.mime_type or "").partition(";")[0].strip().lower()
            if kind != "text/html":
                raise PageRefused("An app is an HTML page; the server sent something else.")
            if isinstance(each, BlobResourceContents):  # sent on as text, since clients decode base64 as Latin-1
                try:
                    page["text"] = base64.b64decode(each.blob, validate=True).decode()
                except (binascii.Error, UnicodeDecodeError):
                    raise PageRefused("The app is not text in UTF-8.") from None
                del page["blob"]
            contents.append(page)
        if len(msgspec.json.encode(contents)) > PAGE_BYTES:
            raise PageRefused(f"The app has more than {PAGE_BYTES} bytes.")
        return {"contents": contents}

    async def _within(self, connection: McpConnection, work: Awaitable[T]) -> T:
        """Await a server's answer within its time limit. Raises PageRefused."""
        name, seconds = connection.server.name, connection.server.time_limit or self._seconds
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            logger.warning("MCP server %s: no answer to a page within %g s", name, seconds)
            raise PageRefused(f"The MCP server {name} did not answer within {seconds:g} s.") from None
        except ConsentRequired:
            raise PageRefused(f"The user must sign in to {name} in the conversation first.") from None
        except MCPError as error:
            logger.warning("MCP server %s refused a page's request: %s", name, error.error.message[:500])
            raise PageRefused(f"The MCP server {name} refused this.") from None
        except Exception as error:
            logger.warning("MCP server %s failed during a page's request: %s", name, reason_of(error))
            raise PageRefused(f"The MCP server {name} did not answer.") from None


def refusal(request: ProxiedRequest, sentence: str) -> Result:
    """Return the answer to a refused request."""
    if request.method == "tools/call":
        return {"isError": True, "content": [{"type": "text", "text": sentence}]}
    return {"error": sentence}
