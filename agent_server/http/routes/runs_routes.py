"""Runs by id: read their events from any position, and control them.

`GET /agui/runs/{id}/events` replays the events after `Last-Event-ID` (or `?after=`) and continues live; the numbers are
the SSE ids of the run's first stream. `POST /agui/runs/{id}/cancel|pause|resume|modify` controls a run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from adapters.body import read_json
from adapters.errors import RequestError
from agent_server.http.routes.agui_routes import encoder_for, position
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import Encoder, guarded, read_body, stream_run
from agent_server.http.routes.openai_routes import IdRoute
from events.vocabulary import PROTOCOL_VERSION

if TYPE_CHECKING:
    from agent_server.http.server import Server
    from agent_server.runs.sharing.interfaces import AnyRun

CONTROL_BODY = 64 * 1024


def routes(server: Server) -> list[BaseRoute]:
    async def find_run(request: Request) -> AnyRun:
        return await server.runs.find(request.path_params["run_id"], request.state.tenant)

    async def events(request: Request) -> Response:
        run = await find_run(request)
        run.check_position(after := position(request))
        return stream_run(run, replay_encoder(request, run), interval=server.settings.http.keep_alive, after=after)

    async def show(request: Request) -> Response:
        return json_response(run_status(await find_run(request)))

    async def modify(request: Request) -> Response:
        run = await find_run(request)
        changes = read_json(await read_body(request, CONTROL_BODY))
        if not isinstance(changes, dict):
            raise RequestError("invalid_request", "The body must be an object of sampling parameters.")
        return control_response(run, await run.modify(changes))

    def control(act: Callable[[AnyRun], Awaitable[bool]]) -> Callable[[Request], Awaitable[Response]]:
        async def apply(request: Request) -> Response:
            run = await find_run(request)
            return control_response(run, await act(run))

        return guarded(apply)

    base = "/agui/runs/{run_id}"
    return [
        IdRoute(base, guarded(show)),
        IdRoute(base + "/events", guarded(events)),
        IdRoute(base + "/cancel", control(lambda run: run.cancel()), methods=["POST"]),
        IdRoute(base + "/pause", control(lambda run: run.pause()), methods=["POST"]),
        IdRoute(base + "/resume", control(lambda run: run.resume()), methods=["POST"]),
        IdRoute(base + "/modify", guarded(modify), methods=["POST"]),
    ]


def replay_encoder(request: Request, run: AnyRun) -> Encoder:
    """The encoder for the protocol version of the run's input, or of `?protocolVersion=`."""
    version = request.query_params.get("protocolVersion", run.input.protocol_version)
    legacy = version is None or version.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]
    return encoder_for(request, legacy=legacy)


def run_status(run: AnyRun) -> dict[str, object]:
    return {
        "runId": run.id,
        "threadId": run.thread_id,
        "agent": run.agent,
        "status": run.state,
        "paused": run.paused,
        "oldestEvent": run.log.oldest,
        "lastEvent": run.log.last,
    }


def control_response(run: AnyRun, done: bool) -> Response:
    """The response to a control; 409 if the run has ended or its engine does not support the control."""
    if not done:
        raise RequestError("conflict", "The run has ended, or its engine does not support this.")
    return json_response(run_status(run), 202)
