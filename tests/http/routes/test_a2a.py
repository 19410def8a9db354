"""The agents over A2A, asked by the official SDK's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

pytest.importorskip("a2a", reason="needs the extra a2a")

from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types.a2a_pb2 import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Value

from agent_server.engines.scripted import Script
from agent_server.observability.library_logs import WithoutContents
from agent_server.runs.webhooks import Webhooks
from tests.http.routes.test_mcp_server import WEATHER, call
from tests.media.test_fetching import certificate as certificate
from tests.runs.store.test_webhooks import SECRET, Receiver, receiving
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


async def test_a_task_that_is_cancelled_while_it_waits_closes_its_questions(tmp_path):
    options = {"store_url": f"sqlite+aiosqlite:///{tmp_path}/threads.db"}
    engine = scripted([call("pay", '{"amount": 5}'), Script(text="Nothing was paid.")])
    async with serving(engine, agents=[WEATHER], **options) as running, client(running) as a2a:
        here = await task_after(a2a, said("go"))
        assert here.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        cancelled = await a2a.cancel_task(CancelTaskRequest(id=here.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        again = said("And now?")
        again.message.context_id = here.context_id
        assert (await task_after(a2a, again)).artifacts[0].parts[0].text == "Nothing was paid."
    # asked by one server, cancelled at the next
    engine = scripted([call("pay", '{"amount": 5}')])
    async with serving(engine, agents=[WEATHER], **options) as running, client(running) as a2a:
        there = await task_after(a2a, said("go"))
    async with serving(scripted("Fine."), agents=[WEATHER], **options) as running, client(running) as a2a:
        await a2a.cancel_task(CancelTaskRequest(id=there.id))
        again = said("And now?")
        again.message.context_id = there.context_id
        assert (await task_after(a2a, again)).artifacts[0].parts[0].text == "Fine."


def sdk_tasks() -> list[asyncio.Task[Any]]:
    return [each for each in asyncio.all_tasks() if "ActiveTask" in each.get_coro().__qualname__]  # type: ignore[union-attr]


async def test_a_task_that_waits_for_an_answer_holds_nothing_for_long(tmp_path, monkeypatch):
    """What is left of it after the server would be finalized in any thread, and wait for a lock there for ever."""
    engine = scripted([call("pay", '{"amount": 5}'), call("pay", '{"amount": 6}'), Script(text="Paid.")])
    options = {"store_url": f"sqlite+aiosqlite:///{tmp_path}/threads.db"}
    async with serving(engine, agents=[WEATHER], **options) as running, client(running) as a2a:
        await task_after(a2a, said("go"))
        assert sdk_tasks()
    assert not sdk_tasks()
    monkeypatch.setattr("agent_server.http.a2a.INTERRUPTED_SECONDS", 0.05)
    async with serving(engine, agents=[WEATHER], **options) as running, client(running) as a2a:
        asked = await task_after(a2a, said("go"))
        async with asyncio.timeout(20):
            while sdk_tasks():
                await asyncio.sleep(0.01)
        ids = [each["id"] for each in MessageToDict(asked.status.message.parts[1].data)["questions"]]
        answered = await task_after(a2a, data({"answers": {each: {"approved": True} for each in ids}}, asked))
        assert answered.artifacts[0].parts[0].text == "Paid."


async def test_a_user_s_tasks_are_listed_by_context_and_state(tmp_path):
    options = {"api_keys": "a:key-of-a,b:key-of-b", "store_url": f"sqlite+aiosqlite:///{tmp_path}/threads.db"}
    engine = scripted([Script(text="One."), Script(text="Two."), call("pay", '{"amount": 5}')])
    async with serving(engine, agents=[WEATHER], **options) as running:
        async with client(running, key="key-of-a") as a2a:
            one, two, asked = [await task_after(a2a, said("go")) for _ in range(3)]
            everything = await a2a.list_tasks(ListTasksRequest(include_artifacts=True))
            page = await a2a.list_tasks(ListTasksRequest(page_size=2))
            rest = await a2a.list_tasks(ListTasksRequest(page_size=2, page_token=page.next_page_token))
            of_one = await a2a.list_tasks(ListTasksRequest(context_id=one.context_id))
            waiting = await a2a.list_tasks(ListTasksRequest(status=TaskState.TASK_STATE_INPUT_REQUIRED))
        async with client(running, key="key-of-b") as other:
            nothing = await other.list_tasks(ListTasksRequest())
    assert [each.id for each in everything.tasks] == [asked.id, two.id, one.id] and everything.total_size == 3
    assert everything.tasks[2].artifacts[0].parts[0].text == "One." and not page.tasks[1].artifacts
    assert [each.id for each in (*page.tasks, *rest.tasks)] == [asked.id, two.id, one.id]
    assert [each.id for each in of_one.tasks] == [one.id] and [each.id for each in waiting.tasks] == [asked.id]
    assert not nothing.tasks


@contextlib.asynccontextmanager
async def telling(port: int, certificate: Any, monkeypatch: Any, engine: Any, **more: Any) -> AsyncIterator[Any]:
    """A server whose notifications may go to the receiver at that port."""
    start = Webhooks.start

    def to_the_receiver(webhooks: Webhooks) -> None:
        webhooks._allowed, webhooks._ssl = (lambda address: address == "127.0.0.1"), certificate[1]
        start(webhooks)

    monkeypatch.setattr(Webhooks, "start", to_the_receiver)
    hosts = {"webhook_hosts": (f"media.test:{port}",), "webhook_secrets": (SECRET,)}
    async with serving(engine, agents=[WEATHER], **hosts, **more) as running:
        yield running


async def test_changes_of_a_task_are_pushed_in_order_signed_and_with_its_credentials(certificate, monkeypatch):
    receiver = Receiver(500, 200)
    monkeypatch.setattr("agent_server.http.a2a.PUSH_ATTEMPTS", (0.0, 0.0))
    async with asyncio.timeout(60), receiving(receiver, certificate, monkeypatch) as port:
        engine = scripted([call("pay", '{"amount": 5}'), Script(text="Paid.")])
        async with telling(port, certificate, monkeypatch, engine) as running, client(running) as a2a:
            config = TaskPushNotificationConfig(
                id="mine",
                url=f"https://media.test:{port}/hook",
                token="my-token",
                authentication=AuthenticationInfo(scheme="Bearer", credentials="my-secret"),
            )
            request = said("go")
            request.configuration.CopyFrom(SendMessageConfiguration(task_push_notification_config=config))
            task = await task_after(a2a, request)
            kept = await a2a.get_task_push_notification_config(
                GetTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
            )
            assert kept.url == config.url
            told = []
            while "TASK_STATE_INPUT_REQUIRED" not in str(told):
                told.append(await receiver.told.get())
            stored = await running.server.store.response("", f"a2apush_{task.id}")
            await a2a.delete_task_push_notification_config(
                DeleteTaskPushNotificationConfigRequest(task_id=task.id, id="mine")
            )
            (question,) = MessageToDict(task.status.message.parts[-1].data)["questions"]
            await task_after(a2a, data({"answers": {question["id"]: {"approved": True}}}, task))
    headers = {name.lower(): value for name, value in told[0][0].items()}
    assert headers["x-a2a-notification-token"] == "my-token" and headers["authorization"] == "Bearer my-secret"
    assert headers["webhook-signature"].startswith("v1,")
    assert told[0][0]["webhook-id"] == told[1][0]["webhook-id"] and told[0][1] == told[1][1], "the first was refused"
    assert len({each[0]["webhook-id"] for each in told}) == len(told) - 1
    assert "my-secret" not in str(stored) and receiver.told.empty()


async def test_notifications_go_nowhere_that_webhooks_may_not_go(certificate, monkeypatch):
    async with receiving(Receiver(200), certificate, monkeypatch) as port:
        engine = scripted("One.")
        async with telling(port, certificate, monkeypatch, engine) as running, client(running) as a2a:
            for url in ("http://media.test/hook", "https://elsewhere.test/hook", f"https://127.0.0.1:{port}/"):
                request = said("go")
                config = SendMessageConfiguration(task_push_notification_config=TaskPushNotificationConfig(url=url))
                request.configuration.CopyFrom(config)
                with pytest.raises(Exception, match=r"webhook|https|host"):
                    await task_after(a2a, request)


def posted(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def message(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": list(parts), **more}}


VERSION = {"A2A-Version": "1.0"}
BODIES = {
    "a body that is too large": (posted("SendMessage", message({"text": "x" * 2**20})), 413),
    "more values than the SDK converts in time": (posted("SendMessage", message({"data": [1] * 3000})), 413),
    "too deep": ("[" * 500 + "]" * 500, -32700),
    "not JSON": ("{", -32700),
    "not JSON by RFC 8259": ('{"jsonrpc": NaN}', -32700),
}


@pytest.mark.parametrize("name", BODIES)
async def test_bodies_have_limits_before_the_sdk_gets_them(name):
    content, expected = BODIES[name]
    text = content if isinstance(content, str) else json.dumps(content)
    async with (
        serving(scripted("Hi."), agents=[WEATHER]) as running,
        httpx.AsyncClient(base_url=running.url, headers=VERSION, timeout=60) as http,
    ):
        answer = await http.post("/a2a/weather", content=text)
        compressed = await http.post("/a2a/weather", content=b"x", headers={"Content-Encoding": "gzip"})
        fine = await http.post("/a2a/weather", json=posted("SendMessage", message({"text": "a"}, {"data": [1] * 1000})))
    assert (answer.status_code if expected > 0 else answer.json()["error"]["code"]) == expected
    assert compressed.status_code == 415 and "error" not in fine.json()


async def test_the_sdk_s_warnings_have_no_contents_and_stay_on_one_line(caplog, monkeypatch):
    library = logging.getLogger("a2a")
    own = [each for each in library.handlers if isinstance(each, WithoutContents)]
    monkeypatch.setattr(library, "handlers", own)  # without pytest's
    secrets = [
        posted("SendMessage", {"message": {"role": "canary-1", "parts": "canary-2"}}) | {"id": "canary-3\nforged"},
        posted("message/send", {"message": {"role": "canary-4", "parts": "canary-5"}}),
        posted("canary-6", {}),
        {"jsonrpc": "canary-7"},
    ]
    async with (
        serving(scripted("Hi."), agents=[WEATHER]) as running,
        httpx.AsyncClient(base_url=running.url, headers=VERSION, timeout=60) as http,
    ):
        for secret in secrets:
            assert (await http.post("/a2a/weather", json=secret)).json()["error"]
    told = [each for each in caplog.records if "a2a" in each.getMessage()]
    assert own and told and {each.name for each in told} == {"agent_server.libraries"}
    assert "canary" not in caplog.text and not any("\n" in each.getMessage() or each.exc_info for each in told)


async def test_a_list_reads_no_more_than_a_few_megabytes_of_tasks(monkeypatch):
    monkeypatch.setattr("agent_server.http.a2a.MAX_LISTED_BYTES", 20_000)
    async with serving(scripted("Hi."), agents=[WEATHER]) as running:
        async with httpx.AsyncClient(base_url=running.url, headers=VERSION, timeout=60) as http:
            for text in ("x" * 50_000, "a" * 5000, "b" * 5000, "c" * 50_000):
                sent = await http.post("/a2a/weather", json=posted("SendMessage", message({"text": text})))
                task = sent.json()["result"]["task"]
            latest = (await http.post("/a2a/weather", json=posted("ListTasks", {}))).json()["result"]["tasks"]
            await http.post("/a2a/weather", json=posted("SendMessage", message({"text": "small"})))
            few = (await http.post("/a2a/weather", json=posted("ListTasks", {}))).json()["result"]["tasks"]
        kept = await running.server.store.newest_responses("", "a2a_", 10, most_bytes=20_000)
    assert [each["id"] for each in latest] == [task["id"]], "one that is larger is listed alone"
    assert len(few) == len(kept) == 1


async def test_a_task_that_is_answered_wrongly_again_and_again_does_not_grow(monkeypatch):
    monkeypatch.setattr("agent_server.http.a2a.TASK_BYTES", 20_000)
    engine = scripted([call("pay", '{"amount": 5}'), Script(text="All done.")])
    async with serving(engine, agents=[WEATHER]) as running, client(running) as a2a:
        task = await task_after(a2a, said("go"))
        for _ in range(8):
            task = await task_after(a2a, said("x" * 5000, task))
        assert task.status.state == TaskState.TASK_STATE_INPUT_REQUIRED and task.ByteSize() < 25_000
        (question,) = MessageToDict(task.status.message.parts[-1].data)["questions"]
        task = await task_after(a2a, data({"answers": {question["id"]: {"approved": True}}}, task))
    assert task.artifacts[0].parts[0].text == "All done."


async def test_a_task_is_no_response():
    async with serving(scripted("Hi."), agents=[WEATHER]) as running:
        async with httpx.AsyncClient(base_url=running.url, headers=VERSION, timeout=60) as http:
            sent = await http.post("/a2a/weather", json=posted("SendMessage", message({"text": "go"})))
            id = f"a2a_{sent.json()['result']['task']['id']}"
            continued = {"model": "default", "input": "x", "previous_response_id": id}
            answers = [
                await http.get(f"/v1/responses/{id}"),
                await http.delete(f"/v1/responses/{id}"),
                await http.post("/v1/responses", json=continued),
            ]
        assert await running.server.store.response("", id) is not None
    assert [each.status_code for each in answers] == [404, 404, 404]
