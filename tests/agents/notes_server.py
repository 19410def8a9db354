"""An MCP server with resources and prompts for tests; `python -m tests.agents.notes_server` serves it over stdio."""

from __future__ import annotations

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.prompts.base import AssistantMessage, UserMessage
from mcp.server.mcpserver.resources import FunctionResource, TextResource
from mcp_types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    ImageContent,
    PromptReference,
    ResourceTemplateReference,
)
from pydantic import BaseModel

STYLES = ("long", "loud", "short")
DAYS = ("monday", "tuesday", "wednesday")


class Count(BaseModel):
    words: int


def notes_server() -> MCPServer:
    server = MCPServer("notes")
    server.add_resource(TextResource(uri="notes://today", name="today", description="What is due.", text="Buy milk."))
    server.add_resource(FunctionResource(uri="notes://dot", name="dot", mime_type="image/png", fn=lambda: b"\x00\x01"))
    server.add_resource(FunctionResource(uri="notes://pdf", name="pdf", mime_type="application/pdf", fn=lambda: b"pdf"))
    server.add_resource(TextResource(uri="ui://notes/app.html", name="an app", text="<p>"))

    @server.resource("notes://day/{day}")
    def day(day: str) -> str:
        """The notes of one day."""
        return f"On {day}: rest."

    @server.prompt()
    def review(code: str, style: str = "short") -> list[UserMessage | AssistantMessage]:
        """Review some code."""
        return [
            UserMessage(f"Review this, {style}:"),
            UserMessage(code),
            AssistantMessage("Which part?"),
            UserMessage(ImageContent(type="image", data="AAAA", mime_type="image/png")),
        ]

    @server.prompt()
    def plan(day: str) -> str:
        """Plan a day."""
        return f"Hello. What is to be done on {day}?"

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion | None:
        """Styles of a review, one fewer if the code has a value; days; many codes."""
        if argument.name == "code":
            return Completion(values=[f"x = {number}" for number in range(100)], total=500, has_more=True)
        known = DAYS if argument.name == "day" else STYLES[:2] if context and context.arguments else STYLES
        return Completion(values=[each for each in known if each.startswith(argument.value)])

    @server.tool()
    def count(text: str) -> Count:
        """Count words."""
        return Count(words=len(text.split()))

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Take down another note."""
        server.add_resource(TextResource(uri="notes://more", name="more", text="More."))
        await ctx.notify_resources_changed()
        return "grown"

    return server


if __name__ == "__main__":
    notes_server().run(transport="stdio")
