"""How much one garbage collection may look at, and when everything is looked at."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterator

import pytest

from agent_server.cli.heap import LOOK_SECONDS, MANY_YOUNG, PATIENT_LOOKS, QuietCollector, settle_heap


@pytest.fixture(autouse=True)
def tuned() -> Iterator[None]:
    before = gc.get_threshold()
    settle_heap()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


class Knot:
    """Holds itself, so that only the collector frees it."""

    def __init__(self) -> None:
        self.own = self


def old_knot() -> weakref.ref[Knot]:
    """One that two collections have passed by while it was in use."""
    knot = Knot()
    gc.collect(1)
    return weakref.ref(knot)


def test_no_collection_while_requests_are_read_looks_at_a_large_body_whole():
    looked: list[tuple[int, int]] = []

    def note(phase: str, told: dict[str, int]) -> None:
        if phase == "start":
            generation = told["generation"]
            looked.append((generation, sum(len(gc.get_objects(each)) for each in range(generation + 1))))

    gc.callbacks.append(note)
    try:
        kept = [{"message": [number]} for number in range(150_000)]  # as the values of a large body stay alive
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 150_000 and {generation for generation, _ in looked} == {0}
    assert max(count for _, count in looked) <= 15_000


def test_what_has_grown_old_is_collected_when_nothing_runs():
    knot = old_knot()
    collector = QuietCollector(lambda: False)
    assert collector.look() and knot() is None
    assert not collector.look()  # nothing has grown old since


def test_a_server_that_never_rests_collects_in_the_end():
    knot = old_knot()
    collector = QuietCollector(lambda: True)
    assert not any(collector.look() for _ in range(PATIENT_LOOKS)) and knot() is not None
    assert collector.look() and knot() is None


def test_a_server_that_never_rests_collects_what_survived_many_young_collections():
    collector, knot = QuietCollector(lambda: True), Knot()
    gc.collect(0)
    gone = weakref.ref(knot)
    del knot
    assert not collector.look() and gone() is not None, "few were made"
    for _ in range(MANY_YOUNG):
        gc.collect(0)
    assert not collector.look() and gone() is None


def test_survivors_that_take_long_to_look_at_are_looked_at_less_often(monkeypatch):
    """Beside large requests that waited, a collection of the survivors stopped everybody for 80 ms, every 5 seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def collect(phase: str, told: dict[str, int]) -> None:
        if phase == "start" and told["generation"] == 1:
            now[0] += 0.08
            collected.append(now[0])

    collector, collected = QuietCollector(lambda: True), []
    gc.callbacks.append(collect)
    try:
        for _ in range(12):
            for _ in range(MANY_YOUNG):
                gc.collect(0)
            collector.look()
            now[0] += LOOK_SECONDS
    finally:
        gc.callbacks.remove(collect)
    assert collected == pytest.approx([0.08, 35.16])
