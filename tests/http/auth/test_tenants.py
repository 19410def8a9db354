"""What one tenant has, another can neither read, steer, change, delete nor notice: a walk over all routes.

Each route is asked with another tenant's ids, and with ids that nobody has: the answers must be the same, and what
was there must be as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
import websockets
from starlette.routing import Route

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Script
from agent_server.http.app import build_app
from tests.server import Running, scripted, serving

SECRET = "canary-7741"
PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
Ids = dict[str, str]
shared = pytest.mark.asyncio(loop_scope="module")


@tool(requires_approval=True)
def wipe(target: str) -> str:
    """Wipe something."""
    return f"wiped {target}"


def script(request: Any) -> Script:
    if request.sampling.seed == 1:
        call = f'<tool_call>\n{{"name": "wipe", "arguments": {{"target": "{SECRET}"}}}}\n</tool_call>'
        return Script(text=call)
    return Script(text=f"{SECRET} " * 2000, delay=0.05) if request.sampling.seed == 2 else Script(text=f"{SECRET}.")


def sent(thread: str, run: str, *, seed: int = 0, **more: Any) -> dict[str, Any]:
    said = {"id": f"u-{run}", "role": "user", "content": f"About {SECRET}"}
    given = {"threadId": thread, "runId": run, "protocolVersion": "1.0", "messages": [said], "tools": []}
    return {**given, "context": [], "forwardedProps": {"seed": seed}, "state": {"held": SECRET}, **more}


class House:
    """A server, what the tenant `a` has there, and clients of both tenants."""

    def __init__(self, running: Running, a: httpx.AsyncClient, b: httpx.AsyncClient) -> None:
        self.app: Any = build_app(running.server)
        self.url, self.a, self.b = running.url, a, b
        self.ids: Ids = {}
        self.interrupt = ""

    async def furnish(self) -> None:
        await self.a.post("/agui", json=sent("thread-a", "run-0"))
        await self.a.post("/agui", json=sent("thread-a", "run-0b", messages=sent("thread-a", "run-0")["messages"]))
        (removed,) = (await self.a.get("/agui/threads/thread-a/removed")).json()["removed"]
        asked = await self.a.post("/agui", json=sent("asking-a", "run-1", seed=1))
        self.interrupt = re.findall(r'"interrupts":\[{"id":"([^"]+)"', asked.text)[0]
        going = await self.a.post("/agui", json=sent("going-a", "run-2", seed=2), headers={"prefer": "respond-async"})
        assert going.status_code == 202
        response = {"model": "default", "input": f"About {SECRET}", "background": True, "seed": 2}
        item = {"type": "message", "role": "user", "content": SECRET, "id": "item-a"}
        conversation = await self.a.post("/v1/conversations", json={"items": [item]})
        self.ids = {
            "thread_id": "thread-a", "run_id": "run-2", "message_id": "u-run-0", "removal_id": removed["id"],
            "chat_id": "going-a",
            "item": "item-a", "response": (await self.a.post("/v1/responses", json=response)).json()["id"],
            "conversation": conversation.json()["id"],
        }  # fmt: skip

    async def held(self) -> dict[str, Any]:
        """All that `a` has, as far as it stands still."""
        ids = self.ids
        found = {}
        for path in (
            "/agui/threads?limit=100",
            *(f"/agui/threads/{thread}" for thread in ("thread-a", "asking-a", "going-a")),
            *(f"/agui/threads/thread-a/{part}" for part in ("removed", "runs", "feedback", "state")),
            f"/v1/conversations/{ids['conversation']}",
            f"/v1/conversations/{ids['conversation']}/items",
            f"/v1/responses/{ids['response']}/input_items",
        ):
            answer = await self.a.get(path)
            assert answer.status_code == 200, path
            found[path] = answer.json()
        run, response = await self.a.get("/agui/runs/run-2"), await self.a.get(f"/v1/responses/{ids['response']}")
        found["run"] = {name: run.json()[name] for name in ("status", "paused", "agent")}
        found["response"] = response.json()["status"]
        return found

    def walk(self) -> list[tuple[str, str]]:
        """(method, path) of every route that names something of a tenant's."""
        routes = [route for route in self.app.routes if isinstance(route, Route)]
        named = [each for each in routes if set(PARAMETER.findall(each.path)) & {*self.ids, "id"}]
        return [(method, each.path) for each in named for method in sorted((each.methods or set()) - {"HEAD"})]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    agents = [Agent(name="default", tools=[wipe])]
    async with (
        serving(scripted(script), agents=agents, api_keys=("a:key-a", "b:key-b")) as running,
        contextlib.AsyncExitStack() as stack,
    ):
        a, b = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=running.url, headers={"x-api-key": f"key-{tenant}"}, timeout=20)
            )
            for tenant in "ab"
        ]
        made = House(running, a, b)
        await made.furnish()
        yield made
        await a.post("/agui/runs/run-2/cancel")
        await a.delete(f"/v1/responses/{made.ids['response']}")


def nobody(ids: Ids) -> Ids:
    """Ids of the same form that nobody has."""
    return {name: re.sub(r"[0-9a-z](?=[^0-9a-z]*$)", "z", value) for name, value in ids.items()}


def path_with(path: str, ids: Ids) -> str:
    kind = "conversation" if "/conversations/" in path else "response"
    given = {**ids, "id": ids[kind], "agent": "default"}
    return PARAMETER.sub(lambda found: given[found[1]], path)


def body(method: str, path: str, ids: Ids) -> dict[str, Any] | None:
    if method in ("GET", "DELETE"):
        return None
    last = path.rpartition("/")[2]
    item = {"type": "message", "role": "user", "content": "taken"}
    bodies: dict[str, dict[str, Any]] = {
        "feedback": {"messageId": ids["message_id"], "score": 1}, "branch": {"messageId": ids["message_id"]},
        "items": {"items": [item]}, "{id}": {"metadata": {"taken": "yes"}}, "{thread_id}": {"name": "taken"},
        "modify": {"temperature": 0.5}, "stop": {},
    }  # fmt: skip
    return {} if "/stop/" in path else bodies.get(last, {})


def told(answer: httpx.Response, ids: Ids) -> tuple[int, str, list[str]]:
    """An answer without the ids that were asked for, and without its own."""
    text = answer.text
    for value in sorted(ids.values(), key=len, reverse=True):
        text = text.replace(value, "ID")
    text = re.sub(r"(req|run|msg)_[0-9a-f]+", r"\1", text)
    return answer.status_code, text, sorted(set(answer.headers) - {"content-length"})


@shared
async def test_another_tenant_s_things_are_as_if_they_were_not_there(house: House):
    before, unknown = await house.held(), nobody(house.ids)
    assert set(unknown.values()).isdisjoint(house.ids.values())
    walk = house.walk()
    assert len(walk) > 35, walk
    for method, path in walk:
        answers = [
            told(await house.b.request(method, path_with(path, ids), json=body(method, path, ids)), ids)
            for ids in (house.ids, unknown)
        ]
        assert answers[0] == answers[1], (method, path)
        assert answers[0][0] in (200, 204, 404) and SECRET not in answers[0][1], (method, path, answers[0])
        if method == "GET" and not path.endswith(("events", "wires", "/stream")):  # its owner has it
            assert (await house.a.get(path_with(path, house.ids))).status_code == 200, path
    assert await house.held() == before


LISTS = ("/agui/threads", "/copilotkit/threads", "/copilotkit/info", "/v1/models", "/agui/mcp", "/agui/capabilities")


@shared
async def test_lists_hold_the_tenant_s_own(house: House):
    for path in LISTS:
        answer = await house.b.get(path)
        assert answer.status_code == 200 and not any(each in answer.text for each in (SECRET, *house.ids.values()))
    assert len((await house.a.get("/agui/threads")).json()["threads"]) == 4


def in_one(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": {"agentId": "default", **params}, "body": {"threadId": params.get("threadId")}}


@shared
async def test_the_single_endpoint_and_sockets_reach_no_other_tenant(house: House):
    before, unknown = await house.held(), nobody(house.ids)
    threads = ["/threads", *(f"/threads/{{thread_id}}/{part}" for part in ("messages", "events", "state"))]
    calls = [("GET", path) for path in threads]
    calls += [("POST", "/threads/{thread_id}/archive"), ("PATCH", "/threads/{thread_id}"), ("POST", "/threads/clear")]
    calls += [("DELETE", "/threads/{thread_id}")]
    for ids in (house.ids, unknown):
        for method, path in calls:
            named = in_one("resource/request", path=path_with(path, ids), httpMethod=method)
            answer = await house.b.post("/copilotkit", json=named)
            assert answer.status_code in (200, 204, 404) and SECRET not in answer.text, (method, path, answer.text)
    for thread in ("thread-a", "asking-a", "going-a"):
        for method in ("agent/connect", "agent/stop"):
            answer = await house.b.post("/copilotkit", json=in_one(method, threadId=thread))
            assert SECRET not in answer.text and '"stopped":true' not in answer.text
    async with (
        asyncio.timeout(10),
        websockets.connect(house.url.replace("http", "ws") + "/agui/ws?api_key=key-b") as socket,
    ):
        await socket.send(json.dumps({"type": "subscribe", "runId": "run-2"}))
        assert "no such run" in str(await socket.recv())
    assert await house.held() == before


@shared
async def test_the_same_ids_are_other_things_for_another_tenant(house: House):
    before = await house.held()
    approval = {"interruptId": house.interrupt, "status": "resolved", "payload": {"approved": True}}
    approved = await house.b.post("/agui", json=sent("asking-a", "run-9", messages=[], resume=[approval]))
    assert "wiped" not in approved.text and "RUN_ERROR" in approved.text
    mine = [{"id": "mine", "role": "user", "content": "Mine"}]
    for thread, run in (("thread-a", "run-0"), ("asking-a", "run-8"), ("going-a", "run-2")):  # the last goes on, for a
        answer = await house.b.post("/agui", json=sent(thread, run, messages=mine, state={}))
        assert answer.status_code == 200 and "RUN_FINISHED" in answer.text
        kept = (await house.b.get(f"/agui/threads/{thread}")).json()
        assert [each["id"] for each in kept["messages"] if each["role"] == "user"] == ["mine"] and not kept[
            "interrupts"
        ]
    assert await house.held() == before
