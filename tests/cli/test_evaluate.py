"""`agent-server evaluate`: what passes, what fails and why, and what input is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import agent_server.http.assemble
from agent_server.agents import Agent, ToolContext, tool
from agent_server.cli.evaluate import ExpectedCall, ExpectedOutcome, ObservedOutcome, contains, judge
from agent_server.cli.main import app
from agent_server.engine_protocol.protocol import GenerationRequest
from agent_server.engines.scripted import Script
from agent_server.http.server import BUNDLED
from agent_server.model_files import load_model_files
from tests.agents.models import call
from tests.server import scripted

TOKENIZER = load_model_files(BUNDLED).tokenizer


@tool
def get_weather(location: str, context: ToolContext) -> str:
    """The weather."""
    context.state["asked"] = location
    return f"cloudy in {location}"


@tool(requires_approval=True)
def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


def turn(request: GenerationRequest) -> Script:
    """Calls the tool that is asked for, then says what it answered."""
    prompt = TOKENIZER.decode(list(request.prompt_token_ids), skip_special_tokens=False)
    _, answered, result = prompt.rpartition("<tool_response>")
    if answered:
        return Script(text="It said: " + result.partition("</tool_response>")[0].strip())
    asked = prompt.rpartition("user")[2]
    if "weather" in asked:
        return Script(text=call("get_weather", location="Bergen"))
    return Script(text=call("send", to="a@b.no") if "send" in asked else "Hello.")


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """(cases, options) → the command's result, for an agent with the tools above over a scripted model."""
    agent = Agent(name="helper", tools=[get_weather, send], state={"asked": None})
    engine = partial(scripted, turn)
    built = agent_server.http.assemble.build_server
    module = tmp_path / "evaluated_agent.py"
    module.write_text("from agent_server import Agent\nagent = Agent(name='unused')\n", "utf-8")
    monkeypatch.setattr(
        agent_server.http.assemble,
        "build_server",
        lambda settings: built(
            settings.model_copy(update={"served": settings.served.model_copy(update={"agent": ()})}),
            agents=[agent],
            engine=engine(),
        ),
    )

    def run(cases: list[dict[str, Any] | str], *options: str) -> Any:
        file = tmp_path / "cases.jsonl"
        file.write_text("\n".join(each if isinstance(each, str) else json.dumps(each) for each in cases), "utf-8")
        return CliRunner().invoke(app, ["evaluate", f"{module}:agent", str(file), *options])

    return run


def test_cases_that_pass_and_one_that_fails(evaluated: Any):
    weather = {"name": "get_weather", "arguments": {"location": "Bergen"}}
    cases = [
        {"id": "greets", "input": "hi", "expect": {"calls": [], "contains": "hello", "matches": r"^Hel+o\.$"}},
        {"id": "looks", "input": "the weather?", "expect": {"calls": [weather], "state": {"asked": "Bergen"}}},
        {"id": "asks", "input": "send it", "expect": {"calls": [{"name": "send"}], "outcome": "interrupt"}},
        {"id": "sends", "input": "send it", "approve": True, "expect": {"contains": "sent to a@b.no"}},
        {"id": "denied", "input": "send it", "approve": False, "expect": {"lacks": "sent to", "contains": "approve"}},
        {"input": "the weather?", "expect": {"calls": [], "lacks": "Bergen"}},
    ]
    result = evaluated(cases)
    assert result.exit_code == 1, result.output
    assert result.stdout == (
        "greets  passed\nlooks   passed\nasks    passed\nsends   passed\ndenied  passed\nline 6  FAILED\n"
        '          an unexpected call get_weather({"location":"Bergen"})\n          the answer has \'Bergen\'\n'
        "5 of 6 passed\n"
    )


def test_json_and_the_exit_status_of_success(evaluated: Any):
    result = evaluated([{"id": "a", "input": "the weather?", "expect": {"contains": "cloudy"}}], "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["passed"], told["cases"]) == (1, 1)
    assert told["results"] == [
        {
            "id": "a", "passed": True, "faults": [], "text": "It said: cloudy in Bergen",
            "calls": [["get_weather", {"location": "Bergen"}]], "state": {"asked": "Bergen"}, "outcome": "success",
            "error": "",
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    "line, said",
    [
        ("{", "line 1:"),
        ('{"input": "a"}', "`expect`"),
        ('{"input": "a", "expect": {"contain": "x"}}', "unknown field `contain`"),
        ('{"expect": {}}', "either input or messages"),
        ('{"input": "a", "expect": {"matches": "("}}', "line 1:"),
        ("", "no cases"),
        ('{"id": "a", "input": "a", "expect": {}}\n{"id": "a", "input": "b", "expect": {}}', "two cases are called a"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(evaluated: Any, line: str, said: str):
    result = evaluated([line])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr


def test_an_agent_that_is_not_there_is_refused(tmp_path: Path):
    file = tmp_path / "cases.jsonl"
    file.write_text('{"input": "a", "expect": {}}', "utf-8")
    result = CliRunner().invoke(app, ["evaluate", f"{tmp_path}/none.py:agent", str(file)])
    assert result.exit_code == 2 and "none.py" in result.stderr


def test_each_expected_call_takes_one_that_was_made():
    made = [("f", {"a": 1}), ("f", {"a": 2, "b": 3})]
    both = ExpectedOutcome(calls=[ExpectedCall("f"), ExpectedCall("f", {"a": 1})])
    assert judge(both, ObservedOutcome(calls=made)) == []
    assert judge(ExpectedOutcome(calls=[ExpectedCall("f")]), ObservedOutcome(calls=made)) == [
        'an unexpected call f({"a":2,"b":3})'
    ]
    assert judge(ExpectedOutcome(calls=[ExpectedCall("f")], more_calls=True), ObservedOutcome(calls=made)) == []
    assert judge(ExpectedOutcome(calls=[ExpectedCall("f", {"a": 9})]), ObservedOutcome()) == ['no call f({"a":9})']


def test_values_are_compared_as_json():
    assert contains({"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1.0}]})
    assert not contains({"a": 1}, {"a": True})
    assert not contains([1, 2], [1])
    assert not contains("1", 1)
