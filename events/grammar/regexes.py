"""Estimate the cost of clients' regular expressions from their syntax tree, without running them."""

from __future__ import annotations

import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from typing import Any

MAX_LENGTH = 1024
MAX_UNROLLED = 4096
"""The most characters of a pattern with its bounded repetitions expanded."""
MAX_UNDECIDED = 12
"""The most characters that may follow an unbounded repetition before it is known which one they belong to."""
_UNBOUNDED = int(codes.MAXREPEAT)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


def check_pattern(pattern: str) -> str | None:
    """Return the reason to refuse a pattern, as a sentence, or None. Patterns that Python cannot parse are left to the
    grammar's compiler, which limits its own work."""
    if len(pattern) > MAX_LENGTH:
        return f"pattern may have at most {MAX_LENGTH} characters."
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = parser.parse(pattern)
    except (re_error, RecursionError, OverflowError, ValueError):
        return None
    if _size(parsed) > MAX_UNROLLED:
        return f"pattern is longer than {MAX_UNROLLED} characters when its repetitions are written out."
    if _ambiguous(parsed):
        return "pattern repeats what is itself repeated, like (a+)+; write it with one repetition."
    if _undecided(parsed):
        return f"pattern looks back more than {MAX_UNDECIDED} characters behind a repetition, like .*a.{{20}}."
    return None


re_error = codes.error


def _inner(operation: Any, argument: Any) -> list[Any]:
    """Return the patterns inside an operation of `re._parser`."""
    if operation in _REPEATS:
        return [argument[2]]
    if operation is codes.SUBPATTERN:
        return [argument[3]]
    if operation is codes.BRANCH:
        return list(argument[1])
    if operation is codes.ATOMIC_GROUP:
        return [argument]
    return [argument[1]] if operation in (codes.ASSERT, codes.ASSERT_NOT) else []


def _size(pattern: Any) -> int:
    """Return the number of characters with bounded repetitions expanded, capped well above MAX_UNROLLED."""
    total = 0
    for operation, argument in pattern:
        size = sum(map(_size, _inner(operation, argument))) or 1
        if operation in _REPEATS:
            least, most = argument[0], argument[1]
            size *= max(least + 1 if most == _UNBOUNDED else most, 1)
        total = min(total + size, 1 << 40)
    return total


def _unbounded(operation: Any, argument: Any) -> bool:
    return operation in _REPEATS and argument[1] == _UNBOUNDED


def _flat(pattern: Any) -> list[Any]:
    """Return the items of a pattern, with those of plain groups in their place."""
    items: list[Any] = []
    for operation, argument in pattern:
        items += _flat(argument[3]) if operation is codes.SUBPATTERN else [(operation, argument)]
    return items


def _nullable(operation: Any, argument: Any) -> bool:
    if operation in _REPEATS:
        return bool(argument[0] == 0)
    if operation is codes.BRANCH:
        return any(all(_nullable(*item) for item in _flat(branch)) for branch in argument[1])
    return operation in (codes.AT, codes.ASSERT, codes.ASSERT_NOT)


def _ambiguous(pattern: Any) -> bool:
    """Return whether an unbounded repetition contains only another one, as in `(a+)+`, so that a text matches in
    exponentially many ways."""
    for operation, argument in pattern:
        if _unbounded(operation, argument):
            items = _flat(argument[2])
            branches = [branch for op, arg in items if op is codes.BRANCH for branch in arg[1]]
            if any(_only_repeats(_flat(branch)) for branch in branches) or _only_repeats(items):
                return True
        if any(_ambiguous(inner) for inner in _inner(operation, argument)):
            return True
    return False


def _only_repeats(items: list[Any]) -> bool:
    must = [item for item in items if not _nullable(*item)]
    return any(_unbounded(*item) for item in items) and all(_unbounded(*item) for item in must)


def _undecided(pattern: Any) -> bool:
    """Return whether a character and then many wide items follow an unbounded repetition of a wide item. An automaton
    needs a state for every combination of positions at which that character may be (`(a|b)*a(a|b){20}`)."""
    items = _flat(pattern)
    after_unbounded = after_character = False
    for operation, argument in items:
        many = operation in _REPEATS and argument[0] > MAX_UNDECIDED
        if after_unbounded and after_character and many and _wide(argument[2]):
            return True
        if _unbounded(operation, argument) and _wide(argument[2]):
            after_unbounded, after_character = True, False
        elif operation is codes.LITERAL:
            after_character = after_unbounded
    return any(_undecided(inner) for op, arg in pattern for inner in _inner(op, arg) if op is not codes.SUBPATTERN)


def _wide(pattern: Any) -> bool:
    """Return whether a pattern begins with an item that matches more than one character."""
    items = _flat(pattern)
    return bool(items) and items[0][0] in (codes.ANY, codes.IN, codes.BRANCH, codes.NOT_LITERAL, codes.CATEGORY)
