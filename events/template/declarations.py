"""Declared tools as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ag_ui.core import Tool

from events.formats.cards import ToolCard
from events.formats.output_format import Tools
from events.template.environment import Message
from events.template.writer import WrittenCall, write_calls


def tool_declaration(tool: Tool) -> Message:
    """Convert a tool to OpenAI's function declaration, with the keys that templates read without a check: a description
    and an object schema with properties."""
    schema = dict(tool.parameters) if isinstance(tool.parameters, Mapping) else {}
    schema = {"type": "object", "properties": {}, **schema}
    function = {"name": tool.name, "description": tool.description or "", "parameters": schema}
    return {"type": "function", "function": function}


def explain_tools(tools: Sequence[Message], call_format: Tools) -> str:
    """Return a text that explains tools to a model whose template does not support them: the declarations, and how to
    write a call in `call_format`."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    example = write_calls(call_format, [WrittenCall("function_name", {"argument_name": "value"}, "0")]).strip()
    return (
        "# Tools\n\nYou may call these functions, each described by its name, its purpose and the JSON schema of its "
        "arguments:\n" + "\n".join(lines) + "\n\nTo call one, answer with nothing but its call, written like this:\n"
        f"{example}"
    )


def card_prompt(tools: Sequence[Message], card: ToolCard) -> str:
    """Return the text of a family's tool prompt with these tools, as in its model card."""
    functions = [tool["function"] for tool in tools]
    return card.words.replace("{tools}", json.dumps(functions, ensure_ascii=False))


def simplify_schemas(tools: Sequence[Message]) -> list[Message]:
    """Simplify the schemas of declarations so that every template can print them: one type name each, no unions and
    references. A last resort for templates that fail on a schema."""
    return [
        {**tool, "function": {**tool["function"], "parameters": _simple_schema(tool["function"]["parameters"], 0)}}
        for tool in tools
    ]


def _simple_schema(schema: object, depth: int) -> Message:
    if not isinstance(schema, Mapping) or depth > 8:
        return {"type": "string"}
    for union in ("anyOf", "oneOf", "allOf"):
        variants = schema.get(union)
        if isinstance(variants, (list, tuple)) and variants:
            variant = next((v for v in variants if isinstance(v, Mapping) and v.get("type") != "null"), {})
            return {**_simple_schema(variant, depth + 1), "description": str(schema.get("description", ""))}
    kind = schema.get("type", "string")
    kind = next((k for k in kind if k != "null"), "string") if isinstance(kind, (list, tuple)) else kind
    simple: Message = {"type": str(kind), "description": str(schema.get("description", ""))}
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        simple["properties"] = {str(key): _simple_schema(value, depth + 1) for key, value in properties.items()}
        required = schema.get("required")
        names = required if isinstance(required, (list, tuple)) else ()
        simple["required"] = [name for name in names if isinstance(name, str) and name in properties]
    if "items" in schema:
        simple["items"] = _simple_schema(schema["items"], depth + 1)
    if kind == "object" and depth:  # templates that write types of Python's print `Dict[str, ...]` of it
        simple["additionalProperties"] = {"type": "string"}
    if isinstance(schema.get("enum"), (list, tuple)):
        simple["enum"] = [str(item) for item in schema["enum"]]
    return simple
