"""A forward that cannot be recorded is run as it is, and only the log says so."""

import logging

import pytest

from agent_server.generation.recorded.flat import flatten
from benchmarks.family_shapes import make


def test_what_cannot_be_recorded_is_told_in_one_line(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
):
    model = make("dbrx")  # its experts are asked in a loop over those that the values choose
    with caplog.at_level(logging.INFO, logger="agent_server.generation"):
        assert flatten(model) is None
    told = [record.message for record in caplog.records if record.name == "agent_server.generation"]
    assert len(told) == 1 and told[0].startswith("The model's forward is run as it is: ") and "\n" not in told[0]
    out, err = capfd.readouterr()
    assert "def forward" not in out + err
