"""Multimodal: messages with pictures, sound and documents beside their text.

What is taken depends on the model, and GET /agui/multimodal/capabilities says it. A part that the model does not take
is a 400 that names it and what is taken.

    agent-server serve Qwen/Qwen3-VL-2B-Instruct --agent examples/agents/multimodal.py:agent
"""

from agent_server import Agent

agent = Agent(
    name="multimodal",
    description="Talks about what the user shows.",
    instructions="Answer about what the user sends. If you cannot see an attachment, say so.",
)
