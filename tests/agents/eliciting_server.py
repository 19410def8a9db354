"""An MCP server whose tools ask the user: `python eliciting_server.py [PORT]`; stdio without a port."""

from __future__ import annotations

import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.request_state import RequestStateSecurity
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import BaseModel

# With a key of its own, so that what it handed out is still known after it was started anew with a gateway.
server = MCPServer("asking", request_state_security=RequestStateSecurity(keys=["k" * 32]))


class Day(BaseModel):
    day: str


class Seats(BaseModel):
    seats: int
    row: str = "any"


def form(message: str, model: type[BaseModel]) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=model.model_json_schema()))


def said(answer: object) -> str:
    assert isinstance(answer, ElicitResult)
    return f"{answer.action} {answer.content or ''}".strip()


@server.tool()
def reserve(ctx: Context) -> str | InputRequiredResult:
    """Reserve seats: two questions at once, then a link; nothing is kept in this process."""
    responses = ctx.input_responses or {}
    if ctx.request_state is None and not responses:
        requests = {"day": form("Which day?", Day), "seats": form("How many seats?", Seats)}
        return InputRequiredResult(input_requests=requests, request_state="asked")
    if "day" in responses:
        state = f"day {said(responses['day'])}, seats {said(responses['seats'])}"
        pay = ElicitRequest(params=ElicitRequestURLParams(message="Pay here", url="https://pay.example/1"))
        return InputRequiredResult(input_requests={"pay": pay}, request_state=state)
    return f"{ctx.request_state}, pay {said(responses['pay'])}"


@server.tool()
def think(ctx: Context) -> str | InputRequiredResult:
    """Ask for a model's answer."""
    request = CreateMessageRequest(params=CreateMessageRequestParams(messages=[], max_tokens=1))
    return InputRequiredResult(input_requests={"model": request})


@server.tool()
def later(ctx: Context) -> str | InputRequiredResult:
    """Ask only to be called again."""
    return "now" if ctx.request_state == "later" else InputRequiredResult(request_state="later")


async def book(ctx: Context) -> str:
    """Ask twice while the request is open."""
    day = await ctx.elicit("Which day?", Day)
    if day.action != "accept":
        return f"day {day.action}"
    seats = await ctx.elicit("How many seats?", Seats)
    return f"{day.data.day} {seats.data.seats}" if seats.action == "accept" else f"seats {seats.action}"


server.add_tool(book, name="book")
server.add_tool(book, name="book_again", annotations=ToolAnnotations(idempotent_hint=True))

signed_in: list[bool] = []


@server.tool()
def private() -> str:
    """Refuse until the user has visited a page."""
    if not signed_in:
        signed_in.append(True)
        page = ElicitRequestURLParams(message="Sign in", url="https://login.example/", elicitation_id="e1")
        raise UrlElicitationRequiredError([page])
    return "yours"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")
