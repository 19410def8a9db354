"""AG-UI: `POST /agui` (or `/agui/{agent}`) takes a RunAgentInput and streams the run's events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import agui, agui_protobuf
from adapters.errors import RequestError
from adapters.inbound import Inbound
from agent_server.agent.capabilities import capabilities_of
from agent_server.ids import new_id
from agent_server.routes.app_answers import app_answer, stream_answer_of_app
from agent_server.routes.http import Encoder, guarded, read_body, stream_run

if TYPE_CHECKING:
    from agent_server.server import Server


def encoder_for(accept: str | None, inbound: Inbound) -> Encoder:
    legacy = inbound.extra.legacy
    if agui.negotiate(accept) == agui.PROTOBUF:
        return agui_protobuf.Encoder(legacy=legacy)
    return agui.Encoder(legacy=legacy)


def routes(server: Server) -> list[BaseRoute]:
    settings = server.settings

    async def run(request: Request) -> Response:
        body = await read_body(request, settings.max_body)
        inbound = await parse_off_loop(body)
        encoder = encoder_for(request.headers.get("accept"), inbound)
        agent = request.path_params.get("agent", "default")
        if (answer := app_answer(server, agent, inbound, request.state.tenant)) is not None:
            return stream_answer_of_app(answer, encoder, settings.keep_alive)
        started = await server.runs.start(
            inbound.input,
            inbound.options,
            agent=agent,
            tenant=request.state.tenant,
            grace=settings.grace,
            warnings=inbound.extra.warnings,
        )
        return stream_run(started, encoder, interval=settings.keep_alive)

    async def capabilities(request: Request) -> Response:
        name = request.path_params.get("agent", "default")
        agent = server.agents.get(name)
        if agent is None:
            raise RequestError("not_found", f"There is no agent of that name. Agents: {', '.join(server.agents)}.")
        found = capabilities_of(agent.agent, server.model)
        return Response(found.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")

    return [
        Route("/agui", guarded(run), methods=["POST"]),
        Route("/agui/capabilities", guarded(capabilities)),
        Route("/agui/{agent}/capabilities", guarded(capabilities)),
        Route("/agui/{agent}", guarded(run), methods=["POST"]),
    ]


LARGE = 64 * 1024


async def parse_off_loop(body: bytes) -> Inbound:
    """Large bodies are parsed in a thread, so that no other request waits for them."""
    if len(body) <= LARGE:
        return agui.parse(body, new_id=new_id)
    return await run_in_threadpool(agui.parse, body, new_id=new_id)
