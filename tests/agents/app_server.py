"""An MCP server with apps for tests; `python -m tests.agents.app_server` serves it over stdio."""

from __future__ import annotations

import asyncio

from mcp.client._memory import InMemoryTransport
from mcp.server.apps import Apps
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resources import FunctionResource, TextResource
from mcp_types import CallToolResult, TextContent, ToolAnnotations

from agent_server.agents.mcp.sessions import McpSession

PAGE = """<!doctype html><meta charset="utf-8"><body>
<p id="city">…</p><p id="count">0</p><button id="more">More — später</button>
<script>
const waiting = new Map();
let last = 0;
const send = (message) => parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
const ask = (method, params) => new Promise((resolve) => { waiting.set(++last, resolve); send({ id: last, method, params }); });
addEventListener("message", ({ data }) => {
  if (data?.id && waiting.has(data.id)) return waiting.get(data.id)(data.result);
  if (data?.method === "ui/notifications/tool-result") city.textContent = data.params.structuredContent.city;
});
more.onclick = async () => {
  const result = await ask("tools/call", { name: "count", arguments: { by: 2 } });
  count.textContent = result.content[0].text;
};
ask("ui/initialize", { protocolVersion: "2026-01-26", appInfo: { name: "w", version: "1" }, appCapabilities: {} })
  .then(() => send({ method: "ui/notifications/initialized", params: {} }));
</script>
"""
URI = "ui://weather/app.html"


def in_this_process(monkeypatch, **servers: MCPServer) -> None:
    """Let servers of these names live in this process, whatever their settings say; others are started."""
    started = McpSession._transport

    def transport(self: McpSession):
        server = servers.get(self.server.name)
        return started(self) if server is None else InMemoryTransport(server)

    monkeypatch.setattr(McpSession, "_transport", transport)


def app_server() -> MCPServer:
    apps = Apps()
    counted = 0

    @apps.tool(resource_uri=URI)
    def weather(city: str) -> CallToolResult:
        """The weather in a city."""
        told = {"city": city, "temperature": 7}
        return CallToolResult(content=[TextContent(type="text", text=f"{city}: 7 degrees")], structured_content=told)

    @apps.tool(resource_uri=URI)
    def storm() -> str:
        """Fail."""
        raise ToolError("the storm took the station")

    @apps.tool(resource_uri=URI)
    def atlas() -> str:
        """More than an app is shown."""
        return "x" * 2**20

    @apps.tool(resource_uri=URI, visibility=["app"])
    def count(by: int) -> str:
        """Count on."""
        nonlocal counted
        counted += by
        return str(counted)

    @apps.tool(resource_uri=URI, visibility=["model"])
    def secret() -> str:
        """Not for pages."""
        return "a secret"

    @apps.tool(resource_uri=URI, annotations=ToolAnnotations(read_only_hint=False))
    def erase() -> str:
        """Erase."""
        return "erased"

    @apps.tool(resource_uri="ui://weather/picture.html")
    def picture() -> str:
        """Bytes."""
        return ""

    apps.add_html_resource(URI, PAGE, prefers_border=True)
    apps.add_resource(FunctionResource(uri="ui://weather/picture.html", name="picture", fn=lambda: "<p>ü</p>".encode()))
    server = MCPServer("weather", extensions=[apps])
    server.add_resource(TextResource(uri="file:///etc/passwd", name="passwd", text="root"))
    server.add_resource(TextResource(uri="ui://weather/hidden.html", name="hidden", text="hidden"))

    @server.tool()
    async def hang(ctx: Context) -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    return server


if __name__ == "__main__":
    app_server().run(transport="stdio")
