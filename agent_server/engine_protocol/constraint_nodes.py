"""Constraints as nodes of a structural tag, the common form that is translated for each grammar library."""

from __future__ import annotations

from agent_server.engine_protocol.protocol import Constraint
from events.grammar.nodes import Node, constant, either, pattern


def node_of(constraint: Constraint) -> Node:
    """The constraint as a node of a structural tag. The `syntax` of a "grammar" node is "ebnf" or "lark"."""
    value = constraint.value
    match constraint.kind:
        case "structural_tag":
            return dict(value.get("format", value))
        case "json_schema":
            return {"type": "json_schema", "json_schema": value}
        case "json_object":
            return {"type": "json_schema", "json_schema": {"type": "object"}}
        case "regex":
            return pattern(value)
        case "choice":
            return either(*(constant(text) for text in value))
    return {"type": "grammar", "grammar": value, "syntax": constraint.kind}
