"""Decide whether two JSON Schemas have no value in common, without a search.

If all schemas of a `oneOf` are disjoint, it is equivalent to `anyOf`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]
ALL_TYPES = frozenset({"null", "boolean", "object", "array", "number", "integer", "string"})
MAX_DEPTH = 6
"""The most references and nested properties that are followed."""
MAX_VISITS = 200_000
"""A second or two. A union of 100 objects that a property tells apart takes 30,000."""
_RANGES = {
    "string": (("minLength",), ("maxLength",)),
    "array": (("minItems",), ("maxItems",)),
    "object": (("minProperties",), ("maxProperties",)),
    "number": (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
}


class SchemaComparison:
    """Comparisons of a prepared schema's parts.

    definitions: the targets of references, which are `#/$defs/NAME`. most: parts that all comparisons together may
    visit. Small schemas can have astronomically many pairs of parts; beyond this number nothing is certain.
    """

    def __init__(self, definitions: Mapping[str, Any], most: int = MAX_VISITS) -> None:
        self._definitions = definitions
        self._left = most

    def disjoint(self, first: Any, second: Any, depth: int = 0) -> bool:
        """Return whether it is certain that no value is valid for both."""
        if first is False or second is False:
            return True
        if not isinstance(first, Mapping) or not isinstance(second, Mapping) or depth > MAX_DEPTH or self._left <= 0:
            return False
        a, b = self._conjuncts(first, 0), self._conjuncts(second, 0)
        for own, other in ((a, second), (b, first)):
            for part in own:
                for keyword in ("anyOf", "oneOf"):
                    options = part.get(keyword)
                    if isinstance(options, list) and all(self.disjoint(each, other, depth + 1) for each in options):
                        return True
        kinds = _types(a) & _types(b)
        values = [_values(each) for each in (a, b)]
        if all(each is not None for each in values):
            return not (values[0] or set()) & (values[1] or set())
        if kinds == {"object"}:
            # A required property has disjoint schemas or must be absent in one of the two.
            for name in _required(a) | _required(b):
                in_first, in_second = _property(a, name), _property(b, name)
                if self.disjoint({"allOf": in_first}, {"allOf": in_second}, depth + 1):
                    return True
                if False in in_first or False in in_second:
                    return True
        has_first = kinds == {"array"} and any(part.get("minItems", 0) > 0 for part in (*a, *b))
        if has_first and any(self.disjoint(x, y, depth + 1) for x in _firsts(a) for y in _firsts(b)):
            return True
        return all(_ranges_disjoint(kind, [*a, *b]) for kind in kinds)

    def _conjuncts(self, schema: Any, depth: int) -> list[Schema]:
        """Return the schema, the target of its reference and its `allOf`: values must be valid for all of them."""
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH or self._left <= 0:
            return []
        self._left -= 1
        reference = schema.get("$ref")
        target = self._definitions.get(reference.removeprefix("#/$defs/")) if isinstance(reference, str) else None
        parts = [target, *(schema["allOf"] if isinstance(schema.get("allOf"), list) else ())]
        return [schema, *(each for part in parts for each in self._conjuncts(part, depth + 1))]


def _types(parts: Iterable[Schema]) -> frozenset[str]:
    """Return the types that all parts allow. A whole number is both an integer and a number."""
    kinds = ALL_TYPES
    for part in parts:
        declared = part.get("type")
        if declared is not None:
            names = {declared} if isinstance(declared, str) else set(declared)
            kinds &= names | ({"integer"} if "number" in names else set())
        if (values := _values([part])) is not None:
            kinds &= {kind for value in values for kind in _types_of(json.loads(value))}
    return kinds


def _types_of(value: object) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int | float):
        return ("integer", "number") if isinstance(value, int) or value.is_integer() else ("number",)
    for kind, name in ((str, "string"), (list, "array"), (dict, "object")):
        if isinstance(value, kind):
            return (name,)
    return ("null",)


def _values(parts: Iterable[Schema]) -> set[str] | None:
    """Return the only possible values, as JSON, or None if there are others."""
    common: set[str] | None = None
    for part in parts:
        values = [part["const"]] if "const" in part else part.get("enum")
        if isinstance(values, list):
            texts = set(map(value_key, values))
            common = texts if common is None else common & texts
    return common


def value_key(value: Any) -> str:
    """Return a JSON text that equal values share, and no others. 1.0 equals 1 (JSON Schema Core, 4.2.2)."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _required(parts: Iterable[Schema]) -> set[str]:
    lists = (part.get("required") for part in parts)
    return {name for names in lists if isinstance(names, list) for name in names}


def _property(parts: Iterable[Schema], name: str) -> list[Any]:
    """Return the schemas of a property; False for one that must be absent."""
    schemas: list[Any] = []
    for part in parts:
        properties = part.get("properties") or {}
        if name in properties:
            schemas.append(properties[name])
        elif not part.get("patternProperties") and "additionalProperties" in part:
            schemas.append(part["additionalProperties"])
    return schemas


def _firsts(parts: Iterable[Schema]) -> list[Any]:
    firsts = ((part.get("prefixItems") or [part.get("items", True)])[0] for part in parts)
    return [each for each in firsts if each is not True]


def _ranges_disjoint(kind: str, parts: Sequence[Schema]) -> bool:
    """Return whether the bounds of all parts exclude every value of a type."""
    if kind not in ("integer", *_RANGES):
        return False
    low, high = _RANGES["number" if kind == "integer" else kind]
    lows = [(part[each], each.startswith("ex")) for part in parts for each in low if each in part]
    highs = [(part[each], each.startswith("ex")) for part in parts for each in high if each in part]
    least, above = max(lows, default=(-math.inf, False))
    most, below = min(highs, key=lambda bound: (bound[0], not bound[1]), default=(math.inf, False))
    return bool(least > most or (least == most and (above or below)))
