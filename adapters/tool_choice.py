"""`tool_choice` as Chat Completions and Responses write it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from adapters.body import wrong
from adapters.leniency import notes_of_request
from adapters.values import mapping, one_of, sequence
from events.options import ToolChoice

CLIENT_RUN = ("shell", "local_shell", "apply_patch")
"""Types of tools that stand for one function, which a Responses client runs."""


def tool_choice(path: str, value: object) -> ToolChoice:
    """ "auto", "none", "required", a named function or custom tool, or allowed_tools, each in Chat's and Responses'
    form."""
    if isinstance(value, str):
        return _by_mode(one_of("auto", "none", "required")(path, value))
    choice = mapping(path, value)
    match choice.get("type"):
        case "function" | "custom" | "shell" | "local_shell" | "apply_patch":
            return ToolChoice(mode="named", names=(_function_name(path, choice),))
        case "allowed_tools":
            return _allowed_tools(path, choice)
    raise wrong(
        path, 'must be "auto", "none", "required", a function or custom tool that is declared, or allowed_tools'
    )


def _by_mode(mode: str, names: tuple[str, ...] = ()) -> ToolChoice:
    modes: dict[str, Literal["auto", "none", "required"]] = {"none": "none", "required": "required"}
    return ToolChoice(mode=modes.get(mode, "auto"), names=names)


def _function_name(path: str, entry: object) -> str:
    named = mapping(path, entry)
    inner = named.get("function", named.get("custom"))
    name = inner.get("name") if isinstance(inner, dict) else named.get("name")
    if named.get("type") in CLIENT_RUN:
        return str(named["type"])
    if isinstance(named.get("namespace"), str) and isinstance(name, str):
        return f"{named['namespace']}__{name}"
    if not isinstance(name, str) or not name:
        raise wrong(path, "must name a function")
    return name


def _is_known(entry: object) -> bool:
    kind = entry.get("type", "function") if isinstance(entry, dict) else "function"
    return kind in ("function", "custom", *CLIENT_RUN)


def _allowed_tools(path: str, choice: dict[str, object]) -> ToolChoice:
    inner = mapping(f"{path}.allowed_tools", choice.get("allowed_tools", choice))
    mode = one_of("auto", "required")(f"{path}.mode", inner.get("mode", "auto"))
    tools = sequence(f"{path}.tools", inner.get("tools"))
    names = tuple(_function_name(f"{path}.tools.{i}", tool) for i, tool in enumerate(tools) if _is_known(tool))
    if len(names) < len(tools):
        notes_of_request().warn(f"{path}.tools names tools that this server does not run; they are left out.")
    if not names:
        raise wrong(f"{path}.tools", "must name at least one tool")
    return _by_mode(mode, names)


def check_tool_choice(choice: ToolChoice, declared: Collection[str], *, at: str = "tool_choice") -> None:
    """A choice that needs a tool must find it among `declared`. Raises RequestError("invalid_request")."""
    if choice.mode in ("required", "named") and not declared:
        raise wrong(at, "needs tools, and the request declares none")
    if any(name not in declared for name in choice.names):
        raise wrong(at, "names a tool that the request does not declare")
