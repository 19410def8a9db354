"""An agent's own sampling parameters and those of a request."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from adapters.request_options import read_options
from agent_server.agents import Agent
from agent_server.agents.effective_options import effective_options
from agent_server.settings import OutputSettings
from events.options import SamplingParams

OWN = SamplingParams(temperature=0.2, presence_penalty=1.5, min_tokens=20, max_tokens=50)


@pytest.mark.parametrize(
    ("asked", "effective"),
    [
        ({}, OWN),
        ({"presence_penalty": 0}, SamplingParams(temperature=0.2, presence_penalty=0.0, min_tokens=20, max_tokens=50)),
        ({"temperature": 0.0, "min_tokens": 0}, SamplingParams(temperature=0.0, presence_penalty=1.5, max_tokens=50)),
        ({"max_tokens": 5}, SamplingParams(temperature=0.2, presence_penalty=1.5, min_tokens=5, max_tokens=5)),
        ({"min_tokens": 70}, SamplingParams(temperature=0.2, presence_penalty=1.5, min_tokens=70, max_tokens=70)),
    ],
)
def test_what_a_request_states_goes_before_what_the_agent_prefers(asked, effective):
    options, _ = read_options(asked)
    made = effective_options(Agent(name="a", sampling=OWN), options).sampling
    assert made == effective
    made.validate()


def test_the_servers_defaults_stand_behind_the_agents():
    options, _ = read_options({"top_p": 1.0})
    defaults = {"temperature": 0.9, "top_p": 0.5, "top_k": 7, "stop": ["x"]}
    made = effective_options(Agent(name="a", sampling=OWN), options, defaults).sampling
    assert (made.temperature, made.top_p, made.top_k, made.stop) == (0.2, 1.0, 7, ("x",))


@pytest.mark.parametrize("wrong", [{"heat": 1}, {"temperature": "hot"}, {"top_p": 2.0}])
def test_defaults_that_no_request_could_have_are_refused(wrong):
    with pytest.raises(ValidationError):
        OutputSettings(sampling=wrong)
