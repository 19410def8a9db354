"""The agents over A2A, asked by the official SDK's own client."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

pytest.importorskip("a2a", reason="needs the extra a2a")

from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import CancelTaskRequest, GetTaskRequest, Message, Part, Role, SendMessageRequest, TaskState
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from agent_server.engines.scripted import Script
from tests.http.routes.test_mcp_server import WEATHER, call
from tests.server import scripted, serving


@contextlib.asynccontextmanager
async def client(running, *, key: str = "", streaming: bool = True) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(headers=headers, timeout=60) as http:
        card = await A2ACardResolver(http, f"{running.url}/a2a/weather").get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


def said(text: str, task: Any = None) -> SendMessageRequest:
    message = new_text_message(text, role=Role.ROLE_USER)
    if task is not None:
        message.task_id, message.context_id = task.id, task.context_id
    return SendMessageRequest(message=message)


def data(value: dict[str, Any], task: Any) -> SendMessageRequest:
    part = Part(data=ParseDict(value, Value()), media_type="application/json")
    return SendMessageRequest(
        message=Message(message_id="m", role=Role.ROLE_USER, parts=[part], task_id=task.id, context_id=task.context_id)
    )


async def events_of(a2a: Client, request: SendMessageRequest) -> list[Any]:
    return [event async for event in a2a.send_message(request)]


async def task_after(a2a: Client, request: SendMessageRequest) -> Any:
    """The task as it is once the message has been answered."""
    events = await events_of(a2a, request)
    first = events[0]
    id = first.task.id or first.status_update.task_id
    return await a2a.get_task(GetTaskRequest(id=id))


async def test_the_card_says_what_the_agent_is_and_that_a_key_is_needed():
    async with (
        serving(scripted("Hi."), agents=[WEATHER], api_keys="a:key-of-a") as running,
        httpx.AsyncClient() as http,
    ):
        assert (await http.get(f"{running.url}/.well-known/agent-card.json")).status_code == 401
        headers = {"Authorization": "Bearer key-of-a"}
        card = (await http.get(f"{running.url}/.well-known/agent-card.json", headers=headers)).json()
    assert (card["name"], card["description"]) == ("weather", "Knows the weather.")
    assert card["supportedInterfaces"][0]["url"] == f"{running.url}/a2a/weather"
    assert card["securitySchemes"]["key"]["httpAuthSecurityScheme"]["scheme"] == "Bearer"


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_message_is_answered_with_progress_and_an_artifact(streaming):
    engine = scripted([call("get_weather", '{"place": "Oslo"}'), Script(text="It rains."), Script(text="Still.")])
    async with serving(engine, agents=[WEATHER]) as running, client(running, streaming=streaming) as a2a:
        events = await events_of(a2a, said("Weather?"))
        first = events[0].task
        task = await a2a.get_task(GetTaskRequest(id=first.id))
        told = [event.status_update.status.message.parts[0].text for event in events
                if event.HasField("status_update") and event.status_update.status.message.parts]  # fmt: skip
        again = said("And now?")
        again.message.context_id = first.context_id
        second = await task_after(a2a, again)
    assert task.status.state == TaskState.TASK_STATE_COMPLETED and task.artifacts[0].parts[0].text == "It rains."
    assert second.artifacts[0].parts[0].text == "Still." and second.context_id == first.context_id
    assert not streaming or "Calls get_weather." in told


async def test_what_the_agent_asks_makes_the_task_wait_for_input_and_no_text_is_a_consent():
    engine = scripted([call("pay", '{"amount": 5}'), call("seat"), Script(text="All done.")])
    async with serving(engine, agents=[WEATHER]) as running, client(running) as a2a:
        task = await task_after(a2a, said("go"))
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert task.status.message.parts[0].text == 'Run pay?\npay {"amount": 5}'
        task = await task_after(a2a, said("yes", task))
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert "data part" in task.status.message.parts[0].text
        (question,) = MessageToDict(task.status.message.parts[-1].data)["questions"]
        task = await task_after(a2a, data({"answers": {question["id"]: {"approved": True}}}, task))
        assert task.status.message.parts[0].text == "Which row?"
        task = await task_after(a2a, data({"row": 7}, task))
        assert task.artifacts[0].parts[0].text == "All done."
        ((thread, *_), _) = await running.server.store.threads("", limit=1)
        results = [each["content"] for each in await running.server.store.messages("", thread.id)
                   if each["role"] == "tool"]  # fmt: skip
    assert results == ["Paid 5.", "Row 7."]


async def test_a_task_is_cancelled_with_its_run():
    engine = scripted([Script(text="word " * 400, delay=0.05)])
    async with serving(engine, agents=[WEATHER]) as running, client(running) as a2a:
        stream = a2a.send_message(said("go"))
        async with asyncio.timeout(30):
            task = (await anext(stream)).task
            while not running.server.runs.active:
                await asyncio.sleep(0.01)
            cancelled = await a2a.cancel_task(CancelTaskRequest(id=task.id))
            assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
            while running.server.runs.active:
                await asyncio.sleep(0.01)
        await stream.aclose()


async def test_a_task_is_its_user_s_and_outlives_the_server(tmp_path):
    options = {"api_keys": "a:key-of-a,b:key-of-b", "store_url": f"sqlite+aiosqlite:///{tmp_path}/threads.db"}
    async with serving(scripted("Hi."), agents=[WEATHER], **options) as running, client(running, key="key-of-a") as a2a:
        task = await task_after(a2a, said("go"))
    async with serving(scripted("Hi."), agents=[WEATHER], **options) as running:
        async with client(running, key="key-of-a") as a2a:
            assert (await a2a.get_task(GetTaskRequest(id=task.id))).artifacts[0].parts[0].text == "Hi."
        async with client(running, key="key-of-b") as other:
            with pytest.raises(Exception, match=r"[Nn]ot found"):
                await other.get_task(GetTaskRequest(id=task.id))
