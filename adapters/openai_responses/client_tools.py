"""The tools that a Responses client runs itself, besides functions: namespaces, shells, patches, a tool search.

Internally each is a function with a JSON schema. This module converts its declaration, its call to an output item, and
the items with which a client returns the call and its result. The shapes are those of `openai.types.responses`. Tools
that OpenAI's service runs, such as `file_search`, are omitted with a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec
from ag_ui.core import Tool

from adapters.body import convert, notes_of_request, wrong
from adapters.mcp_request import openai_server, search_server
from adapters.request_tools import ToolSpec, custom_spec, declarations_text
from adapters.sse import json_bytes
from events.options import SEPARATOR, RequestedMcp

CallKind = Literal[
    "function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call", "tool_search_call"
]
HOSTED = frozenset({
    "code_interpreter", "file_search", "image_generation", "programmatic_tool_calling",
})  # fmt: skip
"""Types of tools that OpenAI's service runs."""
HOSTED_ITEMS = frozenset({
    "code_interpreter_call", "computer_call", "computer_call_output", "file_search_call", "image_generation_call",
    "program", "program_output", "web_search_call",
})  # fmt: skip
"""Types of the items of such tools in a conversation."""


class ToolForm(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output form of a tool's call: the type of its item, and its name within its namespace."""

    item: CallKind = "function_call"
    name: str = ""
    namespace: str = ""


class ClientTool(msgspec.Struct):
    """One entry of `tools`; `type` determines which fields are used."""

    type: Any = None
    name: Any = None
    description: Any = None
    parameters: Any = None
    strict: Any = None
    format: object = None
    tools: Any = None
    execution: Any = None
    environment: Any = None
    defer_loading: Any = None


class ClientTools(msgspec.Struct):
    """forms: by the name that the model sees, without plain functions. servers: those of `mcp` tools and web
    search."""

    specs: list[ToolSpec] = []
    forms: dict[str, ToolForm] = {}
    servers: list[RequestedMcp] = []


def read_client_tools(
    value: object, *, at: str = "tools", loaded: Mapping[str, bool] = MappingProxyType({})
) -> ClientTools:
    """Read the `tools` of a request. loaded: the deferred tools that items have added, see `tools_in_items`. Raises
    RequestError."""
    declared: list[ClientTool] = convert(value, list[ClientTool], at) if value is not None else []
    searched = any(tool.type == "tool_search" and tool.execution == "client" for tool in declared)
    client_tools = ClientTools()
    for index, tool in enumerate(declared):
        if tool.type == "mcp":
            assert isinstance(value, list)
            if (server := openai_server(value[index], f"{at}.{index}")) is not None:
                client_tools.servers.append(server)
            continue
        if isinstance(tool.type, str) and tool.type.startswith("web_search"):
            client_tools.servers.append(search_server(f"{at}.{index}"))
            continue
        for spec, form in _read(tool, f"{at}.{index}"):
            if searched and spec.deferred and spec.name not in loaded:
                continue
            client_tools.specs.append(spec._replace(deferred=searched and spec.deferred and loaded[spec.name]))
            if form is not None and isinstance(spec.name, str):
                client_tools.forms[spec.name] = form
    return client_tools


def _read(tool: ClientTool, at: str) -> Iterator[tuple[ToolSpec, ToolForm | None]]:
    environment = tool.environment if isinstance(tool.environment, dict) else {}
    match tool.type:
        case "function":
            spec = ToolSpec(tool.name, tool.description, tool.parameters, tool.strict, at)
            yield spec._replace(deferred=tool.defer_loading is True), None
        case "custom":
            fields = {"name": tool.name, "description": tool.description, "format": tool.format}
            spec = custom_spec(fields, at)._replace(deferred=tool.defer_loading is True)
            yield spec, ToolForm("custom_tool_call", str(tool.name))
        case "namespace":
            if not isinstance(tool.name, str) or not tool.name:
                raise wrong(f"{at}.name", "must be the namespace's name")
            inner: list[ClientTool] = convert(tool.tools or [], list[ClientTool], f"{at}.tools")
            for index, each in enumerate(inner):
                for spec, form in _read(each, f"{at}.tools.{index}"):
                    if not isinstance(spec.name, str):
                        raise wrong(f"{at}.tools.{index}.name", "must be a string")
                    deferred = spec.deferred or tool.defer_loading is True
                    named = spec._replace(name=joined_name(tool.name, spec.name), deferred=deferred)
                    yield named, ToolForm("function_call" if form is None else form.item, spec.name, tool.name)
        case "tool_search" if tool.execution == "client":
            parameters = tool.parameters or _SEARCH
            yield ToolSpec("tool_search", tool.description, parameters, None, at), ToolForm("tool_search_call")
        case "tool_search":
            notes_of_request().warn(f"{at} is left out: deferred tools are all offered to the model.")
        case "local_shell":
            yield ToolSpec("local_shell", _LOCAL_SHELL_USE, _LOCAL_SHELL, None, at), ToolForm("local_shell_call")
        case "shell" if not str(environment.get("type", "")).startswith("container"):
            yield ToolSpec("shell", _SHELL_USE, _SHELL, None, at), ToolForm("shell_call")
        case "apply_patch":
            yield ToolSpec("apply_patch", _PATCH_USE, _PATCH, None, at), ToolForm("apply_patch_call")
        case str(kind) if kind.startswith("computer"):
            notes_of_request().warn(f"{at} is left out: {kind} needs a model that is trained for a screen.")
        case str(kind) if kind in HOSTED or kind == "shell":
            notes_of_request().warn(f"{at} is left out: {kind} runs at OpenAI, not here; declare a function instead.")
        case str():
            notes_of_request().warn(f"{at} is left out: its type is not known here; declare a function instead.")
        case _:
            raise wrong(f"{at}.type", "must be function, custom, namespace, or another type of OpenAI's tools")


def joined_name(namespace: object, name: str) -> str:
    """Return the name that the model sees for a tool of a namespace; "" means no namespace."""
    return f"{namespace}{SEPARATOR}{name}" if isinstance(namespace, str) and namespace else name


def tools_in_items(items: object) -> tuple[list[object], dict[str, bool]]:
    """Return the tools that a conversation's items add (`tool_search_output`, `additional_tools`), and for each name
    whether the prompt describes the tool where the item is: so it does for the results of the client's searches."""
    entries: list[object] = []
    names: dict[str, bool] = {}
    for item in items if isinstance(items, list) else ():
        if not isinstance(item, dict) or item.get("type") not in ("tool_search_output", "additional_tools"):
            continue
        tools = item.get("tools")
        described = item["type"] == "tool_search_output" and item.get("call_id") is not None
        for each in tools if isinstance(tools, list) else ():
            entries.append(each)
            if not isinstance(each, dict):
                continue
            inner = each.get("tools") if each.get("type") == "namespace" else None
            added = [str(each.get("name"))]
            if isinstance(inner, list):
                added += [joined_name(each.get("name"), str(t.get("name"))) for t in inner if isinstance(t, dict)]
            for name in added:
                names.setdefault(name, described)
    return entries, names


def found_tools(items: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the tools that the results of the client's searches have, by the id of the search's call."""
    outputs = (item for item in items if isinstance(item, dict) and item.get("type") == "tool_search_output")
    return {
        str(item["call_id"]): item["tools"]
        for item in outputs
        if item.get("call_id") is not None and isinstance(item.get("tools"), list)
    }


def call_item(form: ToolForm, arguments: str) -> dict[str, Any] | None:
    """Return the fields of a complete call's item that describe what to do; None if the arguments do not fit the
    tool."""
    try:
        values = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return None
    match form.item:
        case "tool_search_call":
            return {"arguments": values, "execution": "client"}
        case "local_shell_call":
            command = values.get("command")
            if not isinstance(command, str | list) or not command:
                return None
            words = ["bash", "-lc", command] if isinstance(command, str) else [str(word) for word in command]
            options = {name: values.get(name) for name in ("timeout_ms", "user", "working_directory")}
            return {"action": {"type": "exec", "command": words, "env": values.get("env") or {}, **options}}
        case "shell_call":
            commands = values.get("commands")
            commands = [commands] if isinstance(commands, str) else commands
            limits = {name: values.get(name) for name in ("timeout_ms", "max_output_length")}
            return {"action": {"commands": commands, **limits}} if isinstance(commands, list) and commands else None
        case "apply_patch_call":
            kind, path = values.get("type"), values.get("path")
            if kind not in ("create_file", "update_file", "delete_file") or not isinstance(path, str):
                return None
            diff = {} if kind == "delete_file" else {"diff": str(values.get("diff") or "")}
            return {"operation": {"type": kind, "path": path, **diff}}
    return None


def call_of(item: Mapping[str, Any]) -> tuple[str, object] | None:
    """Return the function and arguments that a conversation item represents; None for an item that is no call."""
    match item.get("type"):
        case "mcp_call":
            return joined_name(item.get("server_label"), str(item.get("name"))), item.get("arguments")
        case "local_shell_call":
            return "local_shell", _without_nulls(item.get("action"), "type")
        case "shell_call":
            return "shell", _without_nulls(item.get("action"))
        case "apply_patch_call":
            return "apply_patch", _without_nulls(item.get("operation"))
        case "tool_search_call":
            return "tool_search", item.get("arguments")
    return None


def _without_nulls(value: object, *others: str) -> dict[str, object]:
    entries = value.items() if isinstance(value, dict) else ()
    return {name: each for name, each in entries if each is not None and name not in others}


def output_of(item: Mapping[str, Any], deferred: Mapping[str, Tool]) -> tuple[object, str] | None:
    """Return the call's id and the text of a result; None for an item that is not a result of these tools.

    deferred: the tools that are described in the result of the search that found them.
    """
    match item.get("type"):
        case "local_shell_call_output":
            return item.get("call_id") or item.get("id"), _text(item.get("output"))
        case "shell_call_output":
            return item.get("call_id"), _text(item.get("output"))
        case "apply_patch_call_output":
            output, status = item.get("output"), item.get("status")
            if output:
                return item.get("call_id"), f"{item.get('status', 'completed')}: {output}"
            return item.get("call_id"), str(status or "completed")
        case "tool_search_output":
            names = sorted(tools_in_items([item])[1])
            if tools := [deferred[name] for name in names if name in deferred]:
                return item.get("call_id"), declarations_text(tools)
            return item.get("call_id"), f"Tools that can be called now: {', '.join(names)}" if names else "No tools."
    return None


def _text(output: object) -> str:
    return output if isinstance(output, str) else json_bytes(output).decode()


def _object(properties: dict[str, object], *required: str) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_STRING: dict[str, object] = {"type": "string"}
_STRINGS: dict[str, object] = {"type": "array", "items": {"type": "string"}}
_NUMBER: dict[str, object] = {"type": "integer"}
_LOCAL_SHELL_USE = "Run a command on the user's machine and return its output."
_LOCAL_SHELL = _object(
    {
        "command": {**_STRINGS, "description": "The program and its arguments."},
        "working_directory": _STRING,
        "timeout_ms": _NUMBER,
    },
    "command",
)
_SHELL_USE = "Run shell commands, one after the other, and return their output."
_SHELL = _object(
    {
        "commands": {**_STRINGS, "description": "Shell commands, run in this order."},
        "timeout_ms": _NUMBER,
        "max_output_length": _NUMBER,
    },
    "commands",
)
_PATCH_USE = "Create, update or delete one file by a unified diff (V4A)."
_PATCH = _object(
    {
        "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
        "path": _STRING,
        "diff": {"type": "string", "description": "The file's new lines or its changes; absent for delete_file."},
    },
    "type",
    "path",
)
_SEARCH = _object({"query": {"type": "string", "description": "What the tool is to do."}}, "query")
