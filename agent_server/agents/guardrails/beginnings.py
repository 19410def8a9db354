"""From a regular expression, the one that says what its matches may begin with.

A text that ends in the beginning of a match must wait for what follows; any other text need not. RE2 cannot be asked
for that (it has no partial match), so the expression is taken apart and written anew: of `abc`, `a(?:b(?:c)?)?`.
"""

from __future__ import annotations

import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import warnings
from collections.abc import Sequence
from typing import Any

_UNBOUNDED = int(codes.MAXREPEAT)
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_CATEGORIES = {
    codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_NOT_DIGIT: r"\D",
    codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_NOT_SPACE: r"\S",
    codes.CATEGORY_WORD: r"\w", codes.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_PLACES = {
    codes.AT_BEGINNING: "^", codes.AT_BEGINNING_STRING: r"\A", codes.AT_END: "$",
    codes.AT_BOUNDARY: r"\b", codes.AT_NON_BOUNDARY: r"\B",
}  # fmt: skip
_FLAGS = {codes.SRE_FLAG_IGNORECASE: "i", codes.SRE_FLAG_MULTILINE: "m", codes.SRE_FLAG_DOTALL: "s"}
Items = Sequence[tuple[Any, Any]]


class Unreadable(ValueError):
    """A pattern that cannot be watched for while it is written."""


def beginnings(pattern: str) -> str:
    """An RE2 expression for every text, but the empty one, with which a match of `pattern` begins. Raises Unreadable
    for what is not written alike in RE2 and Python, and for a pattern that matches nothing but the empty text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            parsed = parser.parse(pattern)
    except (codes.error, RecursionError, OverflowError, Warning) as error:
        raise Unreadable(f"{pattern} cannot be taken apart: {error}") from None
    begun = _begun(list(parsed))
    if begun is None:
        raise Unreadable(f"{pattern} matches no character")
    return _flagged(parsed.state.flags, 0, begun)


def _begun(items: Items) -> str | None:
    """Of a sequence: the beginnings of its first item, or that and the beginnings of the rest. None if there are
    none."""
    made: str | None = None
    for operation, argument in reversed(items):
        whole, begun = _whole(operation, argument), _begun_of(operation, argument)
        if made is None or begun is None:
            made = begun if made is None else f"{whole}{made}"
        elif begun == whole:
            made = f"{whole}(?:{made})?"
        else:
            made = f"(?:{begun}|{whole}{made})"
    return made


def _begun_of(operation: Any, argument: Any) -> str | None:
    """The beginnings of one item; None for one that has no characters."""
    if operation is codes.AT:
        return None
    if operation in _REPEATS:
        _, most, inner = argument
        begun = _begun(list(inner))
        if most == 0 or begun is None:
            return None
        times = "*" if most == _UNBOUNDED else f"{{0,{most - 1}}}"
        return f"(?:{_sequence(inner)}){times}{begun}"
    if operation is codes.SUBPATTERN:
        _, added, removed, inner = argument
        begun = _begun(list(inner))
        return None if begun is None else _flagged(added, removed, begun)
    if operation is codes.BRANCH:
        each = [begun for branch in argument[1] if (begun := _begun(list(branch))) is not None]
        return f"(?:{'|'.join(each)})" if each else None
    return _whole(operation, argument)


def _whole(operation: Any, argument: Any) -> str:
    if operation is codes.LITERAL:
        return _character(argument)
    if operation is codes.NOT_LITERAL:
        return f"[^{_character(argument)}]"
    if operation is codes.ANY:
        return "."
    if operation is codes.IN:
        return _class(argument)
    if operation is codes.AT and argument in _PLACES:
        return _PLACES[argument]
    if operation in _REPEATS:
        least, most, inner = argument
        bound = "" if most == _UNBOUNDED else most
        return f"(?:{_sequence(inner)}){{{least},{bound}}}"
    if operation is codes.SUBPATTERN:
        _, added, removed, inner = argument
        return _flagged(added, removed, _sequence(inner))
    if operation is codes.BRANCH:
        return "(?:" + "|".join(_sequence(each) or "(?:)" for each in argument[1]) + ")"
    raise Unreadable(f"has {str(operation).lower()}, which RE2 does not know")


def _sequence(items: Any) -> str:
    return "".join(_whole(*item) for item in items)


def _class(members: Items) -> str:
    made = ""
    for operation, argument in members:
        if operation is codes.NEGATE:
            made += "^"
        elif operation is codes.LITERAL:
            made += _character(argument)
        elif operation is codes.RANGE:
            made += f"{_character(argument[0])}-{_character(argument[1])}"
        else:
            made += _CATEGORIES[argument]
    return f"[{made}]"


def _character(code: int) -> str:
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"


def _flagged(added: int, removed: int, inner: str) -> str:
    on = "".join(letter for flag, letter in _FLAGS.items() if added & flag)
    off = "".join(letter for flag, letter in _FLAGS.items() if removed & flag)
    return f"(?{on}{'-' + off if off else ''}:{inner})"
