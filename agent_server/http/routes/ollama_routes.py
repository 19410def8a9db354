"""Ollama's routes: chat, generate, embeddings, and information about the models."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import ollama
from adapters.body import Inbound
from adapters.ollama import LATEST, OllamaIdentity, OllamaStream, ollama_body
from agent_server.http.routes.answering import (
    answer_json,
    model_name,
    select_auxiliary,
    server_tool_names,
    start_runs,
    stream_answer,
)
from agent_server.http.routes.http import guarded, read_request
from agent_server.http.routes.openai_routes import NO_EMBEDDINGS, model_cards, served_under
from agent_server.ids import new_id

if TYPE_CHECKING:
    from agent_server.http.server import Server

VERSION = "0.13.4"
"""The version of Ollama whose wire this is: clients compare it with their minimum version. Codex asks for 0.13.4, the
first with `/v1/responses`."""


def routes(server: Server) -> list[BaseRoute]:
    started_at = int(time.time())

    def json(body: bytes) -> Response:
        return Response(body, media_type="application/json")

    def without_latest(name: str) -> str:
        """The name without the tag `:latest`, which Ollama's clients append, unless a model has it."""
        return name if name in server.agents else name.removesuffix(LATEST)

    def answers(parse: Callable[..., Inbound]) -> Callable[[Request], object]:
        async def answer(request: Request) -> Response:
            inbound = await read_request(server, request, partial(parse, new_id=new_id, media=server.takes))
            requested_model = inbound.options.model or ""
            options = msgspec.structs.replace(inbound.options, model=without_latest(requested_model))
            inbound = msgspec.structs.replace(inbound, options=options)
            model_name(server, options)
            identity = OllamaIdentity(
                model=requested_model, now=time.time, hidden_tools=server_tool_names(server, inbound)
            )
            if inbound.extra.load:
                return json(ollama.loaded_body(identity, inbound.extra))
            runs = await start_runs(server, request, inbound)
            if inbound.stream:
                return await stream_answer(server, request, runs, OllamaStream(identity, inbound.extra))
            return await answer_json(request, runs, lambda events: ollama_body(events[0], identity, inbound.extra))

        return guarded(answer)

    def embeds(old: bool) -> Callable[[Request], object]:
        async def embed(request: Request) -> Response:
            query = await read_request(server, request, partial(ollama.parse_embed, old=old), starts_run=False)
            model = without_latest(query.model or "")
            embedding_model = select_auxiliary(server, server.embeddings, model, NO_EMBEDDINGS, "makes no embeddings")
            result = await embedding_model.embed(
                query.inputs, dimensions=query.dimensions, truncate=query.truncate, prompt=None
            )
            return json(ollama.embed_body(result.vectors, result.tokens, query.model or embedding_model.name, old=old))

        return guarded(embed)

    async def tags(request: Request) -> Response:
        return json(ollama.tags_body(model_cards(server, started_at)))

    async def running(request: Request) -> Response:
        return json(ollama.tags_body(card for card in model_cards(server, started_at) if card.status == "ready"))

    async def show(request: Request) -> Response:
        cards = model_cards(server, started_at)
        name = without_latest(await read_request(server, request, ollama.parse_show, starts_run=False))
        return json(
            ollama.show_body(cards, name if any(card.id == name for card in cards) else served_under(server, name))
        )

    async def version(request: Request) -> Response:
        return json(ollama.version_body(VERSION))

    return [
        Route("/api/chat", answers(ollama.parse_chat), methods=["POST"]),
        Route("/api/generate", answers(ollama.parse_generate), methods=["POST"]),
        Route("/api/embed", embeds(old=False), methods=["POST"]),
        Route("/api/embeddings", embeds(old=True), methods=["POST"]),
        Route("/api/tags", guarded(tags)),
        Route("/api/ps", guarded(running)),
        Route("/api/show", guarded(show), methods=["POST"]),
        Route("/api/version", guarded(version)),
    ]
