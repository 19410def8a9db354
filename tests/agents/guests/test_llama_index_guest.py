"""LlamaIndex workflows behind the server: what clients see of them, and what their model is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from ag_ui.core import RunAgentInput, TextMessageChunkEvent
from llama_index.core.base.llms.types import ChatMessage, ChatResponse, LLMMetadata, TextBlock, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.workflow import Context
from llama_index.protocols.ag_ui.agent import AGUIChatWorkflow
from llama_index.protocols.ag_ui.events import TextMessageChunkWorkflowEvent
from pydantic import PrivateAttr
from workflows import Workflow, step
from workflows.events import HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent

from agent_server.agents import LoadError
from agent_server.agents.guests import load_named
from tests.agents.guests.talking import PAINT, body, events_of, told, user
from tests.server import scripted, serving


class Scripted(FunctionCallingLLM):
    """Calls what a user's message names (`call NAME ARGUMENTS`), and says again anything else."""

    _seen: list[Any] = PrivateAttr(default_factory=list)

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True)

    async def astream_chat_with_tools(self, tools: Any, chat_history: Any = None, **kwargs: Any) -> Any:
        self._seen.append(list(chat_history))
        return self._answer(chat_history[-1], len(chat_history))

    async def _answer(self, last: ChatMessage, number: int) -> Any:
        text = str(last.content)
        if "tool_call_id" in last.additional_kwargs:
            text = f"It says: {text}"
        elif text.startswith("call"):
            _, name, arguments = text.split(" ", 2)
            block = ToolCallBlock(tool_call_id=f"call-{number}", tool_name=name, tool_kwargs=json.loads(arguments))
            yield ChatResponse(message=ChatMessage(role="assistant", blocks=[block]), delta="")
            return
        elif text == "fail":
            raise ValueError("the password is swordfish")
        else:
            text = f"You said {text}"
        whole = ""
        for word in text.split(" "):
            whole += word + " "
            yield ChatResponse(message=ChatMessage(role="assistant", blocks=[TextBlock(text=whole)]), delta=word + " ")
            if text == "You said wait":
                await asyncio.Event().wait()

    def get_tool_calls_from_response(self, response: Any, **kwargs: Any) -> list[ToolSelection]:
        blocks = [each for each in response.message.blocks if isinstance(each, ToolCallBlock)]
        return [
            ToolSelection(tool_id=each.tool_call_id, tool_name=each.tool_name, tool_kwargs=each.tool_kwargs)
            for each in blocks
        ]

    def _elsewhere(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    _prepare_chat_with_tools = chat = complete = stream_chat = stream_complete = _elsewhere
    achat = acomplete = astream_chat = astream_complete = _elsewhere


def weather(place: str) -> str:
    """The weather in a place."""
    if place == "Atlantis":
        raise ValueError("There is no such place.")
    return f"Sun in {place}"


async def rename(ctx: Context, title: str) -> str:
    """Rename the recipe."""
    state = await ctx.store.get("state")
    before, state["title"] = state.get("title"), title
    await ctx.store.set("state", state)
    return f"was {before}"


def llama_index_workflow(**options: Any) -> Any:
    """The workflow; `told` is what its model was told."""
    model = Scripted()
    workflow: Any = AGUIChatWorkflow(llm=model, backend_tools=[weather, rename], timeout=30, **options)
    workflow.name, workflow.told = "llama", model._seen
    return workflow


async def test_text_and_state() -> None:
    workflow = llama_index_workflow(system_prompt="Be kind.")
    async with serving(scripted("no"), agents=[workflow]) as running:
        frames = await events_of(running.url, body(user("hi")))
        request = body(user('call rename {"title": "stew"}'), thread="t2", run="r2", state={"title": "pie"})
        renamed = await events_of(running.url, request)
        second = await events_of(running.url, body(user("again", "u2"), run="r3"))
    assert told(frames)[-2:] == [("text", "You said hi "), ("finished", "success")]
    assert workflow.told[0][0].content == "Be kind."
    assert ("text", "You said again ") in told(second) and [str(each.content).strip() for each in workflow.told[-1][1:]] == [
        "hi", "You said hi", "again"
    ]  # fmt: skip
    assert renamed[-1]["type"] == "RUN_FINISHED"


async def test_a_tool_and_its_error_are_told_once_and_in_order() -> None:
    async with serving(scripted("no"), agents=[llama_index_workflow()]) as running:
        sun = await events_of(running.url, body(user('call weather {"place": "Oslo"}')))
        none = await events_of(running.url, body(user('call weather {"place": "Atlantis"}', "u2"), run="r2"))
    calls = [each for each in told(sun) if each[0] != "state"]
    assert calls == [
        ("call", "weather"), ("args", '{"place": "Oslo"}'), ("result", "Sun in Oslo"),
        ("text", "It says: Sun in Oslo "), ("finished", "success"),
    ]  # fmt: skip
    assert [each for each in told(none) if each[0] == "result"] == [("result", "There is no such place.")]


async def test_calls_of_the_clients_tools_wait_for_the_client() -> None:
    async with serving(scripted("no"), agents=[llama_index_workflow()]) as running:
        first = await events_of(running.url, body(user("call paint {}"), tools=[PAINT]))
        call = first[-1]["outcome"]["pendingToolCallIds"][0]
        result = {"id": "res", "role": "tool", "toolCallId": call, "content": "red"}
        second = await events_of(running.url, body(result, run="r2", tools=[PAINT]))
    assert told(second)[-2:] == [("text", "It says: red "), ("finished", "success")]


async def test_a_failure_keeps_the_exceptions_text_and_a_stop_ends_the_work() -> None:
    async with serving(scripted("no"), agents=[llama_index_workflow()]) as running:
        failed = await events_of(running.url, body(user("fail")))
        reading = asyncio.create_task(events_of(running.url, body(user("wait"), thread="t2", run="r2")))
        while not (runs := running.server.runs.on_thread("t2")) or runs[0].log.last < 3:
            await asyncio.sleep(0.005)
        await runs[0].cancel()
        stopped = await reading
    assert failed[-1]["message"] == "The agent llama failed. The server's log says why."
    assert stopped[-1]["outcome"] == {"type": "cancelled"}


class Asking(Workflow):
    """Asks a person, and says the answer."""

    @step
    async def begin(self, event: StartEvent) -> InputRequiredEvent:
        given: RunAgentInput = event.input_data
        return InputRequiredEvent(prefix=f"Sure about {given.messages[-1].content}?", seats=2)

    @step
    async def end(self, context: Context, event: HumanResponseEvent) -> StopEvent:
        chunk: TextMessageChunkEvent = TextMessageChunkWorkflowEvent(
            message_id="m", role="assistant", delta=f"You said {event.response}"
        )
        context.write_event_to_stream(chunk)
        return StopEvent()


def answers(id: str, payload: Any) -> dict[str, Any]:
    return {"resume": [{"interruptId": id, "status": "resolved", "payload": payload}]}


async def test_a_question_under_the_servers_rules() -> None:
    async with serving(scripted("no"), agents=[Asking(timeout=30)]) as running:
        first = await events_of(running.url, body(user("this")))
        asked = first[-1]["outcome"]["interrupts"][0]
        without = await events_of(running.url, body(user("hi", "u2"), run="r2"))
        last = await events_of(running.url, body(run="r3", **answers(asked["id"], "yes")))
        again = await events_of(running.url, body(run="r4", **answers(asked["id"], "yes")))
    assert asked["message"] == "Sure about this?" and asked["metadata"] == {"value": {"seats": 2}}
    assert told(without)[-1][0] == "error"
    assert told(last) == [("text", "You said yes"), ("finished", "success")]
    assert ("text", "You said yes") not in told(again) and told(again)[-1] == ("finished", "success")


def test_a_workflow_that_begins_with_something_else_is_refused_before_it_is_served() -> None:
    class Words(StartEvent):
        user_msg: Sequence[str]

    class Other(Workflow):
        @step
        async def begin(self, event: Words) -> StopEvent:
            return StopEvent()

    with pytest.raises(LoadError, match=r"Other starts with Words. .* use an AGUIChatWorkflow"):
        load_named([], [Other()])
