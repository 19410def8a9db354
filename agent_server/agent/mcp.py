"""Tools of MCP servers, over stdio and streamable HTTP.

A connection lives in a task of its own (the client's cancel scopes must be left where they were entered) and is made
when first needed. A server that dies is the error of the calls that were waiting for it; the next call connects anew.
Nothing of the user's is forwarded: a server gets the headers and the environment that its settings name, and no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

import httpx2
from ag_ui.core import Tool as ToolDeclaration
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import Transport
from mcp.client.extension import advertise
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ReadResourceResult,
    TextContent,
)
from mcp_types import Tool as McpTool

from agent_server.agent.mcp_apps import APPS, APPS_SETTINGS, app_activity, app_of
from agent_server.agent.mcp_server import McpServer
from agent_server.agent.running import CallResult, failure
from agent_server.agent.server_tools import Tool, capped, result_content
from agent_server.agent.tool_context import ToolContext
from agent_server.prompting.schemas import problems_of
from agent_server.settings import ToolLimits

logger = logging.getLogger("agent_server.mcp")
T = TypeVar("T")
Offered = tuple[ToolDeclaration, "McpCallee", Tool | None]
State = Literal["unused", "connecting", "ready", "failed"]
CONNECT_SECONDS = 20.0
AWAY_SECONDS = 5.0
"""How long a server that could not be reached is not asked again: every run would wait for it else."""
TOOL_PAGES = 100


class McpConnection:
    """The connection to one server, shared by all runs."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._connecting = asyncio.Lock()
        self._tools: tuple[McpTool, ...] | None = None
        self._away_until = 0.0
        self.state: State = "unused"

    @property
    def known_tools(self) -> tuple[McpTool, ...]:
        """Those that were told on the present connection."""
        return self._tools or ()

    async def tools(self) -> tuple[McpTool, ...]:
        """The tools on offer, asked for once a connection. Raises what keeps us from asking."""
        client = await self._connected()
        if self._tools is None:
            found: list[McpTool] = []
            cursor: str | None = None
            for _ in range(TOOL_PAGES):
                page = await client.list_tools(cursor=cursor)
                found += [tool for tool in page.tools if self.server.offers(tool.name)]
                cursor = page.next_cursor
                if cursor is None:
                    break
            self._tools = tuple(found)
        return self._tools

    async def call(self, name: str, arguments: dict[str, Any], context: ToolContext) -> CallToolResult:
        """Call a tool; its progress becomes the call's. Raises MCPError, OSError and the like when the server dies."""

        async def progress(progress: float, total: float | None, message: str | None) -> None:
            told = {"progress": progress, "total": total, "message": message}
            context.progress({key: value for key, value in told.items() if value is not None})

        client = await self._connected()
        return await self._while_alive(client.call_tool(name, arguments, progress_callback=progress))

    async def call_for_app(self, name: str, arguments: dict[str, object]) -> CallToolResult:
        """The same for a call that no run waits for."""
        client = await self._connected()
        return await self._while_alive(client.call_tool(name, arguments))

    async def read(self, uri: str) -> ReadResourceResult:
        """A resource of the server's. Raises as `call` does."""
        client = await self._connected()
        return await self._while_alive(client.read_resource(uri))

    async def _while_alive(self, work: Coroutine[object, object, T]) -> T:
        """The result of a request, or the end of the connection."""
        calling = asyncio.ensure_future(work)
        task = self._task
        assert task is not None
        try:
            await asyncio.wait({calling, task}, return_when=asyncio.FIRST_COMPLETED)
            if not calling.done():
                raise ConnectionError("the server went away during the call")
            return calling.result()
        finally:
            calling.cancel()

    def forget(self) -> None:
        """The connection failed: the next use makes a new one."""
        self._client = None
        self._tools = None
        self._leave.set()
        if self.state == "ready":
            self.state = "failed"

    async def close(self) -> None:
        self.forget()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=CONNECT_SECONDS)

    async def _connected(self) -> Client:
        async with self._connecting:
            if self._client is not None and self._task is not None and not self._task.done():
                return self._client
            if time.monotonic() < self._away_until:
                raise ConnectionError("it could not be reached a moment ago")
            self.forget()
            self.state = "connecting"
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._leave = asyncio.Event()
            self._task = asyncio.create_task(self._live(ready, self._leave), name=f"mcp {self.server.name}")
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._client = await asyncio.shield(ready)
            except TimeoutError:
                self._leave.set()
                self._task.cancel()
                self._failed()
                raise ConnectionError(f"no answer within {CONNECT_SECONDS:g} s") from None
            except ConnectionError:
                self._failed()
                raise
            self.state = "ready"
            return self._client

    def _failed(self) -> None:
        """No connection could be made: for a while nobody waits for the next attempt."""
        self.state = "failed"
        self._away_until = time.monotonic() + AWAY_SECONDS

    async def _live(self, ready: asyncio.Future[Client], leave: asyncio.Event) -> None:
        try:
            if self.server.command:
                await self._stay(self._client_on(self._stdio()), ready, leave)
            else:
                patience = httpx2.Timeout(30, read=300)
                async with httpx2.AsyncClient(headers=self.server.headers, timeout=patience) as http:
                    transport = streamable_http_client(self.server.url, http_client=http)
                    await self._stay(self._client_on(transport), ready, leave)
        except asyncio.CancelledError:
            if not ready.done():
                ready.set_exception(ConnectionError("the connection was given up"))
            raise
        except BaseException as error:
            logger.warning("MCP server %s: connection lost (%s)", self.server.name, type(error).__name__)
            if not ready.done():
                ready.set_exception(ConnectionError(reason_of(error)))
        finally:
            if not ready.done():
                ready.cancel()

    async def _stay(self, client: Client, ready: asyncio.Future[Client], leave: asyncio.Event) -> None:
        async with client:
            if not ready.done():
                ready.set_result(client)
            await leave.wait()

    def _client_on(self, transport: StdioServerParameters | Transport) -> Client:
        return Client(transport, extensions=[advertise(APPS, APPS_SETTINGS)])

    def _stdio(self) -> StdioServerParameters:
        program, *arguments = self.server.command
        return StdioServerParameters(command=program, args=arguments, env=dict(self.server.env), cwd=self.server.cwd)


class Lost(Exception):
    """A call's connection was lost."""


class McpCallee:
    """One tool of a server, as the loop calls it. One that declares itself read-only may begin early: it would be
    called as well a moment later. A call whose connection is lost is made once more, on a new one, where the tool
    declares that this does no harm."""

    checks = False
    at_once: int | None = None
    asks: Tool | None = None

    def __init__(self, connection: McpConnection, tool: McpTool, limits: ToolLimits) -> None:
        self._connection = connection
        self._tool = tool
        self._seconds = connection.server.time_limit or limits.seconds
        self._characters = limits.characters
        said = tool.annotations
        self.early = bool(said is not None and said.read_only_hint)
        self.repeats = self.early or bool(said is not None and said.idempotent_hint)
        self.place = f"{connection.server.name} {tool.name}"

    async def answer(self, arguments: dict[str, Any], context: ToolContext) -> CallResult:
        problem = misfit(arguments, self._tool.input_schema)
        if problem is not None:
            return failure(problem)
        try:
            with contextlib.suppress(Lost):
                return await self._once(arguments, context, last=not self.repeats)
            return await self._once(arguments, context, last=True)
        finally:
            context.cancel()

    async def _once(self, arguments: dict[str, object], context: ToolContext, *, last: bool) -> CallResult:
        """One attempt. Raises Lost if it failed with its connection and is not the last."""
        try:
            async with asyncio.timeout(self._seconds) as deadline:
                result = await self._connection.call(self._tool.name, arguments, context)
        except TimeoutError:
            if deadline.expired():
                return failure(f"{self._tool.name} took longer than {self._seconds:g} s.")
            return self._lost("timeout", last)
        except MCPError as error:
            if _is_lost(error):
                return self._lost("connection closed", last)
            return failure(f"{self._tool.name} was refused: {error.error.message[:500]}")
        except Exception as error:
            return self._lost(reason_of(error), last)
        content = capped(content_of(result), self._characters)
        if result.is_error:
            return CallResult(content=content, failed=True)
        shown = app_activity(self._connection.server.name, self._tool, context.tool_call_id, arguments, result)
        return CallResult(content=content, activities=() if shown is None else (shown,))

    def _lost(self, reason: str, last: bool) -> CallResult:
        self._connection.forget()
        if not last:
            raise Lost(reason)
        return failure(f"The MCP server {self._connection.server.name} did not answer: {reason}.")


CONNECTION_CLOSED = -32000  # the SDK's code for a transport that ended under a request


def _is_lost(error: MCPError) -> bool:
    return error.error.code == CONNECTION_CLOSED


def misfit(arguments: dict[str, object], schema: Mapping[str, object]) -> str | None:
    """What is wrong with the arguments, or None. A schema that is itself broken lets them pass: the server judges."""
    invalid = problems_of(json.dumps(arguments), json.dumps(schema))
    if invalid is None:
        return None
    path, message = invalid.problems[0]
    return f"Invalid arguments: {path.strip('/').replace('/', '.') or 'arguments'}: {message}"


def content_of(result: CallToolResult) -> str | list[object]:
    """A result as TOOL_CALL_RESULT carries it: text where it is all text, else parts."""
    if not result.content and result.structured_content is not None:
        return result_content(result.structured_content)
    if all(isinstance(block, TextContent) for block in result.content):
        return "\n".join(block.text for block in result.content if isinstance(block, TextContent))
    return [_part(block) for block in result.content]


def _part(block: ContentBlock) -> dict[str, object]:
    if isinstance(block, TextContent):
        return {"type": "text", "text": block.text}
    if isinstance(block, ImageContent | AudioContent):
        return {"type": block.type, "source": {"type": "data", "value": block.data, "mimeType": block.mime_type}}
    if isinstance(block, EmbeddedResource):
        text = getattr(block.resource, "text", None)
        return {"type": "text", "text": text if isinstance(text, str) else f"[resource {block.resource.uri}]"}
    return {"type": "text", "text": f"[resource {block.uri}]"}


def reason_of(error: BaseException) -> str:
    """One short line about an error, the innermost one of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    line = (str(error).strip().splitlines() or [""])[0][:300]
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


class McpConnections:
    """One connection to each server, however many agents name it."""

    def __init__(self) -> None:
        self._made: list[McpConnection] = []

    def of(self, server: McpServer) -> McpConnection:
        found = next((each for each in self._made if each.server == server), None)
        if found is None:
            found = McpConnection(server)
            self._made.append(found)
        return found

    async def look(self) -> None:
        """Connect to every server; those that are away are a warning and no error."""
        await asyncio.gather(*map(_look_at, self._made))

    def listed(self) -> list[dict[str, object]]:
        """The servers and their tools, for people. Nothing of commands, headers or environments is told."""
        return [_listed(each) for each in self._made]


async def _look_at(connection: McpConnection) -> None:
    try:
        await connection.tools()
    except Exception as error:
        name, reason = connection.server.name, reason_of(error)
        logger.warning("the MCP server %s did not start: %s; a run that needs it tries again", name, reason)


def _listed(connection: McpConnection) -> dict[str, object]:
    server = connection.server
    return {
        "name": server.name,
        "transport": "stdio" if server.command else "http",
        "state": connection.state,
        "tools": [_tool_listed(server, tool) for tool in connection.known_tools],
    }


def _tool_listed(server: McpServer, tool: McpTool) -> dict[str, object]:
    app = app_of(tool)
    return {
        "name": server.prefix + tool.name,
        "description": tool.description or "",
        "approval": asks(server, tool),
        "forModel": app.for_model,
        "forApp": app.for_app and bool(app.uri),
    }


class McpTools:
    """The tools of an agent's MCP servers, ready for one run."""

    def __init__(self, connections: Sequence[McpConnection]) -> None:
        self.connections = tuple(connections)

    async def offer(self, limits: ToolLimits) -> tuple[list[Offered], list[str]]:
        """(declaration, callee, what needs approval) of every tool, and a sentence for each server that is away."""
        found: list[Offered] = []
        away: list[str] = []
        listings = await asyncio.gather(*(each.tools() for each in self.connections), return_exceptions=True)
        for connection, listing in zip(self.connections, listings, strict=True):
            if isinstance(listing, BaseException):
                connection.forget()
                away.append(f"The MCP server {connection.server.name} is not available; its tools are missing.")
                continue
            found += [_offered(connection, tool, limits) for tool in listing if app_of(tool).for_model]
        return found, away

    async def close(self) -> None:
        """Safe to call twice, and while others use the same connections no more."""
        await asyncio.gather(*(connection.close() for connection in self.connections))


def asks(server: McpServer, tool: McpTool) -> bool:
    """Whether a person must agree to a call of the tool."""
    said = tool.annotations
    return server.asks(tool.name, read_only=bool(said is not None and said.read_only_hint))


def _offered(connection: McpConnection, tool: McpTool, limits: ToolLimits) -> Offered:
    server = connection.server
    name = server.prefix + tool.name
    declaration = ToolDeclaration(name=name, description=tool.description or tool.name, parameters=tool.input_schema)
    approving = None
    if asks(server, tool):
        approving = Tool(
            name=name,
            description=declaration.description,
            parameters=tool.input_schema,
            call=McpCallee,  # never called: the callee is
            kind="sync",
            check=lambda arguments: arguments,
            requires_approval=True,
        )
    return declaration, McpCallee(connection, tool, limits), approving
