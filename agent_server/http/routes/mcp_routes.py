"""The MCP servers of the agents: their state and tools, at `/agui/mcp`, and the way back from signing in to one."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.user import current_user

if TYPE_CHECKING:
    from agent_server.http.server import Server

CALLBACK = "/oauth/callback"
PAGE_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:34rem;margin:15vh auto;padding:0 1rem}}
</style><h1>{title}</h1><p>{text}</p>{link}</html>"""


def page(title: str, text: str, link: str = "", status: int = 200) -> Response:
    return HTMLResponse(
        PAGE.format(title=escape(title), text=escape(text), link=link), status_code=status, headers=PAGE_HEADERS
    )


def routes(server: Server) -> list[BaseRoute]:
    async def servers(request: Request) -> Response:
        return json_response({"servers": [] if server.mcp is None else server.mcp.listed(current_user.get())})

    async def callback(request: Request) -> Response:
        """Where an authorization server sends the user's browser. No key comes with it: `state` says whose sign-in it
        is. A user who has a name is asked once more, by that name: else a link that someone else began, and that this
        person followed, would give the other one this person's access."""
        consents = None if server.mcp is None else server.mcp.consents
        query = request.query_params
        state = query.get("state", "")
        if consents is None or not state:
            return page("Nothing to sign in to", "This link belongs to no sign-in.", status=404)
        from agent_server.agents.mcp.consent import ConsentRefused

        try:
            mcp, user = await consents.pending(state)
            account = " of ".join(filter(None, (user.name, user.tenant)))
            if account and "error" not in query and query.get("confirm") != "yes":
                again = urlencode([*query.multi_items(), ("confirm", "yes")])
                return page(
                    f"Connect {mcp.name}?",
                    f"The agents that work for {account} will be able to use {mcp.name} in your name. Continue only if "
                    "that is you, and you asked for it.",
                    f'<p><a href="?{escape(again)}">Connect {escape(mcp.name)} to {escape(account)}</a></p>',
                )
            await consents.finish(state, query.get("code", ""), query.get("iss"), query.get("error"))
        except ConsentRefused as refused:
            return page("Not signed in", str(refused), status=400)
        return page(f"Signed in to {mcp.name}", "Close this page, and confirm in the conversation.")

    return [Route("/agui/mcp", guarded(servers)), Route(CALLBACK, guarded(callback))]
