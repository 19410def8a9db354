"""Choosing a model on the page: what this machine can run, fetching it, and serving it without a restart."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters.errors import RequestError
from agent_server.http.routes.health_routes import json_response
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_body
from agent_server.model_files.catalogue import machine, offers
from agent_server.model_files.pulling import PullError, local_models, search
from agent_server.observability.audit import note

if TYPE_CHECKING:
    from agent_server.http.server import Server

T = TypeVar("T")
MAX_BYTES = 4096


class ModelAction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """download, pause, discard: of a model by its hub name. serve: a hub name, a folder or a GGUF file."""

    action: Literal["download", "pause", "discard", "serve"]
    source: str


def routes(server: Server) -> list[BaseRoute]:
    async def shown(request: Request) -> Response:
        """The list for this machine, what is here, what is being fetched; with `search`, what the hub has."""
        _allow()
        if words := request.query_params.get("search"):
            return json_response({"found": await _asked(functools.partial(search, words))})
        found = await asyncio.to_thread(machine, server.settings.compute.device)
        body = {
            "machine": found,
            "offers": offers(found),
            "local": await asyncio.to_thread(lambda: list(local_models())),
            "downloads": server.downloads.describe(),
            "fault": server.switch_fault,
        }
        return json_response(body)

    async def change(request: Request) -> Response:
        _allow()
        try:
            wish = msgspec.json.decode(await read_body(request, MAX_BYTES), type=ModelAction)
        except (ValueError, RecursionError) as error:
            raise RequestError("invalid_request", f'Send {{"action": "download", "source": "..."}}: {error}') from None
        note(f"model.{wish.action}", model=wish.source)
        if wish.action == "serve":
            server.switch_model(wish.source)
        elif wish.action == "download":
            server.downloads.start(wish.source)
        elif wish.action == "pause":
            server.downloads.pause(wish.source)
        else:
            await _asked(functools.partial(server.downloads.discard, wish.source))
        return json_response({"downloads": server.downloads.describe()}, 202)

    def _allow() -> None:
        if server.make_model is None:
            message = "The model of this server is not changed from here: set AGENT_SERVER_MODELS_CHANGE=on."
            raise RequestError("forbidden", message)

    if not server.settings.watching.demo:
        return []
    return [
        Route("/demo/models", guarded(shown), methods=["GET"]),
        Route("/demo/models", guarded(change), methods=["POST"]),
    ]


async def _asked(work: functools.partial[T]) -> T:
    """What the hub or the disk says, in a thread."""
    try:
        return await asyncio.to_thread(work)
    except PullError as error:
        raise RequestError("invalid_request", str(error), "source") from None
