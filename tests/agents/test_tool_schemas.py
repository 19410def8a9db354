"""What the schema of a tool allows and what the tool takes are one thing: a model that is held to the schema makes no
call that the tool refuses, and arguments that are no part of the schema are refused by both."""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from agent_server.agents import ToolFault, tool
from agent_server.agents.server_tools import Tool
from agent_server.models.prompting.schemas import prepared
from agent_server.models.prompting.validation import problems_of
from tests.grammar.keywords import fits
from tests.grammar.test_kept_keywords import close


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Key(enum.StrEnum):
    A = "a"
    B = "b"


class Open(BaseModel):
    k: int
    n: str | None = None


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    k: Annotated[int, Field(alias="kk", ge=-3)]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    day: datetime.date | None = None
    pair: tuple[int, str] = (1, "a")
    colour: Colour = Colour.RED


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str = ""


class Tree(BaseModel):
    value: int
    inner: list[Tree] = []


@dataclass
class Data:
    a: int
    b: str = "q"


class Typed(TypedDict):
    a: int
    b: NotRequired[str]


class Named(NamedTuple):
    a: int
    b: str = "z"


SCALARS: list[Any] = [
    int, float, str, bool, None, Colour, Open, Closed, Strict, Data, Typed, Named, Tree, decimal.Decimal,
    Literal["a", 1, True, None],
    Annotated[int, Field(gt=3, multiple_of=2)],
    Annotated[str, Field(pattern=r"^a+$", max_length=3)],
    Annotated[float, Field(ge=-1, lt=9)],
    Annotated[decimal.Decimal, Field(ge=0, le=9)],
    Annotated[Cat | Dog, Field(discriminator="kind")],
]  # fmt: skip
KEYS: list[Any] = [str, int, bool, float, Key, Literal["a", "b"], Annotated[str, Field(pattern="^a")],
                   Annotated[str, Field(min_length=2)]]  # fmt: skip
ANNOTATIONS = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        inner.map(lambda t: list[t]),
        inner.map(lambda t: t | None if t is not None else None),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        inner.map(lambda t: tuple[t, ...]),
        st.tuples(st.sampled_from(KEYS), inner).map(lambda pair: dict[pair]),
        inner.map(lambda t: Annotated[list[t], Field(min_length=1, max_length=2)]),
    ),
    max_leaves=3,
)


def made(**annotations: Any) -> Tool:
    names: dict[str, Any] = {}
    exec(f"def f({', '.join(annotations)}): ...", names)
    names["f"].__annotations__ = annotations
    made: Tool = tool(names["f"])
    return made


def takes(made: Tool, arguments: dict[str, object]) -> bool:
    try:
        made.check(arguments)
    except ToolFault:
        return False
    return True


@settings(max_examples=400, deadline=None)
@given(ANNOTATIONS, st.data())
def test_what_the_grammar_of_a_tool_allows_is_taken(annotation, data):
    made_tool = made(x=annotation)
    ready = prepared(made_tool.parameters)
    arguments = close(ready.schema, ready.schema.get("$defs", {}), data)
    allowed = fits(ready.schema, arguments)
    if ready.findings:  # what the grammar leaves is validated before the call
        allowed = allowed and problems_of(json.dumps(arguments), json.dumps(made_tool.parameters)) is None
    event(f"allowed: {allowed}")
    assert not allowed or takes(made_tool, arguments), (made_tool.parameters, arguments)


@pytest.mark.parametrize("annotation", [*SCALARS, *(dict[key, int] for key in KEYS)], ids=str)
def test_an_argument_that_is_not_declared_is_refused_by_the_grammar_the_validation_and_the_tool(annotation):
    made_tool = made(x=annotation, y=int)
    ready = prepared(made_tool.parameters)
    value = {"y": 1}
    assert made_tool.parameters["additionalProperties"] is False
    for more in ({"x": 1, "z": 1}, {"z": 1}):
        assert not fits(ready.schema, {**more, **value}) and not takes(made_tool, {**more, **value})
        assert problems_of(json.dumps({**more, **value}), json.dumps(made_tool.parameters)) is not None


WRITTEN = [
    (datetime.date, ["2026-02-28"], ["2026-02-30", "x"]),
    (datetime.datetime, ["2026-02-28T12:30:00Z", "2026-02-28T12:30:00.5+01:00"], ["2026-02-30T12:30:00Z", ""]),
    (datetime.time, ["12:30:00Z"], ["25:00:00Z"]),
    (datetime.timedelta, ["P1D", "P1Y2M", "P1W", "PT1S"], ["", "x"]),
    (uuid.UUID, ["123e4567-e89b-42d3-a456-426614174000"], ["123"]),
    (ipaddress.IPv4Address, ["10.0.0.1"], ["10.0.0.256"]),
    (decimal.Decimal, ["1.50", "-3", 2, 0.5], ["", "x", "NaN"]),
    (dict[int, str], [{}, {"1": "a", "-20": ""}], [{"a": "x"}, {"1.5": "x"}, {"1": 1}]),
    (dict[bool, int], [{"true": 1}], [{"maybe": 1}]),
    (dict[float, int], [{"1.5": 1, "2": 3}], [{"a": 1}]),
    (dict[Annotated[str, Field(pattern="^[a-z]+$")], int], [{"ab": 1}], [{"A": 1}]),
    (dict[Key, int], [{"a": 1}], [{"c": 1}]),
    (dict[Annotated[str, Field(min_length=2)], int], [{"ab": 1}], [{"a": 1}]),
    (Strict, [{"day": "2026-02-28", "pair": [1, "b"], "colour": 2}], [{"day": 3}, {"pair": [1]}]),
]


@pytest.mark.parametrize(("annotation", "good", "bad"), WRITTEN, ids=lambda value: str(value)[:40])
def test_values_are_taken_and_refused_by_both(annotation, good, bad):
    made_tool = made(x=annotation)
    ready = prepared(made_tool.parameters)
    assert ready.findings == ()
    for value in good:
        assert fits(ready.schema, {"x": value}) and takes(made_tool, {"x": value}), value
    for value in bad:
        assert not fits(ready.schema, {"x": value}) and not takes(made_tool, {"x": value}), value


@pytest.mark.parametrize(
    "name", ["schema", "json", "copy", "dict", "validate", "model_config", "model_validate", "model_id", "_x", "self"]
)
def test_a_parameter_may_have_any_name(name):
    made_tool = made(**{name: int, "other": str})
    assert list(made_tool.parameters["properties"]) == [name, "other"]
    assert made_tool.check({name: 3, "other": "a"}) == {name: 3, "other": "a"}
    with pytest.raises(ToolFault, match=f"{name}: "):
        made_tool.check({name: "no", "other": "a"})
