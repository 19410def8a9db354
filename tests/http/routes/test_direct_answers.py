"""What is answered without the framework's layers is what is answered through them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from starlette.requests import ClientDisconnect

from agent_server.http.app import Application, create_app
from agent_server.http.middleware.context import REQUEST_ID_HEADER
from agent_server.http.routes.direct_answers import DirectAnswers
from tests.server import scripted, settings

KEY = {"authorization": "Bearer secret"}
CHAT = {"messages": [{"role": "user", "content": "Hello"}]}


class Around:
    """A layer that somebody put around the routes; it does nothing."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)


def application(*, layered: bool = False, **changes: Any) -> Application:
    chosen = settings(api_keys=("secret",), allowed_hosts=("known.example",), **changes)
    app = create_app(chosen, engine=scripted("Hi."))
    if layered:
        app.add_middleware(Around)
    return app


@pytest.fixture
async def both() -> AsyncIterator[tuple[Application, Application]]:
    direct, layered = application(), application(layered=True)
    async with direct.running(), layered.running():
        while not (direct.state.server.model.ready and layered.state.server.model.ready):
            await asyncio.sleep(0.01)
        yield direct, layered


async def ask(app: Application, method: str, path: str, **given: Any) -> tuple[int, dict[str, str], bytes]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://known.example") as client:
        answer = await client.request(method, path, **given)
    headers = {name: value for name, value in answer.headers.items() if name != REQUEST_ID_HEADER.decode()}
    assert REQUEST_ID_HEADER.decode() in answer.headers
    request_id = answer.headers[REQUEST_ID_HEADER.decode()].encode()
    return answer.status_code, headers, answer.content.replace(request_id, b"ID")


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each request, whether it was answered directly."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)  # tests of traces set one for the whole process
    seen: list[bool] = []
    usual = DirectAnswers.find

    def find(self: DirectAnswers, *arguments: Any) -> Any:
        route = usual(self, *arguments)
        seen.append(route is not None)
        return route

    monkeypatch.setattr(DirectAnswers, "find", find)
    return seen


@pytest.mark.parametrize(
    ("method", "path", "given", "status"),
    [
        ("POST", "/v1/chat/completions", {"headers": KEY, "json": {}}, 400),
        ("POST", "/v1/chat/completions", {"headers": KEY, "content": b"{"}, 400),
        ("POST", "/v1/chat/completions", {"json": CHAT}, 401),
        ("POST", "/v1/chat/completions", {"headers": {"x-api-key": "wrong"}, "json": CHAT}, 401),
        ("POST", "/v1/chat/completions", {"headers": {**KEY, "content-type": "text/plain"}, "content": b"{}"}, 415),
        ("POST", "/v1/chat/completions", {"headers": {**KEY, "sec-fetch-site": "cross-site"}, "json": CHAT}, 403),
        ("POST", "/v1/chat/completions", {"headers": {**KEY, "host": "rebound.example"}, "json": CHAT}, 403),
        ("POST", "/v1/messages", {"json": CHAT}, 401),
        ("GET", "/v1/models", {}, 401),
        ("GET", "/operator/replicas", {"headers": KEY}, 403),
        ("HEAD", "/health", {}, 200),
        ("GET", "/health", {"headers": {"host": "whatever.example"}}, 200),
        ("POST", "/tokenize", {"headers": KEY, "json": {"prompt": "Hello"}}, 200),
    ],
)
async def test_an_answer_is_that_of_the_layers(both, found, method, path, given, status):
    answers = [await ask(app, method, path, **given) for app in both]
    assert answers[0] == answers[1] and answers[0][0] == status
    assert found == [True], "the second way was the long one"


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/nowhere", KEY),
        ("DELETE", "/v1/models", KEY),
        ("GET", "/v1/models/other", KEY),
        ("GET", "/copilotkit/info", KEY),  # a route with a middleware of its own
    ],
)
async def test_what_the_layers_are_for_goes_through_them(both, found, method, path, headers):
    answers = [await ask(app, method, path, headers=headers) for app in both]
    assert answers[0] == answers[1] and found == [False]


@pytest.mark.parametrize("raised", [RuntimeError("inside"), ClientDisconnect()])
async def test_what_a_route_raises_is_answered_alike(both, found, monkeypatch, caplog, raised):
    def broken(*_: object) -> None:
        raise raised

    for app in both:
        monkeypatch.setattr(app.state.server.runs, "check_room", broken)
    answers = [await ask(app, "POST", "/v1/chat/completions", headers=KEY, json=CHAT) for app in both]
    assert answers[0] == answers[1] and found == [True]
    assert answers[0][0] == (500 if isinstance(raised, RuntimeError) else 499)
    assert [bool(record.exc_info) for record in caplog.records if "unhandled" in record.message] == (
        [True, True] if isinstance(raised, RuntimeError) else []
    )


@pytest.mark.parametrize("origin", [{}, {"origin": "https://page.example"}])
async def test_with_origins_to_be_told_of_every_answer_goes_through_that_layer(found, origin):
    app = application(cors_origins=("https://page.example",))
    async with app.running():
        _, headers, _ = await ask(app, "GET", "/health", headers=origin)
    assert headers["vary"] == "Origin" and found == []


async def test_a_handler_that_was_added_answers(found):
    app = application()

    async def own(request: object, error: Exception) -> Any:
        raise AssertionError("not asked here")

    app.add_exception_handler(ValueError, own)
    async with app.running():
        assert (await ask(app, "GET", "/health"))[0] == 200
    assert found == [] and app._direct is None
