"""AG-UI: `POST /agui` (or `/agui/{agent}`) takes a RunAgentInput and streams the run's events.

A client that sends the same request with `Last-Event-ID` lost the connection: it gets the events after that one, and no
second run begins.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import agui, agui_protobuf, tanstack
from adapters.body import notes_of_request
from adapters.errors import RequestError
from agent_server.http.routes.answering import app_answer, stream_answer_of_app
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import Encoder, guarded, id_headers, read_request, stream_run
from agent_server.ids import new_id

if TYPE_CHECKING:
    from ag_ui.core import RunAgentInput

    from agent_server.http.server import Server
    from agent_server.runs import Run
    from agent_server.runs.driver import StoreWrite


DIGITS = 15


def encoder_for(request: Request, *, legacy: bool) -> Encoder:
    """The encoder for the request's Accept header. legacy: for a client older than AG-UI 1.0."""
    if tanstack.HEADER in request.headers:
        return tanstack.TanStackEncoder(legacy=legacy)
    if agui.negotiate(request.headers.get("accept")) == agui.PROTOBUF:
        return agui_protobuf.ProtobufEncoder(legacy=legacy)
    return agui.SseEncoder(legacy=legacy)


def position(request: Request) -> int:
    """The number of the last event that the client has, from `?after=` or the header that SSE clients reconnect
    with."""
    value = request.query_params.get("after") or request.headers.get("last-event-id") or "0"
    if not (value.isascii() and value.isdigit()) or len(value) > DIGITS:
        raise RequestError("invalid_request", "The position must be the number of an event.", "after")
    return int(value)


def wants_no_reader(request: Request) -> bool:
    """Whether the client requests a detached run, with `Prefer: respond-async` (RFC 7240, section 4.1)."""
    preferences = ",".join(request.headers.getlist("prefer")).split(",")
    return any(each.partition(";")[0].strip().lower() == "respond-async" for each in preferences)


def webhook_of(request: Request) -> str | None:
    """The URL that is notified of the run's end."""
    return request.headers.get("webhook-url")


def webhook_for(
    server: Server, url: str | None, detached: bool, input: RunAgentInput, tenant: str
) -> StoreWrite | None:
    """The store write that registers a webhook for the run's end. Raises RequestError."""
    if url is None:
        return None
    if not detached:
        raise RequestError("invalid_request", "A webhook requires the header Prefer: respond-async.", "webhook-url")
    if server.webhooks is None:
        raise RequestError("invalid_request", "This server sends no webhooks.", "webhook-url")
    server.webhooks.check(url)
    return server.webhooks.registration(tenant, input.thread_id, input.run_id, url)


def accepted_response(request: Request, run: Run) -> Response:
    """202 with the URL at which the run can be read and controlled."""
    url = f"{request.scope.get('root_path', '')}/agui/runs/{quote(run.id, safe='')}"
    headers = {"location": url, "preference-applied": "respond-async", **id_headers(run)}
    answer = json_response({"runId": run.id, "threadId": run.thread_id, "status": run.state}, 202)
    answer.headers.update(headers)
    return answer


def routes(server: Server) -> list[BaseRoute]:
    settings = server.settings

    async def run(request: Request) -> Response:
        parse = partial(agui.parse, new_id=new_id, media=server.takes)
        inbound = await read_request(server, request, parse, apps=True)
        encoder = encoder_for(request, legacy=inbound.extra.legacy)
        agent = request.path_params.get("agent", "default")
        if (answer := app_answer(server, agent, inbound)) is not None:
            return stream_answer_of_app(answer, encoder, settings.http.keep_alive)
        if "last-event-id" in request.headers:
            begun = await server.runs.find(inbound.input.run_id, request.state.tenant)
            if begun.thread_id != inbound.input.thread_id:
                raise RequestError("conflict", "The run with this id belongs to another thread.", "runId")
            begun.check_position(after := position(request))
            if isinstance(encoder, tanstack.TanStackEncoder) and begun.log.oldest == 1:
                encoder.skip, after = after, 0  # it needs all calls
            return stream_run(begun, encoder, interval=settings.http.keep_alive, after=after)
        detached = wants_no_reader(request)
        webhook = webhook_for(server, webhook_of(request), detached, inbound.input, request.state.tenant)
        started = await server.runs.start(
            inbound.input,
            inbound.options,
            agent=agent,
            tenant=request.state.tenant,
            grace=float("inf") if detached else settings.runs.grace,
            warnings=[*inbound.extra.warnings, *notes_of_request().warnings],
            on_accept=webhook,
        )
        if detached:
            return accepted_response(request, started)
        return stream_run(started, encoder, interval=settings.http.keep_alive)

    async def capabilities(request: Request) -> Response:
        name = request.path_params.get("agent", "default")
        if name not in server.agents:
            raise RequestError("not_found", f"There is no agent of that name. Agents: {', '.join(server.agents)}.")
        capabilities = server.capabilities(name)
        return Response(capabilities.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")

    return [
        Route("/agui", guarded(run), methods=["POST"]),
        Route("/agui/capabilities", guarded(capabilities)),
        Route("/agui/{agent}/capabilities", guarded(capabilities)),
        Route("/agui/{agent}", guarded(run), methods=["POST"]),
    ]
