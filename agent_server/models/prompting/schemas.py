"""Clients' JSON schemas: their preparation for a grammar, and the validation of finished arguments against them."""

from __future__ import annotations

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

from agent_server.fair_threads import REQUEST_THREADS
from events.grammar.lark import lark
from events.grammar.lint import (
    UNRELATED,
    Finding,
    PreparedSchema,
    SchemaRefused,
    every,
    malformed,
    modern,
    prepare,
    subschemas,
    walk,
)
from events.grammar.regexes import check_pattern
from events.references import References

MAX_PROBLEMS = 5
MAX_TRIALS = 1000
"""Compilations that search for what the compiler refuses; each takes about a millisecond."""
REMOVABLE_KEYWORDS = (
    *("multipleOf", "pattern", "format", "minLength", "maxLength", "exclusiveMinimum", "exclusiveMaximum", "minimum"),
    *("maximum", "minItems", "maxItems", "minProperties", "maxProperties", "patternProperties", "allOf", "anyOf"),
    *("const", "type", "enum", "prefixItems", "required", "additionalProperties", "items", "properties", "$ref"),
)
"""Keywords that are removed from a schema on trial, in this order: bounds first, then those with subschemas."""
LARGE = 16 * 1024
"""Characters of arguments and schema above which they are validated in a thread."""
LIMITS = llguidance.LLParserLimits(max_grammar_size=100_000, initial_lexer_fuel=1_000_000, verbose_errors=False)


def prepared(schema: Any) -> PreparedSchema:
    """Return the schema for the grammar, and findings about what it does not enforce.

    Keywords that the compiler refuses are removed one by one. Raises SchemaRefused."""
    ready = prepare(schema)
    return ready if refusal(ready.schema) is None else _SchemaReducer(ready).reduce()


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
        schema = self._ready.schema
        try:
            self._reduce_node(schema)
        except _TooManyTrials as error:
            schema = {"type": "object"} if schema.get("type") == "object" or "properties" in schema else {}
            self._findings.append(Finding("", "schema", f"too much of it cannot be compiled: {error}"))
        findings = tuple(dict.fromkeys((*self._ready.findings, *self._findings)))
        return PreparedSchema(schema=schema, findings=findings, paths=self._ready.paths)

    def _refusal(self, node: Mapping[str, Any]) -> str | None:
        reason = refusal({**node, "$defs": self._definitions} if self._definitions else node)
        self._trials_left -= 1
        if reason is not None and self._trials_left < 0:
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
    """So much of a schema is refused that searching for each part would take too long."""


def check_pattern_value(pattern: Any) -> str | None:
    return check_pattern(pattern) if isinstance(pattern, str) else "regex must be a string."


# validation

UNUSABLE = (referencing.exceptions.Unresolvable, RecursionError, TypeError, ValueError, KeyError)
"""Errors of validation with a schema that passed its own check but still cannot be used."""


class InvalidArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The first problems of one call's arguments, as pairs of JSON pointer and sentence."""

    problems: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{path.removeprefix('/') or 'arguments'}: {message}" for path, message in self.problems)


async def validate(arguments: str, schema: Any) -> InvalidArguments | None:
    """Validate finished arguments; return None if they are valid or the schema cannot be used. Large arguments and
    schemas are validated in a thread."""
    if not isinstance(schema, Mapping) or not schema:
        return None
    text = json.dumps(schema)
    if len(arguments) + len(text) > LARGE:
        return await REQUEST_THREADS.run(problems_of, arguments, text)
    return problems_of(arguments, text)


def problems_of(arguments: str, schema: str) -> InvalidArguments | None:
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return InvalidArguments(problems=(("", "The arguments are not valid JSON."),))
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
    return InvalidArguments(problems=tuple(problems)) if problems else None


async def mismatch(value: object, schema: object) -> tuple[str, str] | None:
    """Validate a person's answer against the schema of its request. Return the dotted path of the most relevant problem
    ("" for the whole) and a message, or None if the answer is valid or the schema cannot be used. `format` is not
    checked. Large answers and schemas are validated in a thread."""
    answer, text = msgspec.json.encode(value), json.dumps(schema)
    if len(answer) + len(text) > LARGE:
        return await REQUEST_THREADS.run(_mismatch, answer, text)
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


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    """Create a validator that fetches no references and uses no backtracking patterns. Malformed keywords of the schema
    are ignored one by one; returns None if that is not enough."""
    schema = _usable(json.loads(text))
    try:
        _Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError):
        return None
    return _Validator(schema, registry=referencing.Registry(), format_checker=FORMATS)


def _usable(schema: Any) -> Any:
    """Convert a schema to draft 2020-12, without malformed keywords, dangling references, and patterns for property
    names that could take Python's `re` exponential time to match."""
    if not isinstance(schema, dict):
        return schema
    for node in every(schema):
        changed = dict(modern(node))
        left_out = {key for key, value in changed.items() if malformed(key, value) is not None}
        patterns = changed.get("patternProperties")
        if isinstance(patterns, Mapping) and any(check_pattern(name) is not None for name in patterns):
            left_out |= {"patternProperties", "additionalProperties", "unevaluatedProperties"}
        node.clear()
        node.update({key: value for key, value in changed.items() if key not in left_out})
    references = References(schema)
    places = {id(schema): references.top}
    for node in every(schema):
        place = places.setdefault(id(node), references.top)
        if "$ref" in node and references.target(node["$ref"], place) is None:
            del node["$ref"]
        for _, inner in subschemas(node):
            places[id(inner)] = references.inside(inner, place) if isinstance(inner, dict) else place
    return schema


def _formats() -> jsonschema.FormatChecker:
    """Return jsonschema's format checks, extended by the leap second of RFC 3339 (section 5.6). jsonschema parses times
    with Python's `datetime`, which has none, but grammars allow it, and their output must be valid."""
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


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `pattern` with RE2, in linear time. Patterns that RE2 cannot compile are ignored."""
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
    """Check the keyword `uniqueItems` in one pass. jsonschema compares items that cannot be sorted pairwise, which
    takes minutes for a few thousand objects."""
    if unique is not True or not isinstance(instance, list):
        return
    if len({json.dumps(_plain(item), sort_keys=True) for item in instance}) < len(instance):
        yield ValidationError("the items are not all different")


def _plain(value: Any) -> Any:
    """Normalise equal numbers in a value: 1.0 is 1 (JSON Schema, core, 4.2.2)."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


_Validator = extend(jsonschema.Draft202012Validator, {"pattern": _pattern, "uniqueItems": _unique_items})
