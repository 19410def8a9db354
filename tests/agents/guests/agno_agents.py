"""An Agno agent with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.base import Model
from agno.models.message import Message
from agno.models.response import ModelResponse
from agno.run.base import RunContext
from agno.tools import tool


class Scripted(Model):
    """Calls what a user's message names (`call NAME ARGUMENTS`), and says again anything else. `seen`: what it was
    told."""

    seen: list[list[Message]]

    async def ainvoke_stream(self, messages: list[Message], *args: Any, **kwargs: Any) -> AsyncIterator[ModelResponse]:
        self.seen.append(list(messages))
        last = messages[-1]
        text = str(last.content)
        if last.role == "tool":
            yield ModelResponse(content=f"It says: {text}")
        elif text.startswith("call"):
            _, name, arguments = text.split(" ", 2)
            call = {
                "id": f"call-{len(messages)}",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            yield ModelResponse(tool_calls=[call])
        elif text == "wait":
            yield ModelResponse(content="Waiting")
            await asyncio.Event().wait()
        elif text == "fail":
            raise ValueError("the password is swordfish")
        else:
            yield ModelResponse(reasoning_content="Thinking")
            for word in f"You said {text}".split(" "):
                yield ModelResponse(content=word + " ")

    def _elsewhere(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    invoke = ainvoke = invoke_stream = _parse_provider_response = _parse_provider_response_delta = _elsewhere


@tool
def weather(place: str) -> str:
    if place == "Atlantis":
        raise ValueError("There is no such place.")
    return f"Sun in {place}"


@tool(requires_confirmation=True)
def book(place: str) -> str:
    return f"Booked {place}"


@tool(requires_user_input=True, user_input_fields=["seat"])
def sit(place: str, seat: str) -> str:
    return f"Seat {seat} to {place}"


@tool
def rename(run_context: RunContext, title: str) -> str:
    state = run_context.session_state
    assert state is not None
    before, state["title"] = state.get("title"), title
    return f"was {before}"


def agno_agent(**options: Any) -> Any:
    """The agent; `told` is what its model was told."""
    model = Scripted(id="scripted")
    model.seen = []
    defaults: dict[str, Any] = {"db": InMemoryDb(), "telemetry": False, "name": "agno"}
    agent: Any = Agent(model=model, tools=[weather, book, sit, rename], **{**defaults, **options})
    agent.told = model.seen
    return agent
