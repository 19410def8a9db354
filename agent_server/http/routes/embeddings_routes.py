"""`/v1/embeddings`: vectors of texts, where the server has a model for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from adapters import openai_embeddings
from agent_server.http.routes.answering import chosen_beside
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_request

if TYPE_CHECKING:
    from agent_server.http.server import Server

NO_MODEL = (
    "This server has no embedding model, and a model that chats makes no embeddings; "
    "start it with --embedding-model FOLDER."
)


def routes(server: Server) -> list[BaseRoute]:
    async def embeddings(request: Request) -> Response:
        query = await read_request(server, request, openai_embeddings.parse, starts_run=False)
        found = chosen_beside(server, server.embeddings, query.model, NO_MODEL, "makes no embeddings")
        made = await found.embed(
            query.inputs, dimensions=query.dimensions, truncate=query.truncate, prompt=query.prompt
        )
        body = openai_embeddings.embedding_body(
            made.vectors, made.tokens, query.model or found.name, query, made.warnings
        )
        return Response(body, media_type="application/json")

    return [Route("/v1/embeddings", guarded(embeddings), methods=["POST"])]
