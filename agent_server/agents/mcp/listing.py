"""What an MCP server offers: its tools, resources and prompts, listed within limits of time and number."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from mcp import Client, MCPError
from mcp_types import METHOD_NOT_FOUND, Prompt, Resource, ResourceTemplate
from mcp_types import Tool as McpTool

from agent_server.agents.mcp.apps import SCHEME
from agent_server.agents.mcp.errors import McpUnavailable, consent_url, reason_of
from agent_server.agents.mcp.mcp_server import McpServer
from agent_server.agents.mcp.repairs import LEFT_OUT, NOTE, OUTPUT_SCHEMA
from agent_server.fair_threads import REQUEST_THREADS

logger = logging.getLogger("agent_server.mcp")
LIST_SECONDS = 10.0
TOOL_PAGES, MOST_TOOLS, LIST_BYTES = 100, 512, 4 * 2**20
"""The limits of one listing; further tools are not offered."""
CONTEXT_SECONDS, CONTEXT_PAGES, MOST_CONTEXT = 3.0, 10, 256
"""The limits for resources, templates and prompts each; if they take longer, the tools are offered without them."""


class ServerTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as it is offered. output_schema: the schema of its structured results. note: how it differs from its
    server's declaration."""

    tool: McpTool
    output_schema: dict[str, object] | None = None
    note: str = ""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What a server offers. completes: whether it suggests values for arguments. left_out: names of tools that cannot
    be offered, with the reasons. cut: why the list of tools is incomplete."""

    tools: tuple[ServerTool, ...] = ()
    resources: tuple[Resource, ...] = ()
    templates: tuple[ResourceTemplate, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    completes: bool = False
    left_out: tuple[tuple[str, str], ...] = ()
    cut: str = ""

    def problems(self) -> list[str]:
        """Describe all differences from the server's declaration, in sentences that begin in lower case."""
        noted = [f"the tool {each.tool.name}: {each.note}." for each in self.tools if each.note]
        omitted = [f"the tool {name} is left out: {reason}." for name, reason in self.left_out]
        return [*omitted, *noted, *([f"{self.cut}."] if self.cut else [])]


async def list_offers(client: Client, server: McpServer) -> Listing:
    """List what the server offers, within the limits of time and number.

    Raises McpUnavailable if it lists no tools, and MCPError if the user must sign in first.
    """
    tools: dict[str, ServerTool] = {}
    left_out: list[tuple[str, str]] = []
    cut, size, pages = "", 0, 0
    cursor: str | None = None
    try:
        async with asyncio.timeout(LIST_SECONDS):
            while pages < TOOL_PAGES:
                page = await client.list_tools(cursor=cursor)
                left_out += [(name, reason) for name, reason in (page.meta or {}).get(LEFT_OUT, ())]
                size += await REQUEST_THREADS.run(_add_page, page.tools, server, tools, left_out)
                pages += 1
                same, cursor = page.next_cursor == cursor, page.next_cursor
                if cursor is None:
                    break
                if same or len(tools) > MOST_TOOLS or size > LIST_BYTES:
                    cut = "its list of tools repeats itself" if same else "its list of tools is too long"
                    break
            else:
                cut = f"its list of tools has more than {TOOL_PAGES} pages"
    except TimeoutError:
        if not pages:
            raise McpUnavailable(f"did not list its tools within {LIST_SECONDS:g} s") from None
        cut = f"its list of tools took longer than {LIST_SECONDS:g} s"
    except MCPError as error:
        if consent_url(error) is not None:
            raise
        if error.error.code != METHOD_NOT_FOUND:  # a server without tools
            raise McpUnavailable(f"could not list its tools: {error.error.message[:200]}") from error
    capabilities = client.server_capabilities
    resources, templates, prompts = await asyncio.gather(
        _entries(server, client.list_resources, "resources", capabilities.resources is not None),
        _entries(server, client.list_resource_templates, "resource_templates", capabilities.resources is not None),
        _entries(server, client.list_prompts, "prompts", capabilities.prompts is not None),
    )
    listing = Listing(
        tools=tuple(tools.values())[:MOST_TOOLS],
        resources=tuple(each for each in resources if not each.uri.startswith(SCHEME)),
        templates=templates,
        prompts=prompts,
        completes=capabilities.completions is not None,
        left_out=tuple(left_out[:MOST_TOOLS]),
        cut=cut,
    )
    for problem in listing.problems():
        logger.warning("MCP server %s: %s", server.name, problem)
    return listing


async def _entries(
    server: McpServer, request: Callable[..., Awaitable[Any]], field: str, offered: bool
) -> tuple[Any, ...]:
    """Return the entries of a listing other than tools, within its limits; none if the server fails."""
    entries: list[Any] = []
    cursor: str | None = None
    try:
        async with asyncio.timeout(CONTEXT_SECONDS):
            for _ in range(CONTEXT_PAGES if offered else 0):
                page = await request(cursor=cursor)
                entries += getattr(page, field)
                cursor = page.next_cursor
                if cursor is None or len(entries) >= MOST_CONTEXT:
                    break
    except (MCPError, TimeoutError) as error:
        if not isinstance(error, MCPError) or error.error.code != METHOD_NOT_FOUND:
            logger.warning("MCP server %s: its %s cannot be listed (%s)", server.name, field, reason_of(error))
    return tuple(entries[:MOST_CONTEXT])


def _add_page(
    page: list[McpTool], server: McpServer, tools: dict[str, ServerTool], left_out: list[tuple[str, str]]
) -> int:
    """Add a page's tools to the offered ones, and return its size in bytes."""
    for tool in page:
        meta = tool.meta or {}
        own = {key: value for key, value in meta.items() if not key.startswith("agent_server/")} or None
        if not server.offers(tool.name):
            continue
        if tool.name in tools:
            left_out.append((tool.name, "there is another tool of that name"))
            continue
        tools[tool.name] = ServerTool(
            tool=tool.model_copy(update={"meta": own}),
            output_schema=meta.get(OUTPUT_SCHEMA),
            note=meta.get(NOTE, ""),
        )
    return sum(len(tool.model_dump_json()) for tool in page)
