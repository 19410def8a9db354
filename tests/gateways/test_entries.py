"""How events lie in a stream, and how the streams of the dead are ended."""

from __future__ import annotations

import random

import pytest

from agent_server.agents import Agent, tool
from agent_server.engines.scripted import Script
from agent_server.runs.broken_streams import closing_events
from agent_server.runs.log import EventLog
from agent_server.runs.sharing.streams import RunPlace, cut, opened
from agent_server.settings import LogLimits, SharingLimits
from events.encode import encode
from events.lifecycle import Verifier
from events.vocabulary import RunError, RunStarted, TextMessageContent
from tests.agents.harness import House
from tests.agents.models import Model, call

PLACE = RunPlace("g", "", "r", "t", "i")


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@pytest.fixture
async def recorded():
    """A run with reasoning, text, calls, results and steps."""
    texts = [Script(text="<think>\nWell.\n</think>\n\nI add." + call("add", a=1, b=2)), Script(text="It is 3, ☃.")]
    async with House(Agent(name="default", tools=[add]), Model(texts)) as house:
        return await house.ask("1 + 2?")


def stored(log: EventLog, limits: SharingLimits):
    """The log as entries, as Redis would give them."""
    after = 0
    while (entry := cut(log, after, limits)) is not None:
        yield str(entry.last).encode() + b"-0", {b"f": str(entry.first).encode(), b"e": entry.data}
        after = entry.last


@pytest.mark.parametrize("size", [1, 100, 10_000])
@pytest.mark.parametrize("events", [1, 3, 1000])
async def test_a_log_comes_back_as_it_was_however_it_was_cut(recorded, size, events):
    log = EventLog(LogLimits())
    for event in recorded:
        log.append(event)
    entries = list(stored(log, SharingLimits(entry=size, entry_events=events)))
    assert [encode(event) for _, event in opened(entries)] == list(map(encode, recorded))
    assert [number for number, _ in opened(entries)] == list(range(1, log.last + 1))


async def test_a_log_that_lost_its_beginning_begins_with_what_it_has(recorded):
    log = EventLog(LogLimits(events=5))
    for event in recorded:
        log.append(event)
    numbers = [number for number, _ in opened(stored(log, SharingLimits(entry=200)))]
    assert numbers == list(range(log.last - 4, log.last + 1))


async def test_wherever_a_run_breaks_off_its_end_is_legal(recorded):
    for length in range(len(recorded)):
        so_far = recorded[:length]
        verifier = Verifier(strict=True)
        for event in [*so_far, *closing_events(enumerate(so_far, 1), PLACE.thread_id, PLACE.run_id)]:
            verifier.check(event)
        assert verifier.phase == "failed"
    assert closing_events(enumerate(recorded, 1), PLACE.thread_id, PLACE.run_id) == []


async def test_without_its_beginning_what_can_be_known_to_be_open_is_closed(recorded):
    for start in range(1, len(recorded)):
        for end in range(start, len(recorded)):
            ends = closing_events(enumerate(recorded[start:end], start + 1), PLACE.thread_id, PLACE.run_id)
            assert isinstance(ends[-1], RunError) and ends[-1].metadata["retryable"] is True
            if isinstance(recorded[end - 1], TextMessageContent) and end - start == 1:
                assert [type(event).__name__ for event in ends] == ["TextMessageEnd", "RunError"]


async def test_events_that_were_sent_twice_count_once(recorded):
    chance = random.Random(7)
    numbered = list(enumerate(recorded[:-1], 1))
    for _ in range(20):
        at = sorted(chance.sample(range(len(numbered)), 2))
        again = numbered[: at[1]] + numbered[at[0] :]
        assert closing_events(again, PLACE.thread_id, PLACE.run_id) == closing_events(
            numbered, PLACE.thread_id, PLACE.run_id
        )
    assert isinstance(recorded[0], RunStarted)
