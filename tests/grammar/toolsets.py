"""Random tools, as clients declare them: names that are each other's beginnings, every common kind of argument."""

from __future__ import annotations

from random import Random
from typing import Any

from events.grammar import Function
from events.grammar.lint import prepare

NAMES = ("get", "get_weather", "search", "search_files", "send_email", "plot", "move", "set_color", "book", "book_room")
KEYS = ("city", "days", "query", "limit", "unit", "exact", "tags", "options", "when", "note", "path", "ratio")


def tool_set(random: Random, count: int | None = None) -> list[Function]:
    """Tools with their schemas as they come out of the lint, which changes nothing of what they mean."""
    names = random.sample(NAMES, count or random.randint(1, 5))
    return [Function(name, prepare(parameters(random)).schema) for name in names]


def parameters(random: Random) -> dict[str, Any]:
    """An object's schema; now and then one of nothing, or with a definition."""
    schema = _object(random, random.randint(0, 5), depth=0)
    if random.random() < 0.2:
        schema["properties"]["place"] = {"$ref": "#/$defs/Place"}
        place = {"lat": {"type": "number", "minimum": -90, "maximum": 90}, "name": {"type": "string", "maxLength": 6}}
        schema["$defs"] = {"Place": {"type": "object", "properties": place, "required": ["lat"]}}
        schema["$defs"]["Place"]["additionalProperties"] = False
    return schema


def _object(random: Random, count: int, depth: int) -> dict[str, Any]:
    keys = random.sample(KEYS, count)
    schema: dict[str, Any] = {"type": "object", "properties": {key: _value(random, depth) for key in keys}}
    if required := [key for key in keys if random.random() < 0.5]:
        schema["required"] = required
    schema["additionalProperties"] = False
    return schema


def _value(random: Random, depth: int) -> dict[str, Any]:
    simple = (_text, _choice, _pattern, _format, _integer, _number, _flag, _maybe, _mixed, _constant)
    nested = (_list, _inner, _union)
    make = random.choice(simple if depth >= 2 or random.random() < 0.7 else nested)
    return make(random, depth)


def _text(random: Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "minLength": random.randint(0, 2), "maxLength": random.randint(3, 12)}


def _choice(random: Random, depth: int) -> dict[str, Any]:
    return {"enum": random.choice((["c", "f"], ["low", "lower", "lowest"], [1, 2, 10], ["a b", 'say "x"', "<b>", "é"]))}


def _constant(random: Random, depth: int) -> dict[str, Any]:
    return {"const": random.choice(("fixed", 7, True, None))}


def _pattern(random: Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "pattern": random.choice((r"^[A-Z]{2}\d{2}$", r"^v\d(\.\d){0,2}$", r"^(on|off)/[a-c]$"))}


def _format(random: Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "format": random.choice(("date", "time", "date-time", "uuid", "email", "ipv4"))}


def _integer(random: Random, depth: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": random.randint(-20, 0), "maximum": random.randint(1, 1000)}


def _number(random: Random, depth: int) -> dict[str, Any]:
    return random.choice(({"type": "number", "minimum": 0, "maximum": 1}, {"type": "integer", "multipleOf": 5}))


def _flag(random: Random, depth: int) -> dict[str, Any]:
    return {"type": "boolean"}


def _maybe(random: Random, depth: int) -> dict[str, Any]:
    return {"type": ["string", "null"], "maxLength": 6}


def _mixed(random: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": 5, "maximum": 99}, {"type": "string", "maxLength": 5}]}


def _list(random: Random, depth: int) -> dict[str, Any]:
    items = _value(random, depth + 1)
    return {"type": "array", "items": items, "minItems": random.randint(0, 1), "maxItems": random.randint(1, 3)}


def _inner(random: Random, depth: int) -> dict[str, Any]:
    return _object(random, random.randint(1, 3), depth + 1)


def _union(random: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_object(random, 1, depth + 1), {"type": "null"}]}
