"""An Agno agent behind the server: what clients see of it, and what its model is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from agno.agent import Agent
from agno.models.response import ModelResponse
from agno.team import Team
from openai import AsyncOpenAI

from tests.agents.guests.agno_agents import Scripted, agno_agent
from tests.agents.guests.talking import PAINT, body, events_of, told, user
from tests.server import scripted, serving


async def test_text_reasoning_context_and_state() -> None:
    agent = agno_agent()
    async with serving(scripted("no"), agents=[agent]) as running:
        context = [{"description": "The page", "value": "a map"}]
        frames = await events_of(running.url, body(user("hi"), context=context))
        request = body(user('call rename {"title": "stew"}'), thread="t2", run="r2", state={"title": "pie"})
        renamed = await events_of(running.url, request)
    assert told(frames) == [("reasoning", "Thinking"), ("text", "You said hi "), ("finished", "success")]
    assert "The page" in str([each.content for each in agent.told[0]])
    assert ("result", "was pie") in told(renamed) and told(renamed)[-2] == ("state", {"title": "stew"})


async def test_a_tools_error_is_told_to_the_model() -> None:
    async with serving(scripted("no"), agents=[agno_agent()]) as running:
        frames = await events_of(running.url, body(user('call weather {"place": "Atlantis"}')))
    assert told(frames) == [
        ("call", "weather"), ("args", '{"place":"Atlantis"}'), ("result", "There is no such place."),
        ("text", "It says: There is no such place."), ("finished", "success"),
    ]  # fmt: skip


async def test_the_conversation_is_the_servers_and_told_once() -> None:
    agent = agno_agent(add_history_to_context=True)
    async with serving(scripted("no"), agents=[agent]) as running:
        await events_of(running.url, body(user("one")))
        await events_of(running.url, body(user("two", "u2"), run="r2"))
    assert [each.content for each in agent.told[1] if each.role != "system"] == ["one", "You said one ", "two"]


def answers(id: str, payload: Any) -> dict[str, Any]:
    return {"resume": [{"interruptId": id, "status": "resolved", "payload": payload}]}


async def test_an_approval_with_edited_arguments_under_the_servers_rules() -> None:
    agent = agno_agent()
    async with serving(scripted("no"), agents=[agent]) as running:

        async def run(number: int, id: str = "", payload: Any = None) -> list[dict[str, Any]]:
            more = answers(id, payload) if id else {}
            return await events_of(running.url, body(user('call book {"place": "Oslo"}'), run=f"r{number}", **more))

        first = await run(1)
        asked = first[-1]["outcome"]["interrupts"][0]
        refused = await run(2, asked["id"], {"approved": "perhaps"})
        last = await run(3, asked["id"], {"approved": True, "editedArgs": {"place": "Bergen"}})
        again = await run(4, asked["id"], {"approved": True, "editedArgs": {"place": "Bergen"}})
    assert told(first)[0] == ("call", "book") and asked["toolCallId"] == "call-1"
    assert told(refused)[-1][0] == "error"
    assert told(last) == [
        ("result", "Booked Bergen"), ("text", "It says: Booked Bergen"), ("finished", "success")
    ]  # fmt: skip
    assert told(again)[-1] == ("finished", "success") and len(agent.told) == 2


async def test_a_rejection_and_values_that_a_tool_wants() -> None:
    async with serving(scripted("no"), agents=[agno_agent()]) as running:
        first = await events_of(running.url, body(user('call book {"place": "Oslo"}')))
        id = first[-1]["outcome"]["interrupts"][0]["id"]
        rejected = await events_of(running.url, body(run="r2", **answers(id, {"approved": False, "note": "no money"})))
        wanted = await events_of(running.url, body(user('call sit {"place": "Oslo"}', "u2"), run="r3"))
        asked = wanted[-1]["outcome"]["interrupts"][0]
        seated = await events_of(running.url, body(run="r4", **answers(asked["id"], {"seat": "4a"})))
    assert "Booked" not in str(rejected) and "no money" in str(rejected)
    assert "seat" in str(asked["metadata"]) and ("result", "Seat 4a to Oslo") in told(seated)


async def test_an_agent_without_a_database_cannot_ask_and_says_so() -> None:
    async with serving(scripted("no"), agents=[agno_agent(db=None)]) as running:
        frames = await events_of(running.url, body(user('call book {"place": "Oslo"}')))
    assert frames[-1]["type"] == "RUN_ERROR" and "Agent(db=...)" in frames[-1]["message"]


async def test_calls_of_the_clients_tools_wait_for_the_client() -> None:
    async with serving(scripted("no"), agents=[agno_agent(db=None)]) as running:
        first = await events_of(running.url, body(user("call paint {}"), tools=[PAINT]))
        call = first[-1]["outcome"]["pendingToolCallIds"][0]
        result = {"id": "res", "role": "tool", "toolCallId": call, "content": "red"}
        second = await events_of(running.url, body(result, run="r2", tools=[PAINT]))
    assert told(second) == [("text", "It says: red"), ("finished", "success")]


async def test_a_failure_keeps_the_exceptions_text_and_a_stop_ends_the_work() -> None:
    async with serving(scripted("no"), agents=[agno_agent()]) as running:
        failed = await events_of(running.url, body(user("fail")))
        reading = asyncio.create_task(events_of(running.url, body(user("wait"), thread="t2", run="r2")))
        while not (runs := running.server.runs.on_thread("t2")) or runs[0].log.last < 3:
            await asyncio.sleep(0.005)
        await runs[0].cancel()
        stopped = await reading
    assert failed[-1]["message"] == "The agent agno failed. The server's log says why."
    assert stopped[-1]["outcome"] == {"type": "cancelled"}


async def test_teams_and_agents_without_a_model_use_ours_and_answer_other_wires() -> None:
    own: Any = Agent(name="own", telemetry=False)
    team: Any = Team(members=[agno_agent(name="member")], model=agno_agent().model, name="team", telemetry=False)
    async with (
        serving(scripted("<think>Well</think>Hello"), agents=[own, team]) as running,
        AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client,
    ):
        said = await client.chat.completions.create(model="own", messages=[{"role": "user", "content": "hi"}])
        together = await events_of(running.url, body(user("hi")), "/agui/team")
    assert said.choices[0].message.content == "Hello"
    assert said.usage is not None and said.usage.completion_tokens > 0
    assert ("text", "You said hi ") in told(together)


class Leader(Scripted):
    async def ainvoke_stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        if messages[-1].role == "tool":
            yield ModelResponse(content=f"The member said: {messages[-1].content}")
            return
        arguments = json.dumps({"member_id": "member", "task": "say hi"})
        function = {"name": "delegate_task_to_member", "arguments": arguments}
        yield ModelResponse(tool_calls=[{"id": "call-1", "type": "function", "function": function}])


class Member(Scripted):
    async def ainvoke_stream(self, messages: list[Any], *args: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        yield ModelResponse(content="hi")


async def test_the_texts_of_a_member_and_of_its_leader_are_two_messages() -> None:
    member = Agent(id="member", name="member", model=Member(id="m"), telemetry=False)
    team: Any = Team(name="team", model=Leader(id="l"), members=[member], telemetry=False)
    async with serving(scripted("no"), agents=[team]) as running:
        frames = await events_of(running.url, body(user("go")))
    texts: dict[str, str] = {}
    for frame in frames:
        if frame["type"] == "TEXT_MESSAGE_CONTENT":
            texts[frame["messageId"]] = texts.get(frame["messageId"], "") + frame["delta"]
    assert [*texts.values()] == ["hi", "The member said: hi"]
