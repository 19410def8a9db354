"""MCP Apps (SEP-1865, specification of 2026-01-26): tools of MCP servers that have a page of their own.

A tool names its page by `_meta.ui.resourceUri`. Its call becomes an `mcp-apps` activity with the whole result, and the
client shows the page in a frame. The page's requests to its server arrive as runs with `__proxiedMCPRequest` in their
forwardedProps (see `app_requests`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TypeVar

import msgspec
from mcp_types import CallToolResult
from mcp_types import Tool as McpTool

from agent_server.agents.running import Activity

logger = logging.getLogger("agent_server.mcp")
APPS = "io.modelcontextprotocol/ui"
APP_TYPE = "text/html;profile=mcp-app"
APPS_SETTINGS = {"mimeTypes": [APP_TYPE]}
ACTIVITY = "mcp-apps"
SCHEME = "ui://"
RESULT_BYTES = 2**20
"""The largest result that an app shows, since the activity is stored with the thread and sent with every reload."""


class App(msgspec.Struct, frozen=True, kw_only=True):
    """A tool's page. uri: "" for a tool without one. for_model, for_app: whether models and pages may call the tool."""

    uri: str = ""
    for_model: bool = True
    for_app: bool = True


def app_of(tool: McpTool) -> App:
    """Read `_meta.ui` of a tool, or its older form `_meta["ui/resourceUri"]`. Only `ui://` resources are pages."""
    meta = tool.meta or {}
    ui = meta.get("ui")
    declared: Mapping[str, object] = ui if isinstance(ui, dict) else {}
    uri = declared.get("resourceUri", meta.get("ui/resourceUri"))
    visibility = declared.get("visibility")
    visible = visibility if isinstance(visibility, list) else ["model", "app"]
    return App(
        uri=uri if isinstance(uri, str) and uri.startswith(SCHEME) else "",
        for_model="model" in visible,
        for_app="app" in visible,
    )


def app_activity(
    server: str, tool: McpTool, call_id: str, arguments: dict[str, object], result: CallToolResult
) -> Activity | None:
    """Return the activity that clients show for a call; None for a tool without a page.

    Clients require `serverHash` and treat it as opaque; the server's name is as stable as its settings. assistant-ui
    reads `toolCallId`, and without it assumes the call that was answered last; CopilotKit ignores it.
    """
    uri = app_of(tool).uri
    if not uri:
        return None
    wire = result.model_dump(mode="json", by_alias=True, exclude_none=True)
    wire.setdefault("isError", False)
    if (size := len(msgspec.json.encode(wire))) > RESULT_BYTES:
        logger.warning("MCP server %s: a result of %s has %d bytes; its app is not shown", server, tool.name, size)
        return None
    content: dict[str, object] = {
        "result": wire, "resourceUri": uri, "serverHash": server, "serverId": server, "toolInput": arguments,
        "toolCallId": call_id,
    }  # fmt: skip
    return Activity(kind=ACTIVITY, content=content)


T = TypeVar("T")
