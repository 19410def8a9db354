"""The validation of finished values against clients' JSON schemas.

The schemas come from strangers, so no pattern is matched with backtracking, nothing is fetched, and the work is limited
by its CPU time: definitions that use one another twice, thirty levels deep, are a billion schemas.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jsonschema
import msgspec
import re2
import referencing
from jsonschema.exceptions import ValidationError, best_match
from jsonschema.validators import Draft202012Validator, extend

from agent_server.bounded import BoundedCache
from agent_server.fair_threads import REQUEST_THREADS
from agent_server.models.prompting.cpu_limit import CPU_LIMIT, CpuTimeout
from events.grammar.disjoint import value_key
from events.grammar.lint import every, modern, subschemas
from events.references import References

logger = logging.getLogger("agent_server")
T = TypeVar("T")
MAX_PROBLEMS = 5
LARGE = 4 * 1024
"""Characters of value and schema above which a value is validated in a thread."""
LOOP_SECONDS = 0.002
"""CPU time of a validation in the event loop. One that takes longer is begun anew in a thread."""
SECONDS = 2.0
"""CPU time of a validation in a thread."""
MAX_CACHED, SMALL = 4 * 1024 * 1024, 16 * 1024
"""Characters of the schemas of all cached validators, and those that a small one counts as. A validator takes about
nine times its characters."""
PROGRAM_BYTES = (512 * 1024, 8 * 1024 * 1024)
"""Bytes that a pattern's program and its states may take: most need the less, `[\\p{L}_-]{1,255}` the more."""
MAX_PROGRAM_BYTES = 64 * 1024 * 1024
COMPILE_SECONDS = 0.1
"""CPU time that compiling a pattern takes at most."""
TUPLE_ITEM = re.compile(r"/items/(\d+)")
"""A place in a tuple in references before draft 2020-12."""
UNUSABLE = (referencing.exceptions.Unresolvable, RecursionError, TypeError, ValueError, KeyError)
"""Errors of validation with a schema that passed its own check but still cannot be used."""


class InvalidArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The first problems of one call's arguments, as pairs of JSON pointer and sentence."""

    problems: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{path.removeprefix('/') or 'arguments'}: {message}" for path, message in self.problems)


async def validate(arguments: str, schema: Any) -> InvalidArguments | None:
    """Validate finished arguments; return None if they are valid, or if the schema cannot be used or takes too long.
    What is large or takes long is validated in a thread."""
    if not isinstance(schema, Mapping) or not schema:
        return None
    return await _run_check(problems_of, arguments, json.dumps(schema))


async def _run_check(check: Callable[[str, str], T | None], value: str, schema: str) -> T | None:
    """Run a check of a value in the event loop if it is short, and otherwise in a thread. Return None if it takes too
    long there."""
    if len(value) + len(schema) <= LARGE:
        with contextlib.suppress(CpuTimeout), CPU_LIMIT.of(LOOP_SECONDS):
            return check(value, schema)
    try:
        return await REQUEST_THREADS.run(CPU_LIMIT.of(SECONDS)(check), value, schema)
    except CpuTimeout:
        logger.warning("A value is not validated, because that takes more than %g seconds with its schema.", SECONDS)
        return None


def problems_of(arguments: str, schema: str) -> InvalidArguments | None:
    """Do what `validate` does, in the calling thread and however long it takes."""
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
        pass
    return InvalidArguments(problems=tuple(problems)) if problems else None


async def mismatch(value: object, schema: object) -> tuple[str, str] | None:
    """Validate a person's answer against the schema of its request. Return the dotted path of the most relevant problem
    ("" for the whole) and a message, or None if the answer is valid or the schema cannot be used. `format` is not
    checked. What is large or takes long is validated in a thread."""
    return await _run_check(_mismatch, msgspec.json.encode(value).decode(), json.dumps(schema))


def _mismatch(answer: str, schema: str) -> tuple[str, str] | None:
    validator = _validator(schema)
    if validator is None:
        return None
    try:
        error = best_match(validator.evolve(format_checker=None).iter_errors(json.loads(answer)))
    except UNUSABLE:
        return None
    return None if error is None else (".".join(str(each) for each in error.absolute_path), error.message)


def _validator(text: str) -> Any:
    """Return a validator that fetches no references and uses no backtracking patterns, or None if the schema cannot be
    used."""
    cached = _validators.get(text)
    if cached is not None:
        return cached
    schema = _usable(json.loads(text))
    if schema is None:
        return None
    validator = _Validator(schema, registry=referencing.Registry(), format_checker=FORMATS)
    _validators.put(text, validator)
    return validator


_validators: BoundedCache[str, Any] = BoundedCache(MAX_CACHED, lambda text, _: max(len(text), SMALL))


def _usable(schema: Any) -> Any:
    """Convert a schema to draft 2020-12, without what is malformed in it and dangling references; return None if that
    is not enough. `$schema` is left out as well: below the root, jsonschema would take its own validator of that draft,
    whose patterns backtrack. So is `unevaluatedProperties` beside `patternProperties`, whose patterns it matches with
    Python's `re`."""
    if not isinstance(schema, dict):
        return schema if isinstance(schema, bool) else None
    for node in every(schema):
        changed = dict(modern(node))
        changed.pop("$schema", None)
        node.clear()
        node.update(changed)
    try:
        errors = list(_META_VALIDATOR.iter_errors(schema))
        for error in errors:
            _remove(schema, list(error.absolute_path))
        if errors and not _META_VALIDATOR.is_valid(schema):
            return None
    except RecursionError:
        return None
    references = References(schema)
    places = {id(schema): references.top}
    nodes = every(schema)
    has_patterns = any("patternProperties" in node for node in nodes)
    for node in nodes:
        if has_patterns:
            node.pop("unevaluatedProperties", None)
        place = places.setdefault(id(node), references.top)
        for keyword in {"$ref", "$dynamicRef"} & node.keys():
            if references.target(node[keyword], place) is None:
                reference = TUPLE_ITEM.sub(r"/prefixItems/\1", str(node.pop(keyword)))
                if references.target(reference, place) is not None:
                    node[keyword] = reference
        for _, inner in subschemas(node):
            places[id(inner)] = references.inside(inner, place) if isinstance(inner, dict) else place
    return schema


def _remove(schema: Any, path: list[str | int]) -> None:
    """Remove the keyword, or the entry of a keyword, that contains the value at a path."""
    above: list[tuple[Any, str | int]] = []
    for step in path:
        above.append((schema, step))
        try:
            schema = schema[step]
        except (LookupError, TypeError):  # removed for an earlier error
            return
    for container, step in reversed(above):
        if isinstance(container, dict):
            del container[step]
            return


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
NO_FORMATS = jsonschema.FormatChecker(formats=())


def _pattern(validator: Any, pattern: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `pattern` with RE2, in linear time. Patterns that RE2 cannot compile are ignored."""
    if isinstance(instance, str) and (compiled := _compiled(pattern)) is not None and not compiled.search(instance):
        yield ValidationError(f"{instance[:100]!r} does not match {pattern[:100]!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `patternProperties` with RE2."""
    for pattern, subschema in patterns.items() if isinstance(instance, dict) else ():
        compiled = _compiled(pattern)
        for name, value in instance.items() if compiled is not None else ():
            CPU_LIMIT.check()
            if compiled.search(name):
                yield from validator.descend(value, subschema, path=name, schema_path=pattern)


def _additional_properties(validator: Any, additional: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `additionalProperties`, with RE2 for the names that `patternProperties` covers. It is ignored
    beside patterns that RE2 cannot compile."""
    patterns = [_compiled(pattern) for pattern in schema.get("patternProperties", ())]
    if not isinstance(instance, dict) or None in patterns:
        return
    uncovered: dict[str, Any] = {}
    for name, value in instance.items():
        CPU_LIMIT.check()
        if not any(pattern.search(name) for pattern in patterns):
            uncovered[name] = value
    declared = {"properties": schema.get("properties", {})}
    yield from Draft202012Validator.VALIDATORS["additionalProperties"](validator, additional, uncovered, declared)


def _compiled(pattern: str) -> Any:
    """Return RE2's program for a pattern, or None if it has none."""
    cached = _programs.get(pattern)
    if cached is not None:
        return cached[0]
    CPU_LIMIT.check(COMPILE_SECONDS)
    program = None
    options = re2.Options()
    options.log_errors = False
    for options.max_mem in PROGRAM_BYTES:
        with contextlib.suppress(re2.error):
            program = re2.compile(pattern, options)
            break
    re2.purge()  # its own cache would keep 128 programs, a gigabyte if they are large
    _programs.put(pattern, (program, options.max_mem))
    return program


_programs: BoundedCache[str, tuple[Any, int]] = BoundedCache(MAX_PROGRAM_BYTES, lambda pattern, entry: entry[1])
"""Pattern → its program, None if RE2 refuses it, and the bytes that it may take."""


def _unique_items(validator: Any, unique: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    """Check the keyword `uniqueItems` in one pass. jsonschema compares items that cannot be sorted pairwise, which
    takes minutes for a few thousand objects."""
    if unique is not True or not isinstance(instance, list):
        return
    if len(set(map(value_key, instance))) < len(instance):
        yield ValidationError("the items are not all different")


def _timed(check: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*given: Any) -> Any:
        CPU_LIMIT.check()
        return check(*given)

    return checked


_OWN = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
_TYPES = Draft202012Validator.TYPE_CHECKER
_Validator = extend(
    Draft202012Validator,
    {keyword: _timed(check) for keyword, check in {**Draft202012Validator.VALIDATORS, **_OWN}.items()},
    # What jsonschema does for `unevaluatedProperties` and `unevaluatedItems` visits schemas without their keywords.
    type_checker=_TYPES.redefine("boolean", _timed(lambda _, value: isinstance(value, bool))),
)
_META_VALIDATOR = _Validator(_Validator.META_SCHEMA, registry=referencing.Registry(), format_checker=NO_FORMATS)
