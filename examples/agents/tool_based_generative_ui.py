"""Tool-based generative UI: the page's tool `generate_haiku` is the answer, and the page draws it.

.venv/bin/agent-server serve --agent examples/agents/tool_based_generative_ui.py:agent
"""

from agent_server import Agent

agent = Agent(
    name="tool_based_generative_ui",
    description="Writes haiku that the page draws.",
    instructions="Answer every request for a poem by calling generate_haiku; say nothing else before it.",
)
