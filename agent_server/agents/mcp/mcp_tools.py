"""The MCP tools of agents: offer them to runs, call them, and list them for people.

A server gets the headers and the environment from its settings, and the user's headers that its `forward` names. A
session with a user's headers or token belongs to that user alone. A faulty server, tool or result only affects itself,
and the run gets a warning.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Sequence

import msgspec
from ag_ui.core import Tool as ToolDeclaration
from mcp_types import Tool as McpTool

from agent_server.agents.mcp.apps import app_of
from agent_server.agents.mcp.consent import ConsentRequired, Consents, UserTokens
from agent_server.agents.mcp.elicitation import (
    consent_to,
)
from agent_server.agents.mcp.errors import McpUnavailable
from agent_server.agents.mcp.listing import Listing
from agent_server.agents.mcp.mcp_callee import McpCallee
from agent_server.agents.mcp.mcp_server import McpServer, UserConsent
from agent_server.agents.mcp.repairs import SCHEMA_BYTES
from agent_server.agents.mcp.resources import (
    NOT_IN_A_NAME,
    ResourceReader,
    prompt_object,
    reader_name,
    resource_object,
    signed_in,
    template_object,
)
from agent_server.agents.mcp.sessions import McpConnection
from agent_server.agents.mcp.transports import Identity
from agent_server.agents.running import CallResult, failure
from agent_server.agents.server_tools import Tool
from agent_server.agents.tool_context import ToolContext
from agent_server.observability.audit import note
from agent_server.settings import ToolLimits
from agent_server.user import NOBODY, User
from events.options import SEPARATOR, RequestedMcp

logger = logging.getLogger("agent_server.mcp")
MOST_USERS, UNUSED_SECONDS = 256, 600.0
"""The limit of users' connections, and how long an unused one stays open."""
Offered = tuple[ToolDeclaration, "McpCallee | ResourceReader", Tool | None]
START_SECONDS = 60.0
"""How long to wait for an MCP server at startup before a warning that it did not start."""
OFFERED_BYTES = 6 * SCHEMA_BYTES
"""The limit for the schemas of all MCP tools of a run; a prompt with more of them would be useless to a model."""
WARNINGS_SHOWN = 5
"""The warnings about one server in one run."""


class SignIn:
    """The tool with which the model asks the user to sign in to a server. It is offered instead of the server's tools,
    as long as they cannot be listed without a sign-in."""

    checks = False
    early = False
    at_once: int | None = None
    concurrency_key = ""
    repeatable = True
    retry_approval: Tool | None = None

    def __init__(self, connection: McpConnection) -> None:
        self._connection = connection
        server = connection.server
        self.declaration = ToolDeclaration(
            name=f"{server.prefix}sign_in_{NOT_IN_A_NAME.sub('_', server.name)}",
            description=(
                f"Ask the user to sign in to {server.name}, whose tools can only be used then. Call this when what the "
                f"user wants needs {server.name}."
            ),
            parameters={"type": "object", "properties": {}},
        )

    async def answer(self, arguments: dict[str, object], context: ToolContext) -> CallResult:
        server = self._connection.server
        if context.continuation is not None and not signed_in(context):
            return failure(f"The user did not sign in to {server.name}.")
        try:
            listing = await self._connection.tools(START_SECONDS)
        except ConsentRequired as required:
            if not context.may_ask:
                return failure(f"The user must sign in to {server.name}, and this connection cannot ask a person.")
            return CallResult(question=consent_to(server.name, required.url).question(server.name))
        except McpUnavailable as error:
            return failure(f"The MCP server {server.name} {error}.")
        names = ", ".join(server.prefix + each.tool.name for each in listing.tools if app_of(each.tool).for_model)
        return CallResult(content=f"The user is signed in to {server.name}. These tools can be called now: {names}.")


class McpConnections:
    """The connections to all servers: one for each server, shared by its agents, or one per user for a server whose
    sessions belong to users. consents: the grants of users at servers."""

    def __init__(self, consents: Consents | None = None) -> None:
        self._consents = consents
        self._shared: list[McpConnection] = []
        self._users: dict[tuple[str, str], McpConnection] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, server: McpServer) -> None:
        """Add a server. Raises ValueError if its users must sign in and there is no store for their grants."""
        if any(each.server == server for each in self._shared):
            return
        if isinstance(server.oauth, UserConsent):
            if self._consents is None:
                raise ValueError(f"MCP server {server.name}: its users sign in, and there is no store for their tokens")
            self._consents.servers[server.url] = server
        self._shared.append(McpConnection(server))

    def connection_for(self, server: McpServer, user: User) -> McpConnection:
        """Return the connection for a user's runs."""
        if not server.per_user:
            return next(each for each in self._shared if each.server == server)
        headers = server.forward.headers_for(user)
        key = server.name, msgspec.json.encode([user.tenant, user.name, sorted(headers.items())]).decode()
        connection = self._users.get(key)
        if connection is None or connection.server != server:
            tokens = None
            if isinstance(server.oauth, UserConsent) and self._consents is not None:
                tokens = UserTokens(server, self._consents, user)
            identity = Identity(owner=key[1], headers=headers, tokens=tokens)
            connection = self._users[key] = McpConnection(server, identity)
            if headers:
                note("identity.forwarded", target=f"mcp:{server.name}", user=user.name, headers=sorted(headers))
            # Close users' connections that are unused for UNUSED_SECONDS, and the longest unused beyond MOST_USERS.
            idle = sorted((each for each in self._users.items() if each[1].idle), key=lambda each: each[1].used)
            beyond = len(self._users) - MOST_USERS
            for number, (idle_key, idle_connection) in enumerate(idle):
                if number >= beyond and time.monotonic() - idle_connection.used < UNUSED_SECONDS:
                    break
                del self._users[idle_key]
                closing = asyncio.create_task(idle_connection.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        return connection

    async def connect_shared(self) -> None:
        """Connect to every server that all users share. An unavailable server is a warning, not an error."""

        async def connect(connection: McpConnection) -> None:
            try:
                await connection.tools(START_SECONDS)
            except McpUnavailable as error:
                name = connection.server.name
                logger.warning("the MCP server %s did not start: it %s; a run that needs it tries again", name, error)

        await asyncio.gather(*(connect(each) for each in self._shared if not each.server.per_user))

    def describe(self, user: User) -> list[dict[str, object]]:
        """Describe the servers and their tools for a user, without commands, headers and environments."""
        own = [each for each in self._users.values() if each.identity.is_of(user)]
        servers: list[dict[str, object]] = []
        for shared in self._shared:
            server = shared.server
            connection = next((each for each in own if each.server == server), shared)
            listing, readable = connection.listing, server.offers(reader_name(server.name))
            tools: list[dict[str, object]] = []
            for offered in listing.tools:
                tool, app = offered.tool, app_of(offered.tool)
                tools.append(
                    {
                        "name": server.prefix + tool.name,
                        "description": tool.description or "",
                        "approval": needs_approval(server, tool),
                        "forModel": app.for_model,
                        "forApp": app.for_app and bool(app.uri),
                        "outputSchema": offered.output_schema,
                        "note": offered.note or None,
                    }
                )
            servers.append(
                {
                    "name": server.name,
                    "transport": "stdio" if server.command else "http",
                    "state": connection.state,
                    "problem": connection.problem or listing.cut or None,
                    "tools": tools,
                    "resources": [resource_object(each) for each in listing.resources if readable],
                    "resourceTemplates": [template_object(each) for each in listing.templates if readable],
                    "prompts": [prompt_object(each) for each in listing.prompts],
                    "completions": listing.completes,
                    "leftOut": [{"name": name, "reason": reason} for name, reason in listing.left_out],
                }
            )
        return servers

    def connection_named(self, name: str, user: User) -> McpConnection | None:
        """Return a user's connection to the server of that name; None if there is no such server."""
        server = next((each.server for each in self._shared if each.server.name == name), None)
        return None if server is None else self.connection_for(server, user)

    @property
    def consents(self) -> Consents | None:
        """The grants of users; None if no server needs them."""
        return self._consents if any(isinstance(each.server.oauth, UserConsent) for each in self._shared) else None

    async def close(self) -> None:
        """End all sessions. Safe to call twice."""
        await asyncio.gather(*(each.close() for each in (*self._shared, *self._users.values())), *self._closing)


class ToolOffer(msgspec.Struct, frozen=True, kw_only=True):
    """The MCP tools of one run.

    tools: the tools of servers. sign_ins: the sign-in tools. required_sign_ins: the names of those that the user still
    needs. warnings: a sentence for each server that is unavailable, and for each tool that is missing or differs from
    its declaration.
    """

    tools: Sequence[Offered]
    sign_ins: Sequence[SignIn]
    required_sign_ins: frozenset[str]
    warnings: Sequence[str]


class McpTools:
    """The tools of an agent's MCP servers, ready for one run."""

    def __init__(self, servers: Sequence[McpServer], connections: McpConnections) -> None:
        self._servers = tuple(servers)
        self._connections = connections

    @property
    def connections(self) -> tuple[McpConnection, ...]:
        """The connections that all users share."""
        shared = [each for each in self._servers if not each.per_user]
        return tuple(self._connections.connection_for(each, NOBODY) for each in shared)

    async def offer(self, limits: ToolLimits, user: User) -> ToolOffer:
        """Return the tools for a user's run."""
        tools: list[Offered] = []
        warnings: list[str] = []
        sign_ins: list[SignIn] = []
        required_sign_ins: set[str] = set()
        connections = [self._connections.connection_for(server, user) for server in self._servers]

        async def listing_of(connection: McpConnection) -> Listing:
            if await connection.needs_consent():
                raise ConsentRequired("")
            return await connection.tools()

        listings = await asyncio.gather(*map(listing_of, connections), return_exceptions=True)
        # The `id()` of each tool that fits into the limit of one run. Servers with small tools come first, so that a
        # server with large tools does not displace others.
        sizes = [
            [
                (each, len(json.dumps(each.tool.input_schema)) + len(each.tool.description or ""))
                for each in listing.tools
            ]
            for listing in listings
            if isinstance(listing, Listing)
        ]
        fitting: set[int] = set()
        total = 0
        for sized in sorted(sizes, key=lambda sized: sum(size for _, size in sized)):
            for each, size in sized:
                if total + size <= OFFERED_BYTES:
                    total += size
                    fitting.add(id(each))
        for connection, listing in zip(connections, listings, strict=True):
            server, name = connection.server, connection.server.name
            if isinstance(server.oauth, UserConsent):
                sign_ins.append(SignIn(connection))
            if isinstance(listing, ConsentRequired):
                required_sign_ins.add(sign_ins[-1].declaration.name)
                continue
            if not isinstance(listing, Listing):
                if not isinstance(listing, McpUnavailable):
                    logger.error("MCP server %s: its tools cannot be listed", name, exc_info=listing)
                reason = f" (it {listing})" if isinstance(listing, McpUnavailable) else ""
                warnings.append(f"The MCP server {name} is not available{reason}; its tools are missing.")
                continue
            problems = listing.problems()
            warnings += [f"The MCP server {name}: {each}" for each in problems[:WARNINGS_SHOWN]]
            if (further := len(problems) - WARNINGS_SHOWN) > 0:
                warnings.append(f"The MCP server {name}: {further} more problems; GET /agui/mcp lists them.")
            visible = [each for each in listing.tools if app_of(each.tool).for_model]
            offered = [each for each in visible if id(each) in fitting]
            for each in offered:
                tool = each.tool
                description = tool.description or tool.name
                declaration = ToolDeclaration(
                    name=server.prefix + tool.name, description=description, parameters=tool.input_schema
                )
                approving = _approving(declaration) if needs_approval(server, tool) else None
                tools.append((declaration, McpCallee(connection, each, limits), approving))
            if (listing.resources or listing.templates) and server.offers(reader_name(name)):
                reader = ResourceReader(connection, listing, limits)
                approving = _approving(reader.declaration) if server.asks(reader_name(name), read_only=True) else None
                tools.append((reader.declaration, reader, approving))
            if beyond := len(visible) - len(offered):
                more = f"{beyond} of its tools are left out, since all tools together are too large for one run."
                warnings.append(f"The MCP server {name}: {more} Name those that are needed in its settings.")
        return ToolOffer(
            tools=tools, sign_ins=sign_ins, required_sign_ins=frozenset(required_sign_ins), warnings=warnings
        )

    async def close(self) -> None:
        """Close the connections. Safe to call twice, if nothing else uses them."""
        await self._connections.close()


async def requested_offer(
    requested: RequestedMcp, limits: ToolLimits, user: User
) -> tuple[McpTools, ToolOffer, dict[str, object]]:
    """Connect to a server that a request names, for one run.

    Returns the tools, which the caller has to close, the offer for the run, and the value of the run's event about the
    server's tools.
    """
    server = McpServer(
        name=requested.label,
        url=requested.url,
        headers=requested.headers,
        only=frozenset(requested.only or ()),
        without=requested.without,
        prefix=f"{requested.label}{SEPARATOR}",
        requires_approval=requested.requires_approval,
        approvals=requested.approvals,
    )
    connections = McpConnections()
    connections.add(server)
    tools = McpTools((server,), connections)
    # No tools at all, which the `only` of McpServer cannot express.
    if requested.only is not None and not requested.only:
        nothing = ToolOffer(tools=(), sign_ins=(), required_sign_ins=frozenset(), warnings=())
        return tools, nothing, {"label": server.name, "tools": []}
    offer = await tools.offer(limits, user)
    (connection,) = tools.connections
    listing = connection.listing.tools
    if requested.read_only:
        listing = tuple(each for each in listing if (hints := each.tool.annotations) and hints.read_only_hint)
        names = {server.prefix + each.tool.name for each in listing}
        offer = msgspec.structs.replace(offer, tools=[each for each in offer.tools if each[0].name in names])
    listed = [
        {
            "name": each.tool.name,
            "description": each.tool.description,
            "input_schema": each.tool.input_schema,
            "annotations": None
            if each.tool.annotations is None
            else each.tool.annotations.model_dump(by_alias=True, exclude_none=True),
        }
        for each in listing
        if app_of(each.tool).for_model
    ]
    description: dict[str, object] = {"label": server.name, "tools": listed}
    if not connection.listing.tools and offer.warnings:
        description["error"] = offer.warnings[0]
    return tools, offer, description


def needs_approval(server: McpServer, tool: McpTool) -> bool:
    """Whether a call of the tool needs a person's approval."""
    annotations = tool.annotations
    return server.asks(tool.name, read_only=bool(annotations is not None and annotations.read_only_hint))


def _approving(declaration: ToolDeclaration) -> Tool:
    """Return the Tool with which a person is asked for approval."""
    return Tool(
        name=declaration.name,
        description=declaration.description,
        parameters=declaration.parameters or {},
        call=McpCallee,  # never called: the callee is
        kind="sync",
        check=lambda arguments: arguments,
        requires_approval=True,
    )
