"""What CopilotKit's pages ask of a runtime beside runs: suggestions, resources in one envelope, clearing, the cloud's."""

from __future__ import annotations

import httpx
import pytest

from agent_server.agents import Agent
from agent_server.engines.scripted import Fault, Script
from tests.http.routes.test_copilotkit import body, events_of, sender, text_of
from tests.server import scripted, serving

SUGGESTED = '<tool_call>\n{"name": "copilotkitSuggest", "arguments": {"suggestions": []}}\n</tool_call>'
TOOL = {
    "name": "copilotkitSuggest",
    "description": "Suggest what the user could say next",
    "parameters": {"type": "object", "properties": {"suggestions": {"type": "array"}}},
}


def asked(thread: str = "s1") -> dict:
    """As `@copilotkit/core` 1.74 asks for suggestions."""
    choice = {"type": "function", "function": {"name": "copilotkitSuggest"}}
    return body("Suggest", threadId=thread, runId=thread, tools=[TOOL], forwardedProps={"toolChoice": choice})


def single(method: str, given=None, **params) -> dict:
    return {"method": method, "params": params, **({} if given is None else {"body": given})}


async def threads_of(client: httpx.AsyncClient) -> list[str]:
    return [each["id"] for each in (await client.get("/copilotkit/threads")).json()["threads"]]


@pytest.mark.parametrize(
    ("path", "wrap"),
    [
        ("/copilotkit/agent/sender/suggest", lambda given: given),
        ("/copilotkit", lambda given: single("agent/suggest", given, agentId="sender")),
        ("/copilotkit/agent/sender/run", lambda given: given),
        ("/copilotkit", lambda given: single("agent/run", given, agentId="sender")),
    ],
)
async def test_suggestions_are_forced_and_leave_no_thread(path, wrap):
    engine = scripted(SUGGESTED)
    async with serving(engine, agents=[sender()]) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = (await client.get("/copilotkit/info")).json()
        events = events_of(await client.post(path, json=wrap(asked())))
        assert await threads_of(client) == []
        (request,) = engine.requests
        prompt = running.server.model.prompts.detokenize(request.prompt_token_ids)
    assert info["suggestions"] is True
    assert [each["toolCallName"] for each in events if each["type"] == "TOOL_CALL_START"] == ["copilotkitSuggest"]
    assert events[-1]["type"] == "RUN_FINISHED"
    assert request.constraint is not None
    assert "copilotkitSuggest" in prompt and '"send"' not in prompt


async def test_suggest_stores_nothing_whatever_it_is_asked():
    engine = scripted("Hello.")
    async with serving(engine) as running, httpx.AsyncClient(base_url=running.url) as client:
        events = events_of(await client.post("/copilotkit/agent/default/suggest", json=body()))
        unknown = await client.post("/copilotkit/agent/nobody/suggest", json=body())
        assert await threads_of(client) == []
        events_of(await client.post("/copilotkit/agent/default/run", json=body(runId="r2")))
        assert await threads_of(client) == ["t1"]
    assert text_of(events) == "Hello." and unknown.status_code == 404


async def test_a_tool_choice_that_names_no_tool_of_the_page_is_refused():
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        wrong = await client.post("/copilotkit/agent/default/run", json={**asked(), "tools": []})
        shapeless = await client.post(
            "/copilotkit/agent/default/run", json=body(forwardedProps={"toolChoice": {"type": "function"}}, runId="r9")
        )
    assert events_of(wrong)[-1]["code"] == "invalid_request"
    assert shapeless.status_code == 400 and "must name a function" in shapeless.text


async def test_the_single_endpoint_reaches_every_thread_resource():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        info = (await client.post("/copilotkit", json=single("info"))).json()
        events_of(await client.post("/copilotkit/agent/default/run", json=body(threadId="t 1 ö")))

        async def ask(path: str, verb: str = "GET", given=None) -> httpx.Response:
            call = single("resource/request", given, path=path, httpMethod=verb)
            return await client.post("/copilotkit", json=call)

        listed = (await ask("/threads?agentId=default&limit=1")).json()["threads"]
        none = (await ask("/threads?agentId=other")).json()["threads"]
        renamed = await ask("/threads/t%201%20%C3%B6", "PATCH", {"name": "New"})
        archived = await ask("/threads/t%201%20%C3%B6/archive", "POST")
        refused = [
            await ask(path, verb)
            for path, verb in (
                ("/info", "GET"),
                ("/agent/default/run", "POST"),
                ("/threads", "POST"),
                ("/../agui/threads", "GET"),
                ("/threads/../../v1/models", "GET"),
            )
        ]
        outside = [await ask(path) for path in ("//evil.test/threads", "http://evil.test/threads", "")]
    assert info["singleRoute"]["resourceOperations"] is True
    assert [each["id"] for each in listed] == ["t 1 ö"] and none == []
    assert renamed.json()["name"] == "New" and archived.json()["archived"] is True
    assert [answer.status_code for answer in refused] == [404] * 5
    assert [answer.status_code for answer in outside] == [400] * 3


async def test_a_thread_is_renamed_read_and_deleted_through_the_envelope():
    async with serving(scripted("Hello.")) as running, httpx.AsyncClient(base_url=running.url) as client:
        events_of(await client.post("/copilotkit/agent/default/run", json=body()))

        async def ask(path: str, verb: str = "GET", given=None) -> httpx.Response:
            return await client.post("/copilotkit", json=single("resource/request", given, path=path, httpMethod=verb))

        assert (await ask("/threads/t1", "patch", {"name": "New"})).json()["name"] == "New"
        assert [each["role"] for each in (await ask("/threads/t1/messages")).json()["messages"]] == [
            "user",
            "assistant",
        ]
        assert (await ask("/threads/t1", "DELETE")).json() == {"deleted": True}
        assert await threads_of(client) == []
        assert (await ask("/threads/t1", "DELETE")).status_code == 404


@pytest.mark.parametrize("enveloped", [False, True])
async def test_clearing_deletes_every_thread_and_stops_what_runs(enveloped):
    endless = scripted([Script(text="Hello."), Script(text="and on", fault=Fault(action="hang", after=1))])
    async with serving(endless) as running, httpx.AsyncClient(base_url=running.url, timeout=20) as client:
        events_of(await client.post("/copilotkit/agent/default/run", json=body()))
        async with client.stream(
            "POST", "/copilotkit/agent/default/run", json=body(threadId="t2", runId="r2")
        ) as going:
            await anext(going.aiter_bytes())
            if enveloped:
                call = single("resource/request", path="/threads/clear", httpMethod="POST")
                answer = await client.post("/copilotkit", json=call)
            else:
                answer = await client.post("/copilotkit/threads/clear")
        assert answer.status_code == 204 and await threads_of(client) == []
        assert await running.server.runs.going_on("t2") == []


async def test_what_is_the_cloud_s_is_refused_as_a_runtime_without_it_refuses():
    async with serving(scripted("x")) as running, httpx.AsyncClient(base_url=running.url) as client:
        metadata = await client.get("/copilotkit/inspector-metadata")
        enveloped = await client.post("/copilotkit", json=single("inspector/metadata"))
        annotated = await client.post("/copilotkit/annotate", json={"type": "thumbs", "threadId": "t1"})
    assert metadata.status_code == enveloped.status_code == 204
    assert metadata.headers["cache-control"] == "no-store, private"
    assert annotated.status_code == 422 and "cloud" in annotated.json()["message"]


async def test_a_page_that_filters_its_messages_loses_none_of_the_rest():
    """`messageFilter` may leave the last message alone; the thread has the others, and the model is told them."""
    engine = scripted("Hello.")
    async with serving(engine, agents=[Agent(name="default")]) as running:
        async with httpx.AsyncClient(base_url=running.url) as client:
            events_of(await client.post("/copilotkit/agent/default/run", json=body("First")))
            last = [{"id": "u2", "role": "user", "content": "Second"}]
            events_of(await client.post("/copilotkit/agent/default/run", json=body(messages=last, runId="r2")))
            kept = (await client.get("/copilotkit/threads/t1/messages")).json()["messages"]
        prompt = running.server.model.prompts.detokenize(engine.requests[-1].prompt_token_ids)
    assert [each["content"] for each in kept] == ["First", "Hello.", "Second", "Hello."]
    assert "First" in prompt and "Second" in prompt
