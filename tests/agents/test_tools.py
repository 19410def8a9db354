"""Tools from functions: schemas, docstrings, validation, results."""

from __future__ import annotations

import datetime
import enum
from typing import Annotated, Any

import pytest
from ag_ui.core import ImagePart, TextPart
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agent_server.agents import Agent, LoadError, ToolContext, ToolFault, load_agents, tool
from agent_server.agents.server_tools import capped, read_arguments, read_docstring, result_content


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


def test_the_schema_comes_from_the_signature_and_the_docstring():
    @tool
    def paint(
        colour: Colour,
        at: Point,
        context: ToolContext,
        when: datetime.date | None = None,
        coats: Annotated[int, Field(ge=1, le=3)] = 1,
    ) -> str:
        """Paint a dot.

        More about it.

        Args:
            colour: which colour
                to take
            at (Point): where
            coats: how often
        Returns:
            nothing: at all
        """
        return f"{colour.value} {at.x} {when and when.year} {coats}"

    assert (paint.name, paint.description) == ("paint", "Paint a dot.\n\nMore about it.")
    properties = paint.parameters["properties"]
    assert list(properties) == ["colour", "at", "when", "coats"]
    assert paint.parameters["required"] == ["colour", "at"] and paint.parameters["additionalProperties"] is False
    assert properties["colour"]["description"] == "which colour to take" and properties["at"]["description"] == "where"
    assert (properties["coats"]["minimum"], properties["coats"]["maximum"], properties["coats"]["default"]) == (1, 3, 1)
    given = paint.check({"colour": "red", "at": {"x": 3}, "when": "2026-01-02"})
    assert paint.call(**given, context=None) == "red 3 2026 1"
    for wrong, part in (
        ({"colour": "green", "at": {"x": 1}}, "colour"),
        ({"colour": "red", "at": {}}, "at.x"),
        ({"colour": "red", "at": {"x": 1}, "coats": 9}, "coats"),
        ({"colour": "red", "at": {"x": 1}, "more": 1}, "more"),
    ):
        with pytest.raises(ToolFault, match=part):
            paint.check(wrong)


def test_sphinx_docstrings_are_read_too():
    summary, found = read_docstring("Do it.\n\n:param int a: the first\n:param b: the second\n  and more\n:returns: x")
    assert summary == "Do it." and found["a"] == "the first" and found["b"] == "the second and more"


def test_a_tool_may_be_named_and_described_otherwise():
    made = tool(name="other", description="Other.", time_limit=3, result_limit=10)(lambda a: a)
    assert (made.name, made.description, made.time_limit, made.result_limit) == ("other", "Other.", 3, 10)
    assert made.parameters["required"] == ["a"]


@pytest.mark.parametrize("function", [lambda *a: 0, lambda **a: 0, lambda a, /: 0])
def test_what_a_model_cannot_name_is_no_parameter(function):
    with pytest.raises(TypeError, match="named parameter"):
        tool(function)


@pytest.mark.parametrize("text", ["[1]", "nonsense", '{"a":', "1", "[" * 5_000, '"x"'])
def test_arguments_that_are_no_object_are_the_model_s_mistake(text):
    with pytest.raises(ToolFault):
        read_arguments(text)


def test_no_arguments_are_an_empty_object():
    assert read_arguments("") == {} == read_arguments("{}")


def test_results_are_text_json_or_parts():
    assert result_content("plain") == "plain"
    assert result_content({"a": Point(x=1)}) == '{"a":{"x":1,"y":0}}'
    assert result_content(None) == "null" and result_content([1, "b"]) == '[1,"b"]'
    assert result_content(datetime.date(2026, 1, 2)) == '"2026-01-02"'
    image = ImagePart.model_validate(
        {"type": "image", "source": {"type": "data", "value": "AA", "mimeType": "image/png"}}
    )
    parts = result_content([TextPart(text="a"), image])
    assert parts[0] == {"type": "text", "text": "a"} and parts[1]["source"]["mimeType"] == "image/png"
    assert result_content([{"type": "text", "text": "a", "other": 1}]) == '[{"type":"text","text":"a","other":1}]'


@given(st.text(), st.integers(0, 50))
def test_a_capped_text_begins_with_the_text(text, limit):
    cut = capped(text, limit)
    assert cut == text if len(text) <= limit else cut.startswith(text[:limit])


def test_parts_that_are_too_large_become_a_sentence():
    assert "too large" in capped([{"type": "text", "text": "x" * 100}], 50)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "ä", "x" * 129])
def test_an_agent_s_name_fits_into_a_path(name: str):
    with pytest.raises(ValueError, match="becomes part of a URL path"):
        Agent(name=name)


def test_a_parameter_that_json_cannot_say_is_named_at_once():
    class Opaque:
        pass

    def look(at: Opaque) -> None:
        """Look."""

    look.__annotations__["at"] = Opaque
    with pytest.raises(TypeError, match="tool look: Unable to generate pydantic-core schema for"):
        tool(look)


def test_an_agent_s_tools_have_different_names():
    def twin() -> None:
        """Twin."""

    with pytest.raises(ValueError, match="more than one tool is called twin"):
        Agent(name="a", tools=[twin, tool(name="twin")(lambda: 0)])
    with pytest.raises(ValueError, match="max_steps"):
        Agent(name="a", max_steps=0)


def write(folder: Any, name: str, text: str) -> str:
    path = folder / f"{name}.py"
    path.write_text("from agent_server.agents import Agent\n" + text)
    return str(path)


def test_agents_are_loaded_from_files(tmp_path):
    one = write(tmp_path, "one", "agent = Agent(name='a')\nmore = [Agent(name='b'), Agent(name='c')]\nx = 1\n")
    assert [agent.name for agent in load_agents([f"{one}:agent", f"{one}:more"])] == ["a", "b", "c"]
    assert [agent.name for agent in load_agents([one])] == ["a"]
    broken = write(tmp_path, "broken", "1 / 0\n")
    for reference, part in (
        (f"{one}:nothing", "has no attribute 'nothing'"),
        (f"{one}:x", "not an Agent"),
        (f"{tmp_path}/missing.py:agent", "no file"),
        (broken, "ZeroDivisionError"),
        ("no_such_module_at_all:agent", "no_such_module_at_all"),
    ):
        with pytest.raises(LoadError, match=part):
            load_agents([reference])
    with pytest.raises(LoadError, match="Two agents are called a"):
        load_agents([f"{one}:agent", one])
