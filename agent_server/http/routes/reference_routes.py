"""`/openapi.json` describes the HTTP API, and `/docs` shows it. Everything that the page needs comes from here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

if TYPE_CHECKING:
    from agent_server.http.server import Server

BUILT = Path(__file__).parents[2] / "static" / "demo" / "reference"
HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>agent-server: HTTP API</title><link rel="icon" href="favicon.svg">
<link rel="stylesheet" href="docs/swagger-ui.css"><div id="reference"></div>
<script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script></html>"""
HINT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>agent-server: HTTP API</title>
<p>This page has not been built in this checkout: install Node 20, then <code>make demo</code>.
The description itself is at <a href="openapi.json">openapi.json</a>.</p></html>"""


def routes(server: Server) -> list[BaseRoute]:
    async def description(request: Request) -> Response:
        prefix = request.scope.get("root_path", "")
        below = {"servers": [{"url": prefix}]} if prefix else {}
        return Response(msgspec.json.encode({**request.app.openapi(), **below}), media_type="application/json")

    async def page(request: Request) -> Response:
        return HTMLResponse(PAGE if built else HINT, headers=HEADERS)

    built = (BUILT / "swagger-ui-bundle.js").is_file()
    files: list[BaseRoute] = [Mount("/docs", StaticFiles(directory=BUILT))] if built else []
    return [Route("/openapi.json", description), Route("/docs", page), *files]
