"""Reasoning: the model thinks first. Three agents: its thoughts are shown, summed up, or sealed.

Sealed thoughts travel to the client and back as an encrypted value that only this server can open, and are used in
the next prompt.

    agent-server serve --agent examples/agents/reasoning.py
"""

from agent_server import Agent

INSTRUCTIONS = "Think before you answer; answer in one or two sentences."

agent = Agent(name="reasoning", description="Shows its thoughts.", instructions=INSTRUCTIONS, thinking=True)
summary = Agent(
    name="reasoning_summary",
    description="Sums its thoughts up.",
    instructions=INSTRUCTIONS,
    thinking=True,
    reasoning="summary",
)
hidden = Agent(
    name="reasoning_hidden",
    description="Keeps its thoughts to itself.",
    instructions=INSTRUCTIONS,
    thinking=True,
    reasoning="hidden",
)
