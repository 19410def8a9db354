"""A request's tools → AG-UI tools, with the checks that every wire shares."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from ag_ui.core import Tool

from adapters.body import wrong
from adapters.inbound import Limits


class ToolSpec(NamedTuple):
    """One function as any wire declares it. `parameters` is a JSON schema; `at` its place in the request. custom: it
    takes text, its argument `input`; grammar: in Lark, of that text."""

    name: Any
    description: object
    parameters: Any
    strict: Any
    at: str
    custom: bool = False
    grammar: str | None = None


class ToolList(NamedTuple):
    """`strict` are the names whose schema must be enforced, `custom` those of custom tools; `grammars`: name → Lark."""

    tools: list[Tool]
    strict: frozenset[str]
    custom: frozenset[str] = frozenset()
    grammars: Mapping[str, str] = MappingProxyType({})

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)


def read_tools(specs: list[ToolSpec], limits: Limits, at: str = "tools") -> ToolList:
    """Raises RequestError("invalid_request") naming the tool's place."""
    if len(specs) > limits.tools:
        raise wrong(at, f"must have at most {limits.tools} items")
    tools = [_tool(spec, limits) for spec in specs]
    seen: set[str] = set()
    for tool, spec in zip(tools, specs, strict=True):
        if tool.name in seen:
            raise wrong(spec.at, "has the name of an earlier tool")
        seen.add(tool.name)
    strict = frozenset(spec.name for spec in specs if spec.strict is True)
    custom = frozenset(spec.name for spec in specs if spec.custom)
    return ToolList(tools, strict, custom, {spec.name: spec.grammar for spec in specs if spec.grammar is not None})


def _tool(spec: ToolSpec, limits: Limits) -> Tool:
    if not isinstance(spec.name, str) or not 0 < len(spec.name) <= limits.name:
        raise wrong(f"{spec.at}.name", f"must be a string of 1 to {limits.name} characters")
    if spec.description is not None and not isinstance(spec.description, str):
        raise wrong(f"{spec.at}.description", "must be a string")
    if spec.strict is not None and not isinstance(spec.strict, bool):
        raise wrong(f"{spec.at}.strict", "must be true or false")
    parameters = _schema(spec.parameters, f"{spec.at}.parameters", limits)
    return Tool(name=spec.name, description=spec.description or "", parameters=parameters)


def _schema(schema: object, at: str, limits: Limits) -> object:
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise wrong(at, "must be a JSON schema object")
    if len(msgspec.json.encode(schema)) > limits.schema:
        raise wrong(at, f"must be at most {limits.schema} bytes of JSON")
    return schema
