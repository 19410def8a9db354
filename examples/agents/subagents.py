"""Subagents: one agent gives tasks to others. What they do is marked as theirs on the wire.

.venv/bin/agent-server serve --agent examples/agents/subagents.py:agent
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


meteorologist = Agent(
    name="meteorologist",
    description="Knows the weather everywhere. Give it a city.",
    instructions="Tell the weather with get_weather, in one sentence.",
    tools=[get_weather],
)
poet = Agent(name="poet", description="Writes a verse about anything.", instructions="Write two lines that rhyme.")

agent = Agent(
    name="subagents",
    description="Asks the right specialist.",
    instructions="Ask the meteorologist about weather and the poet for verses. Pass on what they say.",
    tools=[meteorologist, poet],
)
