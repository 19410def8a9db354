"""What the table of fixed paths finds is what the router would find."""

from __future__ import annotations

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match, Route, Router

from agent_server.http.middleware.route_table import RouteTable
from tests.server import scripted, settings


def say(text: str):
    async def answer(request: Request) -> Response:
        params = ",".join(f"{name}={value}" for name, value in request.path_params.items())
        return PlainTextResponse(f"{text} {params}".strip())

    return answer


def routes() -> list[Route]:
    return [
        Route("/a", say("get a")),
        Route("/a", say("post a"), methods=["POST"]),
        Route("/b/{name}", say("any b")),
        Route("/b/fixed", say("never reached"), methods=["GET", "POST"]),
        Route("/a", say("second")),
    ]


async def ask(app: object, method: str, path: str) -> tuple[int, str]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.request(method, path)
        return answer.status_code, answer.text


@pytest.mark.parametrize("path", ["/a", "/b/x", "/b/fixed", "/a/", "/none", "/later"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "DELETE"])
async def test_an_answer_is_the_routers_own(method, path):
    plain, tabled = Router(routes()), Router(routes())
    tabled.middleware_stack = RouteTable(tabled)
    for router in (plain, tabled):
        router.routes.append(Route("/later", say("added later")))
    assert await ask(tabled, method, path) == await ask(plain, method, path)


def test_every_fixed_path_of_the_server_is_in_the_table():
    from agent_server.http.app import create_app

    app = create_app(settings(), engine=scripted("Hi."))
    table = app.router.middleware_stack
    assert isinstance(table, RouteTable)
    for route in app.routes:
        if isinstance(route, Route) and not route.param_convertors:
            for method in route.methods or ():
                scope = {"type": "http", "path": route.path, "root_path": "", "method": method}
                first = next(each for each in app.routes if each.matches(scope)[0] is Match.FULL)
                assert table.find(scope) is (None if first.param_convertors else first)
