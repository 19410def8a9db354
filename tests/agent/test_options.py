"""An agent's own sampling parameters and those of a request."""

from __future__ import annotations

import pytest

from adapters.request_options import read_options
from agent_server.agent import Agent
from agent_server.agent.served import effective_options
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
