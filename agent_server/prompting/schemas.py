"""JSON schemas of clients: prepared for a grammar, and finished arguments validated against them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema
import llguidance
import msgspec
import re2
import referencing
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend

from events.grammar.lark import lark
from events.grammar.lint import Finding, Prepared, SchemaRefused, prepare, walk
from events.grammar.regexes import check_pattern

MAX_PROBLEMS = 5
EXPLAINED = {"oneOf": "the schemas may both fit one value, which a grammar cannot rule out; it is taken for anyOf"}
LARGE = 16 * 1024
"""Characters of arguments and schema above which validation leaves the event loop."""
LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, initial_lexer_fuel=1_000_000, verbose_errors=False)


def prepared(schema: Any) -> Prepared:
    """The schema as the grammar takes it, and what it leaves out. Where the compiler still refuses, it is asked to be
    lenient, and where even that fails, the value is only held to be JSON. Raises SchemaRefused."""
    ready = prepare(schema)
    reason = refusal(ready.schema)
    if reason is None:
        return ready
    lenient = {**ready.schema, "x-guidance": {"lenient": True}}
    keyword = keyword_of(reason)
    finding = Finding("", keyword, EXPLAINED.get(keyword, reason))
    if refusal(lenient) is None:
        return Prepared(schema=lenient, findings=(*ready.findings, finding))
    kind = {"type": "object"} if ready.schema.get("type") == "object" or "properties" in ready.schema else {}
    return Prepared(schema=kind, findings=(*ready.findings, finding))


def refusal(schema: Mapping[str, Any]) -> str | None:
    """Why llguidance does not take the schema; None if it does."""
    grammar = lark({"type": "json_schema", "json_schema": dict(schema)})
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, None, limits=LIMITS)
    if not failed:
        return None
    line = messages[0].splitlines()[0] if messages else "unknown reason"
    return line.rpartition("failed to compile JSON schema: ")[2].strip().rstrip(".")[:200] or "unknown reason"


def keyword_of(reason: str) -> str:
    """The keyword that a compiler's message is about, as far as it says."""
    known = ("oneOf", "allOf", "anyOf", "patternProperties", "minProperties", "maxProperties", "format", "pattern")
    return next((keyword for keyword in known if keyword.lower() in reason.lower()), "schema")


def check_pattern_value(pattern: Any) -> str | None:
    return check_pattern(pattern) if isinstance(pattern, str) else "regex must be a string."


# validation


class Invalid(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with one call's arguments: (JSON pointer, sentence) pairs, the first few."""

    problems: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{path.removeprefix('/') or 'arguments'}: {message}" for path, message in self.problems)


async def validate(arguments: str, schema: Any) -> Invalid | None:
    """What is wrong with finished arguments; None where nothing is, or the schema cannot be used. Not in the event loop
    where either is large."""
    if not isinstance(schema, Mapping) or not schema:
        return None
    text = json.dumps(schema)
    if len(arguments) + len(text) > LARGE:
        return await asyncio.to_thread(problems_of, arguments, text)
    return problems_of(arguments, text)


def problems_of(arguments: str, schema: str) -> Invalid | None:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return Invalid(problems=(("", "The arguments are not valid JSON."),))
    validator = _validator(schema)
    if validator is None:
        return None
    found: list[tuple[str, str]] = []
    try:
        for error in validator.iter_errors(value):
            path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
            found.append((path, error.message[:300]))
            if len(found) == MAX_PROBLEMS:
                break
    except (referencing.exceptions.Unresolvable, RecursionError, TypeError, ValueError, KeyError):
        return None
    return Invalid(problems=tuple(found)) if found else None


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """A validator that never fetches anything and never backtracks; None for a schema that is not one."""
    schema = json.loads(text)
    try:
        _Validator.check_schema(schema)
        if any(_backtracks(node) for _, node in walk(schema)):
            return None
    except (jsonschema.SchemaError, SchemaRefused, RecursionError):
        return None
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return _Validator(schema, registry=referencing.Registry(), format_checker=checker)


def _backtracks(node: Mapping[str, Any]) -> bool:
    """Whether a name's pattern, which Python's own engine runs, may take for ever."""
    inner = node.get("patternProperties")
    return isinstance(inner, Mapping) and any(check_pattern(name) is not None for name in inner)


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """`pattern` by RE2, in linear time; one that it does not know is left alone."""
    if isinstance(instance, str) and (compiled := _compiled(pattern)) is not None and not compiled.search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error:
        return None


_Validator = extend(jsonschema.Draft202012Validator, {"pattern": _pattern})
