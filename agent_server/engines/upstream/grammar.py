"""Translates a constraint into a grammar of the upstream's own library."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from agent_server.engine_protocol.constraint_nodes import node_of
from agent_server.engine_protocol.protocol import Constraint
from agent_server.engines.upstream.errors import refused
from agent_server.engines.upstream.xgrammar_tags import TagWriter
from events.grammar.lark import Unwritable, lark
from events.grammar.nodes import Node

HEADER = "%llguidance {}\n"


class UpstreamGrammar(msgspec.Struct, frozen=True):
    """value: a string for "lark", "ebnf" and "regex", a JSON value for "structural_tag" and "json_schema"."""

    kind: Literal["lark", "ebnf", "structural_tag", "json_schema", "regex"]
    value: Any


async def translate(
    constraint: Constraint | None, language: str | None, controls: Mapping[int, str]
) -> UpstreamGrammar | None:
    """The constraint for an upstream that takes grammars for `language`: "llguidance" or "xgrammar". controls: the
    spellings of control tokens by id. Raises EngineError("invalid_request") if the library cannot enforce the
    constraint in full: an incomplete grammar is never sent."""
    if constraint is None:
        return None
    if language == "llguidance":
        return await asyncio.to_thread(for_llguidance, constraint, tuple(controls))
    try:
        return await asyncio.to_thread(for_xgrammar, constraint, controls)
    except Unwritable as error:
        message = f"This upstream's grammar library (xgrammar) cannot enforce the requested output: {error}"
        raise refused("response_format", message) from error


def for_llguidance(constraint: Constraint, controls: Sequence[int]) -> UpstreamGrammar:
    """The same grammar that the embedded engine uses. A constraint that Lark cannot express is sent as the client's
    structural tag."""
    if constraint.kind == "lark":
        text = str(constraint.value)
        return UpstreamGrammar("lark", text if "%llguidance" in text else HEADER + text)
    if constraint.kind == "ebnf":
        return UpstreamGrammar("ebnf", constraint.value)
    try:
        return UpstreamGrammar("lark", lark(node_of(constraint), controls))
    except Unwritable:
        return UpstreamGrammar("structural_tag", whole_tag(node_of(constraint)))


def for_xgrammar(constraint: Constraint, controls: Mapping[int, str]) -> UpstreamGrammar:
    """The constraint for xgrammar. Raises Unwritable if xgrammar cannot enforce it."""
    if constraint.kind in ("lark", "ebnf", "regex"):
        if constraint.kind == "lark":
            raise Unwritable("it has no Lark.")
        return UpstreamGrammar(constraint.kind, constraint.value)
    return UpstreamGrammar("structural_tag", whole_tag(TagWriter(controls).write(node_of(constraint))))


def whole_tag(node: Node) -> dict[str, object]:
    return {"type": "structural_tag", "format": node}
