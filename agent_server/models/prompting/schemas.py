"""Clients' JSON schemas, and their preparation for a grammar."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

import llguidance

from agent_server.models.prompting.cpu_limit import CPU_LIMIT
from events.grammar.lark import lark
from events.grammar.lint import UNRELATED, Finding, PreparedSchema, SchemaRefused, prepare, subschemas, walk
from events.grammar.regexes import check_pattern

MAX_TRIALS = 1000
"""Compilations that search for what the compiler refuses. Most take a millisecond; the compiler gives up after a
second."""
REMOVABLE_KEYWORDS = (
    *("multipleOf", "pattern", "format", "minLength", "maxLength", "exclusiveMinimum", "exclusiveMaximum", "minimum"),
    *("maximum", "minItems", "maxItems", "minProperties", "maxProperties", "patternProperties", "allOf", "anyOf"),
    *("const", "type", "enum", "prefixItems", "required", "additionalProperties", "items", "properties", "$ref"),
)
"""Keywords that are removed from a schema on trial, in this order: bounds first, then those with subschemas."""
LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, initial_lexer_fuel=1_000_000, verbose_errors=False)


def prepared(schema: Any) -> PreparedSchema:
    """Return the schema for the grammar, and findings about what it does not enforce.

    Keywords that the compiler refuses are removed one by one. Beyond the thread's CPU_LIMIT the schema is not enforced
    at all. Raises SchemaRefused."""
    ready = prepare(schema)
    if CPU_LIMIT.reached:
        return _unenforced(ready, "compiling the schemas of the request takes too long")
    return ready if refusal(ready.schema) is None else _SchemaReducer(ready).reduce()


def _unenforced(ready: PreparedSchema, reason: str, findings: tuple[Finding, ...] = ()) -> PreparedSchema:
    """Return a schema that any value fits, or any object if the original is one of an object."""
    is_object = ready.schema.get("type") == "object" or "properties" in ready.schema
    schema: dict[str, Any] = {"type": "object"} if is_object else {}
    return PreparedSchema(schema=schema, findings=(*ready.findings, *findings, Finding("", "schema", reason)))


def refusal(schema: Mapping[str, Any]) -> str | None:
    """Return why llguidance refuses the schema, or None if it accepts it."""
    try:
        grammar = lark({"type": "json_schema", "json_schema": dict(schema)})
    except (TypeError, ValueError, RecursionError) as error:
        return f"it cannot be written as JSON: {error}"
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, None, limits=LIMITS)
    if not failed:
        return None
    line = messages[0].splitlines()[0] if messages else "unknown reason"
    return line.rpartition("failed to compile JSON schema: ")[2].strip().rstrip(".:")[:200] or "unknown reason"


class _SchemaReducer:
    """Removes from a schema what the compiler refuses: starting with the innermost subschemas that are refused alone,
    and from each the one keyword without which it is accepted."""

    def __init__(self, ready: PreparedSchema) -> None:
        self._ready = ready
        self._definitions = ready.schema.get("$defs", {})
        self._findings: list[Finding] = []
        self._visited: set[int] = set()
        self._trials_left = MAX_TRIALS

    def reduce(self) -> PreparedSchema:
        ready = self._ready
        try:
            self._reduce_node(ready.schema)
        except _TooManyTrials as error:
            reason = f"too much of it cannot be compiled: {error}"
            return _unenforced(ready, reason, tuple(dict.fromkeys(self._findings)))
        findings = tuple(dict.fromkeys((*ready.findings, *self._findings)))
        return PreparedSchema(schema=ready.schema, findings=findings, paths=ready.paths)

    def _refusal(self, node: Mapping[str, Any]) -> str | None:
        reason = refusal({**node, "$defs": self._definitions} if self._definitions else node)
        self._trials_left -= 1
        if reason is not None and (self._trials_left < 0 or CPU_LIMIT.reached):
            raise _TooManyTrials(reason)
        return reason

    def _reduce_node(self, node: Any) -> None:
        if not isinstance(node, dict) or id(node) in self._visited:
            return
        self._visited.add(id(node))
        if self._refusal(node) is None:
            return
        reference = node.get("$ref")
        if isinstance(reference, str):
            self._reduce_node(self._definitions.get(reference.removeprefix("#/$defs/")))
        for place, inner in subschemas(node):
            if not place.startswith("/$defs/"):
                self._reduce_node(inner)
        while (reason := self._refusal(node)) is not None and (keyword := self._culprit(node, reason)) is not None:
            path = self._ready.paths.get(id(node), "")
            del node[keyword]
            self._findings.append(Finding(path, keyword, reason))
            dependent = UNRELATED.get(keyword)
            if dependent is not None and node.pop(dependent, True) is not True:
                self._findings.append(Finding(path, dependent, f"it depends on {keyword}, which is not enforced"))

    def _culprit(self, node: dict[str, Any], reason: str) -> str | None:
        """Return the keyword without which the compiler accepts the node or, if there is no such one, the likeliest."""
        present = [keyword for keyword in REMOVABLE_KEYWORDS if keyword in node]
        named = [keyword for keyword in present if re.search(rf"\b{re.escape(keyword)}\b", reason, re.IGNORECASE)]
        likely = [*named, *(keyword for keyword in present if keyword not in named)]
        for keyword in likely:
            removed = (keyword, UNRELATED.get(keyword, ""))
            if self._refusal({key: value for key, value in node.items() if key not in removed}) is None:
                return keyword
        return likely[0] if likely else None


class _TooManyTrials(Exception):
    """So much of a schema is refused, or compiling takes so long, that searching for each part takes too long."""


def check_pattern_value(pattern: Any) -> str | None:
    return check_pattern(pattern) if isinstance(pattern, str) else "regex must be a string."


def moved(schema: Mapping[str, object], pointer: str) -> dict[str, object]:
    """Copy a schema for the place `pointer` ("#/properties/x") of another one, with its internal references adapted. A
    schema with an `$id` is a resource of its own, whose references hold anywhere."""
    copy: dict[str, object] = json.loads(json.dumps(schema))
    if "$id" in copy:
        return copy
    with contextlib.suppress(SchemaRefused):  # too deep to be referenced
        for _, node in walk(copy):
            reference = node.get("$ref")
            if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
                cast("dict[str, object]", node)["$ref"] = pointer + reference[1:]
    return copy
