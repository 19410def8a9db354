"""The page at `/`, the two streams that only it reads, and the API's description at `/docs` and `/openapi.json`.

All files that the pages need are served from here. The streams show one run on several wires, live or from a log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import mimetypes
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from adapters import agui
from adapters.body import Limits, read_json
from adapters.errors import RequestError
from adapters.openai_chat import ChatIdentity, ChatStream
from adapters.sse import Outbound, SideBySideEncoder
from agent_server.http.routes.http import guarded, read_request, stream_run
from agent_server.http.routes.openai_routes import IdRoute
from events.metadata import check_metadata
from events.nesting import DEPTH
from events.vocabulary import Event

if TYPE_CHECKING:
    from agent_server.http.server import Server

BUILT = Path(__file__).parents[2] / "static" / "demo"
WIRES = ("agui", "openai")
MOST_EVENTS = 100_000
LINE_LIMITS = Limits(depth=DEPTH)
"""Limits on one event of a posted log, so that it can be encoded again."""
PAGE_HEADERS = {
    "content-security-policy": "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; media-src 'self' data:; connect-src 'self' http: https:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'; object-src 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""connect-src is open because `?replay=` may name a log at any URL; URLs that a model writes are never fetched."""

HINT = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>agent-server</title><style>:root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;max-width:38rem;
margin:18vh auto 0;padding:0 1.5rem}code{font-size:.9em}</style>
<h1>The server runs.</h1><p>This page has not been built in this checkout: install Node 20,
then <code>make demo</code>.
The wires do not need it: <code>/agui</code>, <code>/copilotkit</code>, <code>/v1/chat/completions</code>.</p></html>"""


ENCODINGS = {"br": ".br", "gzip": ".gz"}
"""Content codings, the most compact first, with the suffixes of the compressed files that the build writes."""


class Assets(StaticFiles):
    """Files with content hashes in their names, cached for a year."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        folder = Path(str(self.directory))
        coding = _select_encoding(Headers(scope=scope).get("accept-encoding", ""), folder / path)
        response = await super().get_response(path + ENCODINGS.get(coding, ""), scope)
        lasting = response.status_code < 400
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if lasting else "no-cache"
        response.headers.update(PAGE_HEADERS | _encoding_headers(coding, path))
        return response


def _select_encoding(accepted: str, file: Path) -> str:
    """The first of ENCODINGS that the client accepts and the build has written for this file; "" if none."""
    weights: dict[str, float] = {}
    for item in accepted.lower().split(","):
        name, _, weight = item.partition(";")
        try:
            weights[name.strip()] = float(weight.strip().removeprefix("q=") or 1)
        except ValueError:
            weights[name.strip()] = 0
    for coding, ending in ENCODINGS.items():
        with contextlib.suppress(OSError):  # a name that is too long
            if weights.get(coding, weights.get("*", 0)) > 0 and file.with_name(file.name + ending).is_file():
                return coding
    return ""


def _encoding_headers(coding: str, name: str) -> dict[str, str]:
    """The headers of a possibly compressed file, for the client and for shared caches."""
    if not coding:
        return {"vary": "accept-encoding"}
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return {"vary": "accept-encoding", "content-encoding": coding, "content-type": f"{kind}; charset=utf-8"}


def routes(server: Server) -> list[BaseRoute]:
    settings = server.settings

    def encoder_for(request: Request, run_id: str) -> SideBySideEncoder:
        wires: dict[str, Outbound] = {}
        for name in request.query_params.getlist("wire") or WIRES:
            match name:
                case "agui":
                    wires[name] = agui.SseEncoder()
                case "openai":
                    id = f"chatcmpl-{run_id.removeprefix('run_')}"
                    wires[name] = ChatStream(ChatIdentity(id=id, model=server.model.name, created=int(time.time())))
                case _:
                    message = f"wire must be one of: {', '.join(WIRES)}."
                    raise RequestError("invalid_request", message, param="wire")
        return SideBySideEncoder(wires)

    async def live(request: Request) -> Response:
        """Stream a run on several wires. With `unknown=empty`, the answer for an unknown run is 204, not an error."""
        try:
            run = await server.runs.find(request.path_params["run_id"], request.state.tenant)
        except RequestError:
            if request.query_params.get("unknown") != "empty":
                raise
            return Response(status_code=204)
        return stream_run(run, encoder_for(request, run.id), interval=settings.http.keep_alive)

    async def replay(request: Request) -> Response:
        """Encode a posted event log, with one event per line, on the requested wires."""
        encoder = encoder_for(request, "recorded")

        def encoded(body: bytes) -> bytes:
            frames = [encoder.encode(event, sequence=number) for number, event in enumerate(_read_log(body), 1)]
            return b"".join([*frames, encoder.finish()])

        frames = await read_request(server, request, encoded, starts_run=False)
        return Response(frames, headers={"content-type": encoder.content_type})

    if not settings.watching.demo:
        return []
    return [
        IdRoute("/demo/runs/{run_id}/wires", guarded(live)),
        Route("/demo/wires", guarded(replay), methods=["POST"]),
        *_page(),
        *reference_routes(server),
    ]


def _page() -> list[BaseRoute]:
    """The page's routes. They are not a mount on `/`, so that other paths keep their own 404 and 405."""
    fresh = PAGE_HEADERS | {"cache-control": "no-cache"}
    index = BUILT / "index.html"
    is_built = index.is_file()
    # The page's policy with the hashes of its inline scripts (CSP level 3, section 2.3.1).
    html = index.read_text(encoding="utf-8") if is_built else ""
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    policy = PAGE_HEADERS["content-security-policy"]
    allowed = " ".join(["script-src 'self'", *(f"'sha256-{each}'" for each in hashes)])
    allowing = {"content-security-policy": policy.replace("script-src 'self'", allowed)}
    with_scripts = fresh | allowing

    async def page(request: Request) -> Response:
        coding = _select_encoding(request.headers.get("accept-encoding", ""), index)
        file = index.with_name(index.name + ENCODINGS.get(coding, ""))
        return FileResponse(file, headers=with_scripts | _encoding_headers(coding, index.name))

    async def icon(request: Request) -> Response:
        return FileResponse(BUILT / "favicon.svg", headers=fresh)

    async def hint(request: Request) -> Response:
        return HTMLResponse(HINT, headers=fresh)

    if not is_built:
        return [Route("/", hint)]
    return [Route("/", page), Route("/favicon.svg", icon), Mount("/assets", Assets(directory=BUILT / "assets"))]


def _read_log(body: bytes) -> list[Event]:
    lines = [line for line in body.split(b"\n") if line.strip()]
    if len(lines) > MOST_EVENTS:
        raise RequestError("payload_too_large", f"A log may have at most {MOST_EVENTS} events.")
    decoder = msgspec.json.Decoder(Event)
    events: list[Event] = []
    for number, line in enumerate(lines, 1):
        try:
            read_json(line, LINE_LIMITS)
            events.append(check_metadata(decoder.decode(line)))
        except RequestError as error:
            raise RequestError(error.kind, f"Line {number} is not an AG-UI event. {error.message}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RequestError("invalid_request", f"Line {number} is not an AG-UI event.") from error
    return events


REFERENCE = Path(__file__).parents[2] / "static" / "demo" / "reference"
REFERENCE_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'; object-src 'none'",
    "cache-control": "no-cache",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
REFERENCE_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>agent-server: HTTP API</title><link rel="icon" href="favicon.svg">
<link rel="stylesheet" href="docs/swagger-ui.css"><div id="reference"></div>
<script src="docs/swagger-ui-bundle.js"></script><script src="docs/start.js"></script></html>"""
NO_REFERENCE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>agent-server: HTTP API</title>
<p>This page has not been built in this checkout: install Node 20, then <code>make demo</code>.
The description itself is at <a href="openapi.json">openapi.json</a>.</p></html>"""


def reference_routes(server: Server) -> list[BaseRoute]:
    building = asyncio.Lock()

    async def description(request: Request) -> Response:
        prefix = request.scope.get("root_path", "")
        below = {"servers": [{"url": prefix}]} if prefix else {}
        async with building:  # in a thread, since the first time takes a second or two
            built = await asyncio.to_thread(request.app.openapi)
        return Response(msgspec.json.encode({**built, **below}), media_type="application/json")

    async def page(request: Request) -> Response:
        return HTMLResponse(REFERENCE_PAGE if is_built else NO_REFERENCE, headers=REFERENCE_HEADERS)

    is_built = (REFERENCE / "swagger-ui-bundle.js").is_file()
    files: list[BaseRoute] = [Mount("/docs", StaticFiles(directory=REFERENCE))] if is_built else []
    return [Route("/openapi.json", description), Route("/docs", page), *files]
