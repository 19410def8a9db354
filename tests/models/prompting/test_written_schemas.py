"""Schemas as pydantic and zod write them: held to in full, by the grammar and by the validation.

`written_by_zod.json` is what zod 4.6 (`z.toJSONSchema`) and zod 3.25 (`zod-to-json-schema`) make of one object, for
several targets; its `source` is the program.
"""

import copy
import datetime
import enum
import json
import uuid
from pathlib import Path
from typing import Annotated, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_server.models.prompting.schemas import prepared
from agent_server.models.prompting.validation import problems_of
from events.parsing.schema import property_schema, types
from tests.grammar.keywords import fits

T = TypeVar("T")


class Color(enum.StrEnum):
    black = "black"
    white = "white"


class Cat(BaseModel):
    kind: Literal["cat"]
    meow: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    bark: float


class Lizard(BaseModel):
    kind: Literal["lizard", "gecko"]
    parent: "Animal | None" = None


Animal = Annotated[Cat | Dog | Lizard, Field(discriminator="kind")]


class Number(BaseModel):
    op: Literal["number"]
    value: int


class Add(BaseModel):
    op: Literal["add"]
    left: "Expression"
    right: "Expression"


Expression = Annotated[Number | Add, Field(discriminator="op")]


class Black(BaseModel):
    pet: Literal["cat"]
    color: Literal[Color.black]


class White(BaseModel):
    pet: Literal["cat"]
    color: Literal[Color.white]


class Fish(BaseModel):
    pet: Literal["fish"]


class Page(BaseModel, Generic[T]):
    items: list[T]
    next: "Page[T] | None" = None


class Zoo(BaseModel):
    model_config = ConfigDict(extra="forbid")
    animals: list[Animal]
    sum: Expression
    pet: Annotated[Annotated[Black | White, Field(discriminator="color")] | Fish, Field(discriminator="pet")]
    page: Page[Cat]
    when: datetime.datetime
    id: uuid.UUID
    count: int = Field(ge=0, le=2**63 - 1)
    colors: dict[Annotated[str, Field(pattern="^[a-z]+$")], Color] = {}


ZOO = {
    "animals": [{"kind": "cat", "meow": 1}, {"kind": "gecko", "parent": {"kind": "dog", "bark": 1.5}}],
    "sum": {"op": "add", "left": {"op": "number", "value": 1},
            "right": {"op": "add", "left": {"op": "number", "value": 1}, "right": {"op": "number", "value": 1}}},
    "pet": {"pet": "cat", "color": "white"},
    "page": {"items": [{"kind": "cat", "meow": 1}], "next": {"items": []}},
    "when": "2026-01-01T00:00:00Z", "id": "123e4567-e89b-12d3-a456-426614174000", "count": 2**62,
    "colors": {"a": "black"},
}  # fmt: skip
NOT_ZOOS = {
    "no discriminator": lambda zoo: zoo["animals"].append({"bark": 1.5}),
    "an unknown kind": lambda zoo: zoo["animals"].append({"kind": "cow", "meow": 1}),
    "another kind's fields": lambda zoo: zoo["animals"].append({"kind": "cat", "bark": 1}),
    "deep in the recursion": lambda zoo: zoo["sum"]["right"]["left"].update(value="x"),
    "the wrong kind of expression": lambda zoo: zoo["sum"].update(op="number"),
    "an inner discriminator": lambda zoo: zoo["pet"].update(color="red"),
    "below zero": lambda zoo: zoo.update(count=-1),
    "another property": lambda zoo: zoo.update(x=1),
    "a generic's item": lambda zoo: zoo["page"]["items"].append({"kind": "dog", "bark": 1}),
    "a value": lambda zoo: zoo["colors"].update(a="red"),
}


def test_what_pydantic_writes_is_enforced_in_full():
    ready = prepared(Zoo.model_json_schema())
    assert ready.findings == ()
    assert fits(ready.schema, ZOO) and Zoo.model_validate(ZOO)


@pytest.mark.parametrize("wrong", NOT_ZOOS)
def test_what_pydantic_refuses_the_grammar_does_not_write(wrong):
    zoo = copy.deepcopy(ZOO)
    NOT_ZOOS[wrong](zoo)
    with pytest.raises(ValidationError):
        Zoo.model_validate(zoo)
    assert not fits(prepared(Zoo.model_json_schema()).schema, zoo)


ZOD = json.loads((Path(__file__).parent / "written_by_zod.json").read_text("utf-8"))
GOOD = {
    "pet": {"kind": "cat", "meow": 1}, "again": {"kind": "dog", "bark": 1.5}, "pair": [1, "x"],
    "tree": {"value": "a", "kids": [{"value": "b", "kids": []}]}, "e": "b", "nul": None, "rec": {"q": 1.5},
    "date": "2026-01-01T00:00:00Z", "email": "a@example.org", "u": 1.5,
    "id": "123e4567-e89b-42d3-a456-426614174000", "url": "https://example.org/a", "big": 3,
}  # fmt: skip
BAD = {
    "an unknown kind": lambda value: value["pet"].update(kind="cow"),
    "another kind's fields": lambda value: value["pet"].update(kind="dog"),
    "above a bound": lambda value: value["again"].update(bark=11),
    "deep in the recursion": lambda value: value["tree"]["kids"][0].update(value="abcd"),
    "a tuple's order": lambda value: value.update(pair=["x", 1]),
    "no value of the enum": lambda value: value.update(e="c"),
    "not positive": lambda value: value.update(big=-1),
    "a record's value": lambda value: value["rec"].update(q="x"),
    "too many kids": lambda value: value["tree"].update(kids=[{"value": "b", "kids": []}] * 3),
}


@pytest.mark.parametrize("target", ZOD["schemas"])
def test_what_zod_writes_is_enforced_in_full(target):
    schema = ZOD["schemas"][target]
    ready = prepared(schema)
    assert ready.findings == ()
    assert fits(ready.schema, GOOD) and problems_of(json.dumps(GOOD), json.dumps(schema)) is None
    for name, spoil in BAD.items():
        if target == "zod4_openapi" and name == "a tuple's order":  # OpenAPI 3.0 has no tuples
            continue
        wrong = copy.deepcopy(GOOD)
        spoil(wrong)
        assert not fits(ready.schema, wrong), name
        assert problems_of(json.dumps(wrong), json.dumps(schema)) is not None, name


def test_one_malformed_keyword_does_not_turn_off_validation():
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": "3"}, "b": {"type": "string", "required": True},
              "c": {"$ref": "#/$defs/missing"}, "d": {"patternProperties": {"^(a+)+$": {}}}}, "required": ["a"]}  # fmt: skip
    assert problems_of('{"a": 1, "b": "x", "c": [], "d": {}}', json.dumps(schema)) is None
    assert dict(problems_of('{"a": "1", "b": 2}', json.dumps(schema)).problems).keys() == {"/a", "/b"}


def test_the_parser_follows_the_same_references():
    schema = {
        "$id": "https://example.org/a.json",
        "properties": {"a": {"$ref": "#here"}, "b": {"$ref": "#/$defs/x~1y%25"}, "c": {"$ref": "b.json"}},
        "$defs": {"x/y%": {"type": "integer"}, "n": {"$anchor": "here", "type": "boolean"},
                  "o": {"$id": "b.json", "type": "array"}},
    }  # fmt: skip
    kinds = [set(types(property_schema(schema, name, schema), schema)) for name in "abc"]
    assert kinds == [{"boolean"}, {"integer"}, {"array"}]
