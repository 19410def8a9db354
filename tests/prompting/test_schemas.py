"""Validating what a model wrote against a tool's schema."""

from agent_server.prompting.schemas import FORMATS


def test_a_time_may_have_the_leap_second_that_grammars_write():
    assert FORMATS.conforms("23:59:60Z", "time")
    assert FORMATS.conforms("10:10:60.0943-20:53", "time")
    assert not FORMATS.conforms("10:10:61Z", "time")
    assert not FORMATS.conforms("24:10:60Z", "time")
