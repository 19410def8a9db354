"""The description of the API against what is served: nothing missing, nothing invented, no answer outside of it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from schemathesis.checks import CHECKS
from starlette.routing import Route

from agent_server.http.app import Application, create_app
from agent_server.http.openapi.operation import Operation
from agent_server.http.openapi.operations import OPERATIONS
from tests.server import Running, scripted, serving
from tests.server import settings as server_settings

EXAMPLES = 10
BUILT_PAGE = {("GET", "/favicon.svg")}
"""Routes that a checkout without the built page does not have."""


def test_every_route_has_a_row_and_every_row_a_route():
    app = create_app(server_settings())
    served = {
        (method, re.sub(r"{(\w+):\w+}", r"{\1}", route.path))
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served - set(OPERATIONS) == set()
    assert set(OPERATIONS) - served <= BUILT_PAGE


def test_the_description_is_openapi():
    validate(create_app(server_settings()).openapi())


def test_a_refused_field_may_have_its_neutral_value_alone():
    fields = create_app(server_settings()).openapi()["components"]["schemas"]["ChatCompletionRequest"]
    assert fields["properties"]["echo"]["enum"] == [False, None]
    assert fields["properties"]["temperature"]["maximum"] == 100
    assert fields["additionalProperties"] is False


STREAMS = [
    (path, row)
    for (method, path), row in OPERATIONS.items()
    if method == "POST"
    and row.stream not in (None, dict)
    and row.example
    and "{" not in path
    and row.tag != "CopilotKit"
]


@pytest.mark.parametrize(("path", "row"), STREAMS, ids=[path for path, _ in STREAMS])
async def test_the_data_of_every_event_fits_its_description(path: str, row: Operation):
    described = create_app(server_settings()).openapi()
    content = described["paths"][path]["post"]["responses"]["200"]["content"]
    data_schema = content["text/event-stream"]["schema"]["properties"]["data"]
    of_data = data_schema.get("anyOf", [data_schema])[0]["contentSchema"]
    validator = Draft202012Validator({**of_data, "components": described["components"]})
    engine = scripted("<think>Hm.</think>I can tell you about the weather.")
    async with serving(engine) as running, httpx.AsyncClient() as client:
        answer = await client.post(running.url + path, json={**(row.example or {}), **_streaming(path)})
    assert answer.status_code == 200
    data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(each) for each in data if each != "[DONE]"]
    assert len(events) > 3
    for event in events:
        validator.validate(event)


CALL = '<tool_call>\n{"name": "write", "arguments": {"input": "a"}}\n</tool_call>'
EXTENDED = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "logprobs": True},
    "/v1/completions": {"prompt": "Hi", "logprobs": 1},
}
ASKED_FOR = {"timings_per_token": True, "return_token_ids": True, "cache_prompt": True, "stop": ["zz"]}


@pytest.mark.parametrize("path", EXTENDED)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_fields_add_to_an_answer_is_described(path: str, stream: bool):
    """Nothing in an answer is without a description, whatever was asked for."""
    described = create_app(server_settings()).openapi()
    content = described["paths"][path]["post"]["responses"]["200"]["content"]
    schema = content["application/json"]["schema"]
    if stream:
        schema = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"][0]["contentSchema"]
    validator = Draft202012Validator({**_closed(schema), "components": _closed(described["components"])})
    body = {**EXTENDED[path], **ASKED_FOR, "stream": stream}
    if path == "/v1/chat/completions":
        body["tools"] = [{"type": "custom", "custom": {"name": "write"}}]
    if not stream:
        body["prompt_logprobs"] = 1
    async with serving(scripted(CALL)) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = running.engine.info  # scripts have none, and the shape is what counts
        running.engine.__dict__["_info"] = msgspec.structs.replace(info, sampling=info.sampling | {"prompt_logprobs"})
        answer = await client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    told = [line[6:] for line in lines if line.startswith("data: {")] if stream else [answer.text]
    for each in told:
        validator.validate(json.loads(each))
    assert all(f'"{name}"' in answer.text for name in ("timings", "extensions", "token_ids"))
    assert stream or '"prompt_logprobs"' in answer.text


def _closed(schema: object) -> object:
    """The schema with no properties but those that it names."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(value) for key, value in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


def _streaming(path: str) -> dict[str, bool]:
    return {} if path.startswith("/agui") else {"stream": True}


class Thread:
    """A server in a thread of its own, for a client that blocks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self.url = ""

    async def _serve(self) -> None:
        async with serving(scripted("I can tell you about the weather."), metrics=True) as running:
            self._say(running)
            await self._stop.wait()

    def _say(self, running: Running) -> None:
        self.url = running.url
        self._started.set()

    def __enter__(self) -> Thread:
        self._thread.start()
        assert self._started.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)
        self._loop.close()


@pytest.fixture(scope="module")
def api() -> Iterator[schemathesis.schemas.BaseSchema]:
    with Thread() as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        yield schema


CHECKED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")

UNCONFIGURED = "/copilotkit/transcribe"
"""Answers 503 here, where no model transcribes: CopilotKit's own code for that."""

ASKED = sorted(OPERATIONS.keys() - BUILT_PAGE)


@pytest.mark.parametrize(("method", "path"), ASKED, ids=map(" ".join, ASKED))
@pytest.mark.timeout(300)
def test_every_answer_fits_its_description(api: schemathesis.schemas.BaseSchema, method: str, path: str):
    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=api[path][method].as_strategy())
    def answer(case: schemathesis.Case) -> None:
        checks = CHECKED[1:] if path == UNCONFIGURED else CHECKED
        case.call_and_validate(checks=CHECKS.get_by_names(list(checks)), timeout=20)

    answer()


async def test_the_description_is_built_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    """It takes a second or two, in which others are served."""
    threads: list[int] = []
    build = Application.openapi

    def openapi(app: Application) -> dict[str, object]:
        threads.append(threading.get_ident())
        return build(app)

    monkeypatch.setattr(Application, "openapi", openapi)
    async with serving(scripted("hi")) as running, httpx.AsyncClient(base_url=running.url) as client:
        assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.")
    assert threads and threading.get_ident() not in threads
