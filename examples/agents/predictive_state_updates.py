"""Predictive state updates: a document appears in the shared state while the model is still writing it.

`PredictState` says which argument of which tool is which part of the state. The server announces it (CopilotKit reads
the announcement) and also sends the growing value as state deltas, for clients that do not.

    agent-server serve --agent examples/agents/predictive_state_updates.py:agent
"""

from pydantic import BaseModel

from agent_server import Agent, PredictState, ToolContext, tool


class Desk(BaseModel):
    document: str = ""


@tool
def write_document(document: str, context: ToolContext) -> str:
    """Write the document, whole, in Markdown.

    Args:
        document: the new text
    """
    context.state["document"] = document
    return "The document is written."


agent = Agent(
    name="predictive_state_updates",
    description="Writes a document before the user's eyes.",
    instructions="Write and change the document with write_document, always whole. Then say what you did.",
    tools=[write_document],
    state=Desk,
    state_in_prompt=True,
    predict_state=[PredictState("document", "write_document", "document")],
)
