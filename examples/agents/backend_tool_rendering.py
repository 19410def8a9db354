"""Backend tool rendering: the page draws a card from the result of a tool that ran on the server.

.venv/bin/agent-server serve --agent examples/agents/backend_tool_rendering.py:agent
"""

import asyncio

from weather import weather_in

from agent_server import Agent, ToolContext, tool


@tool
async def get_weather(location: str, context: ToolContext) -> dict[str, str | int]:
    """The weather in a city: city, conditions, temperature in °C, humidity in %, wind in km/h.

    Args:
        location: the city's name
    """
    context.progress(f"Asking the station in {location}")
    await asyncio.sleep(0.2)
    return weather_in(location)


agent = Agent(
    name="backend_tool_rendering",
    description="Tells the weather; the page shows it as a card.",
    instructions="Tell the weather with get_weather, then say it in one sentence.",
    tools=[get_weather],
)
