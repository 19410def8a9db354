"""What a grammar accepts is what is valid under the keywords that it keeps, for random schemas and random values."""

import jsonschema
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from agent_server.models.prompting.schemas import prepared
from agent_server.models.prompting.validation import FORMATS, _Validator
from tests.grammar.keywords import fits

TEXTS = st.text("ab1é \n", max_size=4)
NUMBERS = st.one_of(
    st.integers(-12, 12), st.integers(-(2**60), 2**60), st.integers(-40, 40).map(lambda n: n / 4 + 0.125)
)
PLAIN = st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS)
NAMES = ("a", "b", "c~/%", "é")
COUNTS = st.one_of(st.integers(0, 4), st.sampled_from([-1, 2.0, None, "3", 10**6, 10**30]))
LIMITS = st.one_of(
    st.integers(-9, 9), st.sampled_from([10**30, -(10**30), 2**63, -(2**63), 2**53 + 1, None, "1", True])
)
PATTERNS = st.sampled_from(["^a", "b$", "^[ab]+$", "a.b", "^(?=a)a", r"\bab", "(a+)+", "([a", "é", r"^\d*$"])
ODD = st.sampled_from([{"uniqueItems": True}, {"not": {"type": "null"}}, {"minimum": "3"}, {"$ref": "http://x.org/y"},
                       {"type": "any"}, {"pattern": None}, {"required": True}, {"contains": {}}])  # fmt: skip


def some(**parts):
    return st.fixed_dictionaries({}, optional=parts)


def scalars():
    integer = some(minimum=LIMITS, maximum=LIMITS, multipleOf=st.sampled_from([1, 2, 3, 0, 10**25]))
    number = some(minimum=LIMITS, exclusiveMaximum=LIMITS)
    text = some(minLength=COUNTS, maxLength=COUNTS, pattern=PATTERNS)
    return st.one_of(
        integer.map(lambda rest: {"type": "integer", **rest}),
        number.map(lambda rest: {"type": "number", **rest}),
        text.map(lambda rest: {"type": "string", **rest}),
        st.lists(PLAIN, min_size=1, max_size=4).map(lambda values: {"enum": values}),
        PLAIN.map(lambda value: {"const": value}),
        st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": ["integer", "null"]}, {}, True]),
    )


def larger(inner):
    names = st.lists(st.sampled_from(NAMES), unique=True, max_size=3)
    objects = some(
        properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
        required=names,
        additionalProperties=st.one_of(st.booleans(), inner),
    )
    lists = some(items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=COUNTS, maxItems=COUNTS)
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        objects.map(lambda rest: {"type": "object", **rest}),
        lists.map(lambda rest: {"type": "array", **rest}),
        st.tuples(st.sampled_from(["anyOf", "oneOf"]), several).map(lambda pair: {pair[0]: pair[1]}),
        st.just({"$ref": "#/$defs/c~0~1%25"}),
        st.just({"$ref": "#here"}),
        st.tuples(inner, ODD).map(lambda pair: {**pair[0], **pair[1]} if isinstance(pair[0], dict) else pair[0]),
    )


SCHEMAS = st.recursive(scalars(), larger, max_leaves=6)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "z"]), inner, max_size=3),
    max_leaves=5,
)


def close(schema, definitions, data, depth=0):
    """A value that has a good chance to fit a prepared schema, its properties in the grammar's order."""
    if not isinstance(schema, dict) or depth > 4 or data.draw(st.integers(0, 9)) == 0:
        return data.draw(VALUES)
    if "$ref" in schema:
        return close(definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, data, depth + 1)
    if options := schema.get("anyOf"):
        return close(data.draw(st.sampled_from(options)), definitions, data, depth + 1)
    if "const" in schema or schema.get("enum"):
        return schema["const"] if "const" in schema else data.draw(st.sampled_from(schema["enum"]))
    kind = schema.get("type")
    match data.draw(st.sampled_from(kind)) if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties", {})
            named = [*properties, *(name for name in schema.get("required", ()) if name not in properties)]
            rest = schema.get("additionalProperties", True)
            taken = {n: close(properties.get(n, rest), definitions, data, depth + 1) for n in named if
                     n in schema.get("required", ()) or data.draw(st.booleans())}  # fmt: skip
            extra = data.draw(st.sampled_from([None, None, "z"]))
            return taken if extra is None else {**taken, extra: close(rest, definitions, data, depth + 1)}
        case "array":
            first = schema.get("prefixItems", [])
            count = data.draw(st.integers(0, 4))
            return [close(first[i] if i < len(first) else schema.get("items"), definitions, data, depth + 1)
                    for i in range(count)]  # fmt: skip
        case "integer":
            edges = [round(schema[each]) for each in ("minimum", "maximum") if each in schema]
            return data.draw(st.integers(-30, 30) | st.sampled_from([0, *edges, *(edge + 1 for edge in edges)]))
        case "number":
            return data.draw(NUMBERS)
        case "string":
            return data.draw(TEXTS | st.sampled_from(["a", "ab", "aab", "1"]))
        case "boolean":
            return data.draw(st.booleans())
    return data.draw(VALUES)


def in_order(value):
    """Whether a value is written as the grammar writes it: no whole number as a fraction."""
    if isinstance(value, dict):
        return all(map(in_order, value.values()))
    if isinstance(value, list):
        return all(map(in_order, value))
    return not (isinstance(value, float) and value.is_integer())


@settings(max_examples=400, deadline=None)
@given(SCHEMAS, SCHEMAS, st.data())
def test_a_grammar_accepts_what_is_valid_under_the_keywords_it_keeps(schema, definition, data):
    defined = {**definition, "$anchor": "here"} if isinstance(definition, dict) else {"$anchor": "here"}
    top = {"type": "object", "properties": {"x": schema}, "required": ["x"], "$defs": {"c~/%": defined}}
    ready = prepared(top)
    kept = ready.schema
    assert kept["properties"].keys() == {"x"} and kept["required"] == ["x"], "what is around a keyword stays"
    value = {"x": close(kept["properties"]["x"], kept.get("$defs", {}), data)}
    assume(in_order(value))
    valid = _Validator(kept, format_checker=FORMATS).is_valid(value)
    event(f"valid: {valid}, findings: {min(len(ready.findings), 2)}")
    assert fits(kept, value) == valid, (kept, value)
    if valid and not ready.findings:
        validator = jsonschema.Draft202012Validator(top)
        assert validator.is_valid(value), "without a finding, the grammar allows nothing that the schema does not"
