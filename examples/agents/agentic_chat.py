"""Agentic chat: the model talks, calls a tool of the server's and a tool of the page's.

The page declares `change_background`; its call ends the run, the page answers it in the next one.

    agent-server serve --agent examples/agents/agentic_chat.py:agent
"""

from weather import weather_in

from agent_server import Agent, tool


@tool
def get_weather(location: str) -> dict[str, str | int]:
    """The weather in a city.

    Args:
        location: the city's name
    """
    return weather_in(location)


agent = Agent(
    name="agentic_chat",
    description="Chats, tells the weather and changes the page's background.",
    instructions="You are a helpful assistant. Use a tool where one fits, then answer in a sentence.",
    tools=[get_weather],
)
