"""User interfaces as data: A2UI surfaces, built in Python or written by a model, and how they are streamed."""

from agent_server.agents.generative_ui.operations import (
    Action,
    Bound,
    Component,
    RepeatedChildren,
    Surface,
    bound,
    each,
    event,
)

__all__ = ["Action", "Bound", "Component", "RepeatedChildren", "Surface", "bound", "each", "event"]
