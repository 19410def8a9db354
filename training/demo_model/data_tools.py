"""The tools that the demo declares, and invented ones, as JSON schema definitions."""

from typing import Any

from training.demo_model.data_values import Values

ToolDefinition = dict[str, Any]
DEMO_TOOLS: dict[str, dict[str, str]] = {
    "get_weather": {"location": "string"},
    "calculate": {"expression": "string"},
    "get_time": {"timezone": "string"},
    "change_background": {"background": "string"},
    "generate_task_steps": {"steps": "array"},
    "search": {"query": "string"},
    "send_email": {"to": "string", "subject": "string", "body": "string"},
    "write_document": {"document": "string"},
    "generate_haiku": {"japanese": "array", "english": "array"},
}
ARGUMENT_TYPES = ("string", "string", "string", "integer", "number", "boolean")


# What the page declares to its two agents: its own tools, after those of the server.
_PAGE = ("generate_task_steps", "change_background")
PAGE_TOOLSETS = (("get_weather", "calculate", "get_time", "search", "send_email", "write_document", *_PAGE), _PAGE)


def define(name: str, arguments: dict[str, str]) -> ToolDefinition:
    """Return a function definition in which every argument is required."""
    properties = {key: {"type": kind} for key, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def demo_tool(name: str) -> ToolDefinition:
    """Return the definition of one of the demo's tools."""
    return define(name, DEMO_TOOLS[name])


def tool_name(tool: ToolDefinition) -> str:
    """Return a definition's name."""
    return str(tool["function"]["name"])


def argument_types(tool: ToolDefinition) -> dict[str, str]:
    """Return a definition's arguments with their types."""
    properties = tool["function"]["parameters"]["properties"]
    return {key: schema["type"] for key, schema in properties.items()}


def invented_tool(values: Values) -> ToolDefinition:
    """Return a tool whose name and arguments are random words."""
    name = "_".join(values.word() for _ in range(values.pick((1, 2, 2, 3))))
    arguments = {values.word(): values.pick(ARGUMENT_TYPES) for _ in range(values.pick((0, 1, 1, 2, 3)))}
    return define(name, arguments)


def toolset(values: Values, needed: tuple[str, ...] = (), absent: str | None = None) -> list[ToolDefinition]:
    """Return a random selection in random order, with the needed and without the absent tool."""
    page = values.pick(PAGE_TOOLSETS)
    if values.chance(0.25) and absent not in page and set(needed) <= set(page):
        return [demo_tool(name) for name in page]
    others = [name for name in DEMO_TOOLS if name not in needed and name != absent]
    values.rng.shuffle(others)
    extra = values.pick((0, 0, 1, 1, 2, 3, 5, 6, 7, 8))
    tools = [demo_tool(name) for name in (*needed, *others[:extra])]
    if values.chance(0.15):
        tools.append(invented_tool(values))
    values.rng.shuffle(tools)
    return tools


def some_tools(values: Values) -> list[ToolDefinition]:
    """Return a random selection, or none."""
    return toolset(values) if values.chance(0.6) else []
