"""Clients' JSON schemas: preparing them for a grammar, and validating finished arguments against them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, cast

import jsonschema
import llguidance
import msgspec
import re2
import referencing
from jsonschema.exceptions import ValidationError, best_match
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

UNUSABLE = (referencing.exceptions.Unresolvable, RecursionError, TypeError, ValueError, KeyError)
"""What a schema does that passed its own check and still cannot be followed."""


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
    except UNUSABLE:
        return None
    return Invalid(problems=tuple(problems)) if problems else None


async def mismatch(value: object, schema: object) -> tuple[str, str] | None:
    """Where a person's answer does not fit the schema that it was asked for with, as the path with dots between its
    parts ("" for the whole), and what is wrong there. None if it fits, or the schema cannot be used. `format` is an
    annotation. Large answers and schemas are looked at in a thread."""
    answer, text = msgspec.json.encode(value), json.dumps(schema)
    if len(answer) + len(text) > LARGE:
        return await asyncio.to_thread(_mismatch, answer, text)
    return _mismatch(answer, text)


def _mismatch(answer: bytes, schema: str) -> tuple[str, str] | None:
    validator = _validator(schema)
    if validator is None:
        return None
    try:
        error = best_match(validator.evolve(format_checker=None).iter_errors(json.loads(answer)))
    except UNUSABLE:
        return None
    return None if error is None else (".".join(str(each) for each in error.absolute_path), error.message)


def moved(schema: Mapping[str, object], pointer: str) -> dict[str, object]:
    """A copy of a whole schema for the place `pointer` ("#/properties/x") of another one: what it refers to in itself
    is found there. One with an id of its own is a resource of its own, and its references hold wherever it stands."""
    copy: dict[str, object] = json.loads(json.dumps(schema))
    if "$id" in copy:
        return copy
    with contextlib.suppress(SchemaRefused):  # too deep; nobody refers into that
        for _, node in walk(copy):
            reference = node.get("$ref")
            if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
                cast("dict[str, object]", node)["$ref"] = pointer + reference[1:]
    return copy


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


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Checks the keyword `uniqueItems` in one pass. jsonschema compares each item with every other where they cannot be
    sorted, which takes minutes for some thousand objects."""
    if unique is not True or not isinstance(instance, list):
        return
    if len({json.dumps(_plain(item), sort_keys=True) for item in instance}) < len(instance):
        yield ValidationError("the items are not all different")


def _plain(value: Any) -> Any:
    """The value with one spelling for equal numbers: 1.0 is 1 (JSON Schema, core, 4.2.2)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


_Validator = extend(jsonschema.Draft202012Validator, {"pattern": _pattern, "uniqueItems": _unique_items})
