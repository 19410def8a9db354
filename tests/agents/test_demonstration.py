"""The agents that a server has by itself: what their tools give, and what they refuse."""

from __future__ import annotations

import pytest

from agent_server.agents import ToolFault, demonstration


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12*7", "84"),
        ("12 × 7", "84"),
        ("2^10", "1024"),
        ("-(3+4)*2.5", "-17.5"),
        ("1/3", "0.3333333333"),
        ("7//2 % 2", "1"),
    ],
)
def test_arithmetic(expression: str, result: str):
    assert demonstration.calculate.call(expression) == {"result": result}


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1+",
        "__import__('os').getcwd()",
        "9**9**9",
        "2**1e9",
        "1/0",
        "'a'*9",
        "True+1",
        "x",
        "[1]",
        "(-8)**0.5",
        "(" * 5000,
    ],
)
def test_what_is_no_arithmetic_is_refused(expression: str):
    with pytest.raises(ToolFault):
        demonstration.calculate.call(expression)


def test_the_weather_of_a_place_is_the_same_all_day_whatever_its_spelling():
    first, second = demonstration.get_weather.call("Oslo"), demonstration.get_weather.call(" oslo")
    assert {**first, "city": ""} == {**second, "city": ""}
    assert -10 <= first["temperature"] <= 40


def test_times_are_found_by_city_and_by_zone():
    assert demonstration.get_time.call("Oslo")["time"] == demonstration.get_time.call("europe/oslo")["time"]
    with pytest.raises(ToolFault):
        demonstration.get_time.call("Atlantis")


def test_searching_finds_notes_or_says_that_there_are_none():
    assert demonstration.search.call("threads")["results"][0].startswith("Threads")
    with pytest.raises(ToolFault):
        demonstration.search.call("owls")


def test_the_default_agent_brings_no_tools():
    agents = {agent.name: agent for agent in demonstration.demonstration_agents()}
    assert agents["default"].server_tools == ()
    assert [tool.name for tool in agents["demo"].server_tools if tool.requires_approval] == ["send_email"]
