"""Clients' JSON schemas: preparing them for a grammar, and validating finished arguments against them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
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
from events.grammar.lint import Finding, PreparedSchema, SchemaRefused, prepare, walk
from events.grammar.regexes import check_pattern

MAX_PROBLEMS = 5
EXPLAINED = {"oneOf": "the schemas may both fit one value, which a grammar cannot rule out; it is taken for anyOf"}
LARGE = 16 * 1024
"""Characters of arguments and schema above which they are validated in a thread."""
LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, initial_lexer_fuel=1_000_000, verbose_errors=False)


def prepared(schema: Any) -> PreparedSchema:
    """The schema for the grammar, and findings about what it does not enforce.

    If the compiler refuses the schema, its lenient mode is tried, which ignores what it does not support. If that fails
    too, the value is only required to be JSON, or a JSON object. Raises SchemaRefused."""
    ready = prepare(schema)
    reason = refusal(ready.schema)
    if reason is None:
        return ready
    lenient = {**ready.schema, "x-guidance": {"lenient": True}}
    keyword = keyword_of(reason)
    finding = Finding("", keyword, EXPLAINED.get(keyword, reason))
    if refusal(lenient) is None:
        return PreparedSchema(schema=lenient, findings=(*ready.findings, finding))
    kind = {"type": "object"} if ready.schema.get("type") == "object" or "properties" in ready.schema else {}
    return PreparedSchema(schema=kind, findings=(*ready.findings, finding))


def refusal(schema: Mapping[str, Any]) -> str | None:
    """Why llguidance refuses the schema; None if it accepts it."""
    grammar = lark({"type": "json_schema", "json_schema": dict(schema)})
    failed, messages = llguidance.LLMatcher.validate_grammar_with_warnings(grammar, None, limits=LIMITS)
    if not failed:
        return None
    line = messages[0].splitlines()[0] if messages else "unknown reason"
    return line.rpartition("failed to compile JSON schema: ")[2].strip().rstrip(".")[:200] or "unknown reason"


def keyword_of(reason: str) -> str:
    """The keyword that a message of the compiler is about; "schema" if it names none."""
    known = ("oneOf", "allOf", "anyOf", "patternProperties", "minProperties", "maxProperties", "format", "pattern")
    return next((keyword for keyword in known if keyword.lower() in reason.lower()), "schema")


def check_pattern_value(pattern: Any) -> str | None:
    return check_pattern(pattern) if isinstance(pattern, str) else "regex must be a string."


# validation


class Invalid(msgspec.Struct, frozen=True, kw_only=True):
    """The first problems of one call's arguments, as pairs of JSON pointer and sentence."""

    problems: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{path.removeprefix('/') or 'arguments'}: {message}" for path, message in self.problems)


async def validate(arguments: str, schema: Any) -> Invalid | None:
    """The problems of finished arguments; None if they are valid or the schema cannot be used. Large arguments and
    schemas are validated in a thread."""
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
    problems: list[tuple[str, str]] = []
    try:
        for error in validator.iter_errors(value):
            path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.absolute_path)
            problems.append((path, error.message[:300]))
            if len(problems) == MAX_PROBLEMS:
                break
    except (referencing.exceptions.Unresolvable, RecursionError, TypeError, ValueError, KeyError):
        return None
    return Invalid(problems=tuple(problems)) if problems else None


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """A validator that fetches no references and uses no backtracking patterns; None for an invalid schema."""
    schema = json.loads(text)
    try:
        _Validator.check_schema(schema)
        if any(_backtracks(node) for _, node in walk(schema)):
            return None
    except (jsonschema.SchemaError, SchemaRefused, RecursionError):
        return None
    return _Validator(schema, registry=referencing.Registry(), format_checker=FORMATS)


def _formats() -> jsonschema.FormatChecker:
    """jsonschema's checks, with the leap second that RFC 3339 (section 5.6) allows in a time. jsonschema reads times
    with Python's `datetime`, which has none; grammars write it, and what they write must not be called invalid."""
    checker = jsonschema.FormatChecker()
    checker.checkers = dict(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)
    for name in ("time", "date-time"):
        if name in checker.checkers:
            check, raises = checker.checkers[name]
            checker.checkers[name] = (_without_leap_second(check), raises)
    return checker


def _without_leap_second(check: Callable[[object], bool]) -> Callable[[object], bool]:
    def checked(instance: object) -> bool:
        return check(LEAP_SECOND.sub(r"\1:59", instance) if isinstance(instance, str) else instance)

    return checked


LEAP_SECOND = re.compile(r"(\d\d:\d\d):60")
FORMATS = _formats()


def _backtracks(node: Mapping[str, Any]) -> bool:
    """Whether a pattern for property names, which Python's `re` matches, could take exponential time."""
    inner = node.get("patternProperties")
    return isinstance(inner, Mapping) and any(check_pattern(name) is not None for name in inner)


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Checks the keyword `pattern` with RE2, in linear time. A pattern that RE2 cannot compile is not checked."""
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
