"""A LangGraph graph behind the server: what clients see of it, and what it is given."""

from __future__ import annotations

from typing import Any

import httpx

from tests.agents.guests.graphs import graph
from tests.agents.guests.talking import body, events_of, told, user
from tests.server import Running, scripted, serving

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def messages_of(running: Running, thread: str = "t1") -> list[dict[str, Any]]:
    async with httpx.AsyncClient(base_url=running.url) as client:
        found: list[dict[str, Any]] = (await client.get(f"/copilotkit/threads/{thread}/messages")).json()["messages"]
    return found


def seen(compiled: Any) -> list[list[str]]:
    """What the model was told each time: roles and texts."""
    return [[f"{each.type}: {each.text.strip()}" for each in messages] for messages in compiled.model.seen]


async def test_text_reasoning_steps_and_state() -> None:
    compiled = graph()
    async with serving(scripted("no"), agents=[compiled]) as running:
        frames = await events_of(running.url, body(user("hi"), state={"recipe": "soup"}), "/agui/traveller")
        second = await events_of(running.url, body(user("on", "u2"), run="r2", state=frames_state(frames)))
    assert told(frames) == [
        ("state", {"recipe": "soup", "log": []}),
        ("reasoning", "Thinking"),
        ("text", "You said hi "),
        ("state", {"recipe": "soup", "log": ["talked"]}),
        ("finished", "success"),
    ]
    assert told(second)[-2] == ("state", {"recipe": "soup", "log": ["talked", "talked"]})
    assert "RAW" not in {frame["type"] for frame in frames}
    assert seen(compiled)[1] == ["human: hi", "ai: You said hi", "human: on"]


def frames_state(frames: list[dict[str, Any]]) -> Any:
    return [frame["snapshot"] for frame in frames if frame["type"] == "STATE_SNAPSHOT"][-1]


async def test_tools_and_their_errors_stand_in_order() -> None:
    compiled = graph()
    async with serving(scripted("no"), agents=[compiled]) as running:
        frames = await events_of(running.url, body(user("both")))
        await events_of(running.url, body(user("on", "u2"), run="r2"))
        kept = await messages_of(running)
    results = [frame for frame in frames if frame["type"] == "TOOL_CALL_RESULT"]
    assert [each.get("metadata") for each in results] == [None, {"isError": True}]
    assert [each["role"] for each in kept] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
        "reasoning",
        "assistant",
    ]
    assert seen(compiled)[-1][:2] == ["human: both", "ai: "] and len(seen(compiled)[-1]) == 6


async def test_questions_and_answers() -> None:
    compiled = graph()
    async with serving(scripted("no"), agents=[compiled]) as running:

        async def run(number: int, *answer: Any) -> list[dict[str, Any]]:
            resume = {"resume": list(answer)} if answer else {}
            request = body(user('call book {"place": "Oslo"}'), run=f"r{number}", **resume)
            return await events_of(running.url, request)

        first = await run(1)
        asked = first[-1]["outcome"]["interrupts"][0]
        refused = await run(2, {"interruptId": "made-up", "status": "resolved", "payload": "yes"})
        second = await run(3, {"interruptId": asked["id"], "status": "resolved", "payload": "yes"})
        again = second[-1]["outcome"]["interrupts"][0]
        repeated = await run(4, {"interruptId": asked["id"], "status": "resolved", "payload": "yes"})
        last = await run(5, {"interruptId": again["id"], "status": "resolved", "payload": "sure"})
    assert asked["message"] == "Book Oslo?" and again["message"] == "Really?" and again["id"] != asked["id"]
    assert told(refused)[-1][0] == "error" and repeated[-1]["outcome"] == second[-1]["outcome"]
    assert told(last)[:1] + told(last)[1:3] == [
        ("result", "Booked Oslo: yes, sure"),
        ("text", "It says: Booked Oslo: yes, sure "),
        ("state", {"log": ["talked", "talked"]}),
    ]
    assert "TOOL_CALL_START" not in {frame["type"] for frame in second + last}


async def test_an_edit_goes_on_from_an_older_checkpoint() -> None:
    compiled = graph()
    async with serving(scripted("no"), agents=[compiled]) as running:
        await events_of(running.url, body(user("one")))
        first = await messages_of(running)
        kept = [each for each in first if each["role"] != "reasoning"]
        await events_of(running.url, body(*kept, user("two", "u2"), run="r2"))
        edited = await events_of(running.url, body(*kept, user("three", "u2"), run="r3"))
        again = await events_of(running.url, body(user("four"), run="r4"))
    assert seen(compiled)[2] == ["human: one", "ai: You said one", "human: three"]
    assert seen(compiled)[3] == ["human: four"]
    assert frames_state(edited) == {"log": ["talked", "talked"]} and frames_state(again) == {"log": ["talked"]}


async def test_a_graph_that_lost_its_state_is_given_the_conversation() -> None:
    compiled = graph()
    async with serving(scripted("no"), agents=[compiled]) as running:
        await events_of(running.url, body(user("one")))
        compiled.checkpointer.storage.clear()
        await events_of(running.url, body(user("two", "u2"), run="r2"))
    assert seen(compiled)[1] == ["human: one", "ai: You said one", "human: two"]


async def test_a_graph_without_a_checkpointer_has_the_conversation_each_time() -> None:
    compiled = graph(checkpointer=False)
    async with serving(scripted("no"), agents=[compiled]) as running:
        await events_of(running.url, body(user("one")))
        await events_of(running.url, body(user("two", "u2"), run="r2"))
    assert seen(compiled)[1] == ["human: one", "ai: You said one", "human: two"]


PAINT = {"name": "paint", "description": "", "parameters": {"type": "object", "properties": {}}}


async def test_calls_of_the_clients_tools_wait_for_the_client() -> None:
    compiled = graph()
    async with serving(scripted("no"), agents=[compiled]) as running:
        first = await events_of(running.url, body(user("call paint {}"), tools=[PAINT]))
        call = first[-1]["outcome"]["pendingToolCallIds"][0]
        result = {"id": "res", "role": "tool", "toolCallId": call, "content": "red"}
        kept = await messages_of(running)
        second = await events_of(running.url, body(*kept, result, run="r2", tools=[PAINT]))
    assert told(second)[0] == ("text", "It says: red ") or ("text", "It says: red ") in told(second)
    assert seen(compiled)[1] == ["human: call paint {}", "ai: ", "tool: red"]


async def test_a_failure_keeps_its_text_and_what_is_not_kept_is_forgotten() -> None:
    def fails(messages: list[Any]) -> Any:
        raise ValueError("swordfish")

    failing, asked = graph(say=fails), graph()
    asked.name = "asked"
    async with serving(scripted("no"), agents=[failing, asked]) as running:
        frames = await events_of(running.url, body(user("hi")))
        async with httpx.AsyncClient(base_url=running.url) as client:
            request = {"model": "asked", "messages": [{"role": "user", "content": "hi"}]}
            answer = (await client.post("/v1/chat/completions", json=request)).json()
    assert frames[-1]["type"] == "RUN_ERROR" and "swordfish" not in str(frames)
    assert answer["choices"][0]["message"]["content"] == "You said hi "
    assert not asked.checkpointer.storage


async def test_a_picture_reaches_a_graph_beside_a_model_that_takes_none() -> None:
    compiled = graph()
    source = {"type": "data", "value": PIXEL, "mimeType": "image/png"}
    content = [{"type": "text", "text": "what"}, {"type": "image", "source": source}]
    async with serving(scripted("no"), agents=[compiled]) as running:
        await events_of(running.url, body({"id": "u1", "role": "user", "content": content}))
    (message,) = compiled.model.seen[0]
    assert [part["type"] for part in message.content] == ["text", "image"]
