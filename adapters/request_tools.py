"""A request's tools → AG-UI tools, with the checks that all wires share, and OpenAI's custom tools.

A custom tool takes text instead of arguments; a grammar may constrain it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from ag_ui.core import Tool

from adapters.body import Limits, known_only, mapping, one_of, string, wrong
from events.options import DEFERRED


class ToolSpec(NamedTuple):
    """A function as a wire declares it. parameters: a JSON schema. at: its path in the request. custom: it takes text,
    as its argument `input`. grammar: the Lark grammar of that text. deferred: the prompt does not declare it."""

    name: Any
    description: object
    parameters: Any
    strict: Any
    at: str
    custom: bool = False
    grammar: str | None = None
    deferred: bool = False


class ToolList(NamedTuple):
    """strict: names of tools whose schema must be enforced. custom: names of custom tools. grammars: Lark by name."""

    tools: list[Tool]
    strict: frozenset[str]
    custom: frozenset[str] = frozenset()
    grammars: Mapping[str, str] = MappingProxyType({})

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def deferred(self) -> dict[str, Tool]:
        """The tools that the prompt does not declare, by name."""
        return {tool.name: tool for tool in self.tools if (tool.metadata or {}).get(DEFERRED)}


def read_tools(specs: list[ToolSpec], limits: Limits, at: str = "tools") -> ToolList:
    """Check the tools of a request. Raises RequestError("invalid_request"), which names the tool's path."""
    if len(specs) > limits.tools:
        raise wrong(at, f"must have at most {limits.tools} items")
    tools: list[Tool] = []
    for spec in specs:
        if not isinstance(spec.name, str) or not 0 < len(spec.name) <= limits.name:
            raise wrong(f"{spec.at}.name", f"must be a string of 1 to {limits.name} characters")
        if spec.description is not None and not isinstance(spec.description, str):
            raise wrong(f"{spec.at}.description", "must be a string")
        if spec.strict is not None and not isinstance(spec.strict, bool):
            raise wrong(f"{spec.at}.strict", "must be true or false")
        if spec.parameters is not None and not isinstance(spec.parameters, dict):
            raise wrong(f"{spec.at}.parameters", "must be a JSON schema object")
        if spec.parameters is not None and len(msgspec.json.encode(spec.parameters)) > limits.schema:
            raise wrong(f"{spec.at}.parameters", f"must be at most {limits.schema} bytes of JSON")
        metadata = {DEFERRED: True} if spec.deferred else None
        tools.append(
            Tool(name=spec.name, description=spec.description or "", parameters=spec.parameters, metadata=metadata)
        )
    earlier_names: set[str] = set()
    for tool, spec in zip(tools, specs, strict=True):
        if tool.name in earlier_names:
            raise wrong(spec.at, "has the name of an earlier tool")
        earlier_names.add(tool.name)
    strict = frozenset(spec.name for spec in specs if spec.strict is True)
    custom = frozenset(spec.name for spec in specs if spec.custom)
    return ToolList(tools, strict, custom, {spec.name: spec.grammar for spec in specs if spec.grammar is not None})


def declarations_text(tools: Iterable[Tool]) -> str:
    """Return the text by which a search's result describes tools to the model."""
    keys = {"name", "description", "parameters"}
    return json.dumps([tool.model_dump(include=keys) for tool in tools], ensure_ascii=False)


INPUT = "input"
MAX_GRAMMAR = 64 * 1024
"""Characters of a grammar's definition."""


def custom_spec(tool: Mapping[str, object], at: str) -> ToolSpec:
    """Read a custom tool from its `name`, `description` and `format`, without the enclosing object. Raises
    RequestError."""
    known_only(tool, ("name", "description", "format", "type"), at)
    syntax, definition = _grammar(tool.get("format"), f"{at}.format")
    text: dict[str, object] = {"type": "string"}
    if syntax == "regex":
        text["pattern"] = f"^(?:{definition})$"
    elif syntax == "lark":
        text["description"] = f"Text of this Lark grammar:\n{definition}"
    schema = {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}
    strict = syntax is not None  # a grammar that cannot be enforced is refused, as a strict schema is
    lark = definition if syntax == "lark" else None
    return ToolSpec(tool.get("name"), tool.get("description"), schema, strict, at, custom=True, grammar=lark)


def _grammar(value: object, at: str) -> tuple[str | None, str]:
    """Return the syntax and the definition of a grammar; (None, "") if any text is allowed."""
    if value is None:
        return None, ""
    shape = mapping(at, value)
    if one_of("text", "grammar")(f"{at}.type", shape.get("type")) == "text":
        return None, ""
    if "grammar" in shape:
        at, shape = f"{at}.grammar", mapping(f"{at}.grammar", shape["grammar"])
    syntax = one_of("lark", "regex")(f"{at}.syntax", shape.get("syntax"))
    definition = string(f"{at}.definition", shape.get("definition"))
    if not definition or len(definition) > MAX_GRAMMAR:
        raise wrong(f"{at}.definition", f"must have 1 to {MAX_GRAMMAR} characters")
    return syntax, definition


def arguments_of(text: object, at: str) -> str:
    """Return the arguments of a custom tool's call that a client sends back as text."""
    if not isinstance(text, str):
        raise wrong(at, "must be a string")
    return msgspec.json.encode({INPUT: text}).decode()


def input_of(arguments: str) -> str:
    """Return the text of a complete call of a custom tool; arguments of another form are returned unchanged."""
    reader = InputText()
    return reader.feed(arguments) + reader.finish()


class InputText:
    """Extracts the text from a call's streamed arguments, in linear time."""

    def __init__(self) -> None:
        self._buffer = ""
        self._in_text = self._done = False

    def feed(self, piece: str) -> str:
        """Return the text that this piece of the arguments adds."""
        if self._done:
            return ""
        self._buffer += piece
        if not self._in_text:
            head = _HEAD.match(self._buffer)
            if head is None:
                return ""
            self._in_text, self._buffer = True, self._buffer[head.end() :]
        whole = _WHOLE.match(self._buffer)
        assert whole is not None
        end = whole.end()
        text: str = json.loads(f'"{self._buffer[:end]}"')
        self._done = self._buffer[end : end + 1] == '"'
        self._buffer = "" if self._done else self._buffer[end:]
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def finish(self) -> str:
        """Return the rest when the call has ended: arguments of another form, or of a call that was cut off."""
        remaining, self._buffer = self._buffer, ""
        return remaining if not self._in_text else ""


_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u[dD][0-9a-fA-F]{3}(?=[^\\]|\\[^u]))*"
)
"""Matches as much of a JSON string's content as can be decoded: no partial escape, and no half of a surrogate pair
unless the following characters show that the other half is missing."""
