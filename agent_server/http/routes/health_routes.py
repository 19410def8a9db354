"""Health, readiness, metrics and replicas, for load balancers and operators."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.engines.replicas import ReplicaSet
from agent_server.http.routes.http import guarded, read_struct
from agent_server.observability.audit import note
from agent_server.version import version

if TYPE_CHECKING:
    from agent_server.http.server import Server


ENGINE_DETAILS = (
    "engine", "device", "dtype", "attention", "fused_layers", "cuda_graphs", "fused_sampler", "compiler", "slow"
)  # fmt: skip
"""What `/ready` shows of an engine's details."""


def json_response(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")


def routes(server: Server) -> list[BaseRoute]:
    async def health(request: Request) -> Response:
        """Whether the process answers, regardless of the model."""
        return json_response({"status": "ok"})

    async def ready(request: Request) -> Response:
        """200 once runs can start and the auxiliary models are ready; 503 with the reason while loading, failing or
        shutting down. A loaded engine says how it computes, and why if a part of it is slow."""
        status, fault = server.status, server.store.fault
        serving = status.state in ("ready", "degraded") and not status.silent
        unready = next((each.unready for each in server.auxiliary_models if each.unready), "")
        good = serving and not server.closing and fault is None and not unready
        message = status.message or (unready if serving else "")
        body: dict[str, Any] = {
            "ready": good,
            "state": "stopping" if server.closing else status.state,
            "message": message if fault is None else f"The database of conversations cannot be used: {fault}.",
        }
        if status.progress is not None:
            body["progress"] = round(status.progress, 3)
        with contextlib.suppress(EngineError):  # not loaded
            details = server.model.engine.info.details
            if engine := {name: details[name] for name in ENGINE_DETAILS if name in details}:
                body["engine"] = engine
        return json_response(body, 200 if good else 503)

    async def versions(request: Request) -> Response:
        return json_response({"version": version()})

    async def load(request: Request) -> Response:
        """The number of active runs, in the format of vLLM's `/load`."""
        return json_response({"server_load": server.runs.active})

    async def metrics(request: Request) -> Response:
        return Response(server.telemetry.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    routes: list[BaseRoute] = [
        Route("/health", health),
        Route("/ready", ready),
        Route("/version", versions),
        Route("/load", load),
        *replicas_routes(server),
    ]
    if server.settings.watching.metrics:
        routes.append(Route("/metrics", metrics))
    return routes


MAX_CHANGE_BYTES = 4096


class ReplicaChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Drain a replica, or take it back. draining: whether it gets no new generations."""

    name: str
    draining: bool


def replicas_routes(server: Server) -> list[BaseRoute]:
    def replicas() -> ReplicaSet:
        engine = server.model.engine
        if not isinstance(engine, ReplicaSet):
            raise RequestError("not_found", "This server has no replicas. Start it with --engine URL to add some.")
        return engine

    def answer() -> Response:
        replica_set = replicas()
        body: dict[str, Any] = {"state": replica_set.status.state, "waiting": replica_set.balancer.waiting}
        return json_response({**body, "replicas": replica_set.describe()})

    async def show(request: Request) -> Response:
        return answer()

    async def drain(request: Request) -> Response:
        body = await read_struct(request, ReplicaChange, MAX_CHANGE_BYTES, 'Send {"name": "...", "draining": true}')
        if not replicas().drain(body.name, body.draining):
            raise RequestError("not_found", f"There is no replica named {body.name!r}.")
        note("replica.drained" if body.draining else "replica.resumed", replica=body.name)
        return answer()

    return [
        Route("/operator/replicas", guarded(show), methods=["GET"]),
        Route("/operator/replicas", guarded(drain), methods=["POST"]),
    ]
