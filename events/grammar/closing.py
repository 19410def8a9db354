"""Objects without undeclared properties.

JSON Schema allows properties that a schema does not name, and small models make use of it: they invent some, instead of
or beside the declared ones, which frameworks then refuse or drop. llama.cpp and XGrammar do not let a model write them
either.
"""

from __future__ import annotations

from events.grammar.lint import ANNOTATIONS, PreparedSchema, subschemas

_OPEN = frozenset(
    {"additionalProperties", "patternProperties", "minProperties", "anyOf", "oneOf", "allOf", "$ref", "enum", "const"}
)
"""Keywords beside `properties` that allow other names, or may require them."""


def close_objects(ready: PreparedSchema, *, is_arguments: bool) -> None:
    """Forbid undeclared properties in a prepared schema, in place, where the schema says nothing about them.

    A value of the closed schema is also one of the schema. Objects stay open that declare no properties, or that other
    parts of the schema apply to as well: those of an `allOf`, for example, or beside a keyword that is not enforced.

    Args:
        is_arguments: Whether the schema is that of a tool's arguments, of which empty `properties` mean that there are
            none.
    """
    definitions = ready.schema.get("$defs", {})
    incomplete = {finding.path for finding in ready.findings}
    combined: set[int] = set()
    visited: dict[tuple[int, bool], dict[str, object]] = {}
    waiting: list[tuple[object, bool]] = [(ready.schema, True)]
    while waiting:
        node, alone = waiting.pop()
        if not isinstance(node, dict) or (id(node), alone) in visited:
            continue
        visited[id(node), alone] = node
        if not alone:
            combined.add(id(node))
        keywords = node.keys() - ANNOTATIONS - {"$defs", "type"}
        passed_on = alone and len(keywords) == 1
        if isinstance(reference := node.get("$ref"), str):
            waiting.append((definitions.get(reference.removeprefix("#/$defs/")), passed_on))
        for place, inner in subschemas(node):
            keyword = place.split("/")[1]
            if keyword in ("anyOf", "oneOf"):
                waiting.append((inner, passed_on))
            elif keyword == "allOf":
                waiting.append((inner, passed_on and place == "/allOf/0" and len(node["allOf"]) == 1))
            elif keyword != "$defs":
                waiting.append((inner, alone and "patternProperties" not in keywords))
    for node in visited.values():
        properties, required = node.get("properties"), node.get("required", ())
        if (
            isinstance(properties, dict)
            and isinstance(required, list | tuple)
            and (properties or (is_arguments and node is ready.schema))
            and properties.keys() >= set(required)
            and not _OPEN & node.keys()
            and id(node) not in combined
            and ready.paths.get(id(node)) not in incomplete
        ):
            node["additionalProperties"] = False
