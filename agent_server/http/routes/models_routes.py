"""Models for an operator: load and unload, download and switch, and LoRA adapters."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.engine_protocol.protocol import EngineError
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded, read_struct
from agent_server.model_files.catalogue import machine, offers
from agent_server.model_files.pulling import PullError, local_models, search
from agent_server.models.pool import AdaptedModel, ModelPool
from agent_server.observability.audit import note

if TYPE_CHECKING:
    from agent_server.http.server import Server

MAX_CHANGE_BYTES = 4096


class ModelChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Load a model, or unload it once its generations are complete. loaded: the state that it should have."""

    name: str
    loaded: bool


def routes(server: Server) -> list[BaseRoute]:
    def pool() -> ModelPool:
        if server.pool is None:
            raise RequestError(
                "not_found",
                "This server has one model, which stays loaded. Start it with several models to load and unload them.",
            )
        return server.pool

    def answer(status: int = 200) -> Response:
        return json_response({"models": pool().describe()}, status)

    async def show(request: Request) -> Response:
        return answer()

    async def change(request: Request) -> Response:
        body = await read_struct(request, ModelChange, MAX_CHANGE_BYTES, 'Send {"name": "...", "loaded": true}')
        model = pool().models.get(body.name)
        if model is None:
            raise RequestError("not_found", f"There is no model named {body.name!r}.", "name")
        note("model.loaded" if body.loaded else "model.unloaded", model=body.name)
        if body.loaded:
            pool().begin(model)
        elif model.current is not None and model.loading is None:
            pool().unload(model)
        return answer(202)

    return [
        Route("/operator/models", guarded(show), methods=["GET"]),
        Route("/operator/models", guarded(change), methods=["POST"]),
        *model_choice_routes(server),
        *adapters_routes(server),
    ]


T = TypeVar("T")
MAX_ACTION_BYTES = 4096


class ModelAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An action on a model. source: a hub name; for `serve` also a folder or a GGUF file."""

    action: Literal["download", "pause", "discard", "serve"]
    source: str


def model_choice_routes(server: Server) -> list[BaseRoute]:
    async def show(request: Request) -> Response:
        """Models for this machine, local models and downloads; with `search`, models on the hub."""
        _allow()
        if words := request.query_params.get("search"):
            return json_response({"found": await _in_thread(functools.partial(search, words))})
        this_machine = await asyncio.to_thread(machine, server.settings.compute.device)
        body = {
            "machine": this_machine,
            "offers": offers(this_machine),
            "local": await asyncio.to_thread(lambda: list(local_models())),
            "downloads": server.downloads.describe(),
            "fault": server.switch_fault,
        }
        return json_response(body)

    async def change(request: Request) -> Response:
        _allow()
        body = await read_struct(request, ModelAction, MAX_ACTION_BYTES, 'Send {"action": "download", "source": "..."}')
        note(f"model.{body.action}", model=body.source)
        if body.action == "serve":
            server.switch_model(body.source)
        elif body.action == "download":
            server.downloads.start(body.source)
        elif body.action == "pause":
            server.downloads.pause(body.source)
        else:
            await _in_thread(functools.partial(server.downloads.discard, body.source))
        return json_response({"downloads": server.downloads.describe()}, 202)

    def _allow() -> None:
        if server.make_model is None:
            message = "Changing the model is turned off. Set AGENT_SERVER_MODELS_CHANGE=on."
            raise RequestError("forbidden", message)

    if not server.settings.watching.demo:
        return []
    return [
        Route("/demo/models", guarded(show), methods=["GET"]),
        Route("/demo/models", guarded(change), methods=["POST"]),
    ]


async def _in_thread(work: functools.partial[T]) -> T:
    """Run work on the hub or the disk in a thread. Raises RequestError for a PullError."""
    try:
        return await asyncio.to_thread(work)
    except PullError as error:
        raise RequestError("invalid_request", str(error), "source") from None


MAX_LORA_BYTES = 8192


class NewAdapter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A LoRA adapter to load. name: what clients request it as. folder: on the server's machine. model: its base model;
    "" for the first."""

    name: str
    folder: str
    model: str = ""


class AdapterRecord(msgspec.Struct, frozen=True):
    """A served adapter and its base model."""

    name: str
    model: str


def adapters_routes(server: Server) -> list[BaseRoute]:
    def answer(status: int = 200) -> Response:
        adapters = [each for each in server.models.values() if isinstance(each, AdaptedModel)]
        return json_response({"adapters": [AdapterRecord(each.name, each.root.name) for each in adapters]}, status)

    async def show(request: Request) -> Response:
        return answer()

    async def load(request: Request) -> Response:
        body = await read_struct(request, NewAdapter, MAX_LORA_BYTES, 'Send {"name": "...", "folder": "..."}')
        try:
            await server.load_adapter(body.name, body.folder, body.model)
        except EngineError as error:
            if error.retryable:
                raise
            raise RequestError("invalid_request", error.message, "folder") from error
        note("adapter.loaded", adapter=body.name, model=body.model)
        return answer(201)

    async def remove(request: Request) -> Response:
        await server.remove_adapter(request.path_params["name"])
        note("adapter.removed", adapter=request.path_params["name"])
        return Response(status_code=204)

    return [
        Route("/operator/adapters", guarded(show), methods=["GET"]),
        Route("/operator/adapters", guarded(load), methods=["POST"]),
        Route("/operator/adapters/{name}", guarded(remove), methods=["DELETE"]),
    ]
