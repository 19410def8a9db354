"""What Amazon SageMaker asks of a container that serves a model: `/ping`, and `/invocations` for all requests.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html; as in vLLM, what a request is for
shows in its fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message

from adapters.errors import RequestError
from agent_server.http.routes import embeddings_routes, openai_routes
from agent_server.http.routes.http import guarded
from agent_server.http.routes.request_body import read_run_body

if TYPE_CHECKING:
    from agent_server.http.server import Server

PLACES = {"messages": "/v1/chat/completions", "prompt": "/v1/completions", "input": "/v1/embeddings"}
"""The field that a request must have → the route that answers it."""


class InvocationHead(msgspec.Struct):
    """The fields as they came; empty for one that did not."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


def routes(server: Server) -> list[BaseRoute]:
    known = [*openai_routes.routes(server), *embeddings_routes.routes(server)]
    endpoints = {route.path: route.endpoint for route in known if isinstance(route, Route)}

    async def invocations(request: Request) -> Response:
        body = await read_run_body(server, request)
        answer: Response = await endpoints[_place(body)](_again(request, body))
        return answer

    async def ping(request: Request) -> Response:
        return Response()

    return [
        Route("/invocations", guarded(invocations), methods=["POST"]),
        Route("/ping", ping, methods=["GET", "POST"]),
    ]


def _place(body: bytes) -> str:
    try:
        head = msgspec.json.decode(body, type=InvocationHead)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return PLACES["messages"]  # which says what is wrong with the body
    place = next((path for field, path in PLACES.items() if bytes(getattr(head, field)) not in (b"", b"null")), None)
    if place is None:
        raise RequestError("invalid_request", f"The request needs one of these fields: {', '.join(PLACES)}.")
    return place


def _again(request: Request, body: bytes) -> Request:
    """The request with its body, which was read, unread."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return waiting.pop() if waiting else await request.receive()

    return Request(request.scope, receive)
