"""What the page of an MCP app asks of its server: outside of threads, their locks, and the model.

Only configured servers are asked, by the names that they have in the settings; a page reads what its server declared as
a page, and calls what its server lets pages call. A call that needs a person's agreement is refused: no one can be
asked outside of a run. What went wrong upstream is logged, and the page is told that something did.
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
from mcp_types import BlobResourceContents, CallToolResult, TextResourceContents

from adapters.forwarded_props import ProxiedRequest
from agent_server.agents.mcp.apps import SCHEME, app_of
from agent_server.agents.mcp.consent import ConsentRequired
from agent_server.agents.mcp.mcp_server import McpServer
from agent_server.agents.mcp.mcp_tools import McpConnections, asks, misfit
from agent_server.agents.mcp.sessions import McpConnection, ToolRequest, reason_of
from agent_server.user import User

logger = logging.getLogger("agent_server.mcp")
T = TypeVar("T")

Result = dict[str, object]


METHODS = ("resources/read", "tools/call", "ping", "notifications/message")


PAGE_BYTES = 4 * 2**20


AT_ONCE = 16
"""Requests of one tenant's pages at a time; they count for none of the limits on runs."""


APPROVAL = "This call needs a person's agreement, and a page cannot ask for it. Ask for it in the conversation."


class PageRefused(Exception):
    """Why a page gets no answer, in a sentence for it."""


class AppRequests:
    """Answers the pages of one agent's apps. seconds: of one request, for servers that set none."""

    def __init__(self, servers: Sequence[McpServer], connections: McpConnections, seconds: float) -> None:
        self._servers = {server.name: server for server in servers}
        self._connections = connections
        self._seconds = seconds
        self._going_on: Counter[str] = Counter()

    async def answer(self, request: ProxiedRequest, user: User) -> Result:
        """The MCP result; never raises but for cancellation. A refused call is a result with `isError`, as a page
        expects it; what else is refused is `{"error"}`."""
        tenant = user.tenant
        if self._going_on[tenant] >= AT_ONCE:
            return refusal(request, f"More than {AT_ONCE} requests of apps are going on; try again later.")
        self._going_on[tenant] += 1
        try:
            return await self._answer(request, user)
        except PageRefused as error:
            return refusal(request, str(error))
        finally:
            self._going_on[tenant] -= 1
            if not self._going_on[tenant]:
                del self._going_on[tenant]

    async def _answer(self, request: ProxiedRequest, user: User) -> Result:
        if request.method not in METHODS:
            raise PageRefused(f"The method must be one of {', '.join(METHODS)}.")
        server = self._servers.get(request.server)
        if server is None:
            raise PageRefused("There is no MCP server of that id here.")
        connection = self._connections.of(server, user)
        if request.method == "resources/read":
            return await self._read(connection, request.params.get("uri"))
        if request.method == "tools/call":
            name, given = request.params.get("name"), request.params.get("arguments")
            arguments = given if isinstance(given, dict) else {}
            listing = await self._within(connection, connection.tools())
            tool = next((each.tool for each in listing.tools if each.tool.name == name), None)
            # PageRefused unless a page may make this call.
            if tool is None or not app_of(tool).for_app:
                raise PageRefused("The server offers no such tool to apps.")
            if asks(connection.server, tool):
                raise PageRefused(APPROVAL)
            if (problem := misfit(arguments, tool.input_schema)) is not None:
                raise PageRefused(problem)
            assert tool is not None
            call = ToolRequest(name=tool.name, arguments=arguments)
            result, _ = await self._within(connection, connection.call(call))
            if not isinstance(result, CallToolResult):
                raise PageRefused(f"The tool {tool.name} asks a person, and an app's page cannot answer it.")
            wire: Result = result.model_dump(mode="json", by_alias=True, exclude_none=True)
            if len(msgspec.json.encode(wire)) > PAGE_BYTES:
                raise PageRefused(f"The result has more than {PAGE_BYTES} bytes.")
            return wire
        return {}

    async def _read(self, connection: McpConnection, uri: object) -> Result:
        if not isinstance(uri, str) or not uri.startswith(SCHEME):
            raise PageRefused(f"Only {SCHEME} resources can be read.")
        listing = await self._within(connection, connection.tools())
        if uri not in {app_of(each.tool).uri for each in listing.tools}:
            raise PageRefused("The server declares no app with that URI.")
        result = await self._within(connection, connection.read(uri))
        contents = [_page(each) for each in result.contents]
        if len(msgspec.json.encode(contents)) > PAGE_BYTES:
            raise PageRefused(f"The app has more than {PAGE_BYTES} bytes.")
        return {"contents": contents}

    async def _within(self, connection: McpConnection, work: Awaitable[T]) -> T:
        """A server's answer within the time that it has."""
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
            logger.warning("MCP server %s refused what a page asked: %s", name, error.error.message[:500])
            raise PageRefused(f"The MCP server {name} refused this.") from None
        except Exception as error:
            logger.warning("MCP server %s failed under a page: %s", name, reason_of(error))
            raise PageRefused(f"The MCP server {name} did not answer.") from None


def refusal(request: ProxiedRequest, sentence: str) -> Result:
    """What a page gets instead of an answer."""
    if request.method == "tools/call":
        return {"isError": True, "content": [{"type": "text", "text": sentence}]}
    return {"error": sentence}


def _page(contents: TextResourceContents | BlobResourceContents) -> Result:
    """A page as text: clients decode base64 into bytes and show those as Latin-1."""
    wire: Result = contents.model_dump(mode="json", by_alias=True, exclude_none=True)
    kind = (contents.mime_type or "").partition(";")[0].strip().lower()
    if kind != "text/html":
        raise PageRefused("An app is an HTML page; the server sent something else.")
    if isinstance(contents, BlobResourceContents):
        try:
            wire["text"] = base64.b64decode(contents.blob, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise PageRefused("The app is not text in UTF-8.") from None
        del wire["blob"]
    return wire
