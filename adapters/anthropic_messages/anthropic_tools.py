"""The tools of a Messages request: the client's own, Anthropic's that a client runs, and those that come in later.

A client that searches its tools itself declares them with `defer_loading`: they are offered once a `tool_reference` or
`tool_addition` names them. Tools that Anthropic's service runs (`web_search_…`, `code_execution_…`) are left out with a
warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from adapters.anthropic_messages.anthropic_content import MessageParam
from adapters.body import convert, wrong
from adapters.inbound import Limits
from adapters.leniency import notes_of_request
from adapters.tool_list import ToolList, ToolSpec, read_tools

HOSTED_SEARCH = "tool_search_tool_"
HOSTED = (HOSTED_SEARCH, "advisor_", "code_execution_", "mcp_toolset", "web_fetch_", "web_search_")
"""Beginnings of the types of tools that Anthropic's service runs."""


class AnthropicTool(msgspec.Struct):
    """`type` is absent or "custom" for the client's own tools; any other is one of Anthropic's."""

    name: Any = None
    type: Any = None
    description: object = None
    input_schema: object = None
    strict: Any = None
    defer_loading: Any = None


def anthropic_tools(value: object, turns: Sequence[MessageParam], limits: Limits) -> ToolList:
    """The tools that are offered behind the last of these turns. Raises RequestError."""
    declared: list[AnthropicTool] = convert(value, list[AnthropicTool], "tools") if value is not None else []
    searched = any(isinstance(tool.type, str) and tool.type.startswith(HOSTED_SEARCH) for tool in declared)
    added, removed = _changes(turns)
    specs: list[ToolSpec] = []
    for index, tool in enumerate(declared):
        name = str(tool.name)
        deferred = tool.defer_loading is True and not searched and name not in added
        spec = None if deferred or name in removed else _spec(tool, f"tools.{index}")
        if spec is not None:
            specs.append(spec)
    names = {str(spec.name) for spec in specs}
    for name, tool in added.items():
        defined = tool.input_schema is not None or tool.type is not None
        spec = _spec(tool, "messages.tool_addition") if defined and name not in names else None
        if spec is not None:
            specs.append(spec)
    return read_tools(specs, limits)


def _spec(tool: AnthropicTool, at: str) -> ToolSpec | None:
    match tool.type:
        case None | "custom":
            return ToolSpec(tool.name, tool.description, tool.input_schema, tool.strict, at)
        case str(kind) if kind.startswith("bash_"):
            return ToolSpec(tool.name, "Run a command in a persistent bash shell.", _BASH, None, at)
        case str(kind) if kind.startswith("text_editor_"):
            return ToolSpec(tool.name, "View, create and edit text files.", _EDITOR, None, at)
        case str(kind) if kind.startswith("memory_"):
            return ToolSpec(tool.name, "Read and write files under /memories.", _MEMORY, None, at)
        case str(kind) if kind.startswith(("computer_", "browser_toolset_")):
            notes_of_request().warn(f"{at} is left out: {kind} needs a model that is trained for a screen.")
            return None
        case str(kind) if kind.startswith(HOSTED):
            notes_of_request().warn(f"{at} is left out: {kind} runs at Anthropic, not here; declare a tool instead.")
            return None
        case str():
            notes_of_request().warn(f"{at} is left out: its type is not known here; declare a tool instead.")
            return None
    raise wrong(f"{at}.type", "must be a string")


def _changes(turns: Sequence[MessageParam]) -> tuple[dict[str, AnthropicTool], set[str]]:
    """The tools that the conversation has brought in, by reference or by definition, and the names it has withdrawn."""
    added: dict[str, AnthropicTool] = {}
    removed: set[str] = set()
    for block in _blocks(turns):
        change = block.get("tool")
        match block.get("type"):
            case "tool_reference":
                tool = AnthropicTool(name=block.get("tool_name"))
            case "tool_addition" if isinstance(change, dict) and change.get("type") == "tool_definition":
                tool = convert(change.get("definition"), AnthropicTool, "messages.tool_addition")
            case "tool_addition" if isinstance(change, dict):
                tool = AnthropicTool(name=change.get("name"))
            case "tool_removal" if isinstance(change, dict):
                removed.add(str(change.get("name")))
                added.pop(str(change.get("name")), None)
                continue
            case _:
                continue
        added[str(tool.name)] = tool
        removed.discard(str(tool.name))
    return added, removed


def _blocks(turns: Sequence[MessageParam]) -> Iterator[dict[str, Any]]:
    """The blocks of these turns, and those in tool results."""
    for turn in turns:
        for block in turn.content if isinstance(turn.content, list) else ():
            if not isinstance(block, dict):
                continue
            yield block
            inner = block.get("content")
            if isinstance(inner, dict):  # of the service's own tool search
                inner = inner.get("tool_references")
            yield from (each for each in inner if isinstance(each, dict)) if isinstance(inner, list) else ()


_STRING: dict[str, object] = {"type": "string"}
_NUMBER: dict[str, object] = {"type": "integer"}
_RANGE = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _commands(commands: list[str], properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"command": {"type": "string", "enum": commands}, **properties},
        "required": ["command"],
    }


_BASH: dict[str, object] = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "The command to run. Required unless restart is true."},
        "restart": {"type": "boolean", "description": "Start the shell anew."},
    },
}
_EDITOR = _commands(
    ["view", "create", "str_replace", "insert"],
    {
        "path": {"type": "string", "description": "Of the file or folder."},
        "view_range": {**_RANGE, "description": "First and last line for view; -1 for the end."},
        "file_text": {"type": "string", "description": "What create writes."},
        "old_str": {"type": "string", "description": "What str_replace replaces; it must occur once."},
        "new_str": _STRING,
        "insert_line": {"type": "integer", "description": "The line behind which insert puts insert_text."},
        "insert_text": _STRING,
    },
)
_MEMORY = _commands(
    ["view", "create", "str_replace", "insert", "delete", "rename"],
    {
        "path": {"type": "string", "description": "Below /memories."},
        "view_range": _RANGE,
        "file_text": _STRING,
        "old_str": _STRING,
        "new_str": _STRING,
        "insert_line": _NUMBER,
        "insert_text": _STRING,
        "old_path": _STRING,
        "new_path": _STRING,
    },
)
