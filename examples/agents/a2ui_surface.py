"""Surfaces on a page with A2UI: one that a tool returns, and whatever the model writes with `render_a2ui`."""

from agent_server import Agent, Component, Surface, bound, each, event, tool


@tool
def find_table(guests: int) -> Surface:
    """Tables that are free tonight.

    Args:
        guests: How many people come.
    """
    times = [{"time": time} for time in ("18:30", "19:00", "20:30")]
    choose = event("book", time=bound("time"), guests=guests)
    table = Component("Button", child=Component("Text", text=bound("time")), action=choose)
    return Surface(id="tables", root=Component("Column", children=each(table, "/tables")), data={"tables": times})


agent = Agent(
    name="a2ui_surface",
    instructions="Show the user forms and lists instead of asking in words. Confirm what they choose.",
    tools=[find_table],
    a2ui=True,
)
