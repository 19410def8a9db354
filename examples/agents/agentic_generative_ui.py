"""Agentic generative UI: the server works through steps, and the page follows them in the shared state.

.venv/bin/agent-server serve --agent examples/agents/agentic_generative_ui.py:agent
"""

import asyncio
from typing import Literal

from pydantic import BaseModel

from agent_server import Agent, ToolContext, tool


class Step(BaseModel):
    description: str
    status: Literal["pending", "completed"] = "pending"


class Work(BaseModel):
    steps: list[Step] = []


@tool
async def work_through(steps: list[str], context: ToolContext) -> str:
    """Do a task step by step; the user watches.

    Args:
        steps: what to do, in order, a few words each
    """
    work = [Step(description=each).model_dump() for each in steps]
    context.state["steps"] = work
    context.push_state()
    for step in work:
        await asyncio.sleep(0.3)
        step["status"] = "completed"
        context.push_state()
    return f"All {len(steps)} steps are done."


agent = Agent(
    name="agentic_generative_ui",
    description="Works through a task and shows every step.",
    instructions="Break the task into steps and call work_through once. Then say in a sentence that it is done.",
    tools=[work_through],
    state=Work,
)
