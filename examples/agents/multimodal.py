"""Multimodal: messages with pictures, sound and documents beside their text.

What the model can use of them depends on the model; a part that it cannot use is left out, and the run says so in its
warnings instead of failing.

    agent-server serve --agent examples/agents/multimodal.py:agent
"""

from agent_server import Agent

agent = Agent(
    name="multimodal",
    description="Talks about what the user shows.",
    instructions="Answer about what the user sends. If you cannot see an attachment, say so.",
)
