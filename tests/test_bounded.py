"""The bounded cache against a plain model: what was used last stays, within the limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_server.bounded import BoundedCache


def test_the_least_recently_used_entry_is_dropped_first():
    cache: BoundedCache[str, int] = BoundedCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c"), len(cache)) == (1, None, 3, 2)


def test_a_value_that_costs_more_than_the_limit_drops_no_other():
    cache: BoundedCache[str, str] = BoundedCache(10, lambda key, value: len(value))
    cache.put("a", "small")
    cache.put("b", "x" * 11)
    assert cache.get("a") == "small" and cache.get("b") is None and cache.cost == 5
    cache.put("a", "y" * 11)
    assert cache.get("a") is None and cache.cost == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 6))), st.integers(0, 12))
def test_any_use_keeps_the_entries_used_last_that_fit(uses: list[tuple[bool, int, int]], limit: int):
    cache: BoundedCache[int, int] = BoundedCache(limit, lambda key, value: value)
    model: list[tuple[int, int]] = []  # least recently used first
    for writes, key, value in uses:
        if writes:
            cache.put(key, value)
            model = [each for each in model if each[0] != key]
            model += [(key, value)] if value <= limit else []
            while sum(size for _, size in model) > limit:
                model.pop(0)
        else:
            entry = next((each for each in model if each[0] == key), None)
            assert cache.get(key) == (None if entry is None else entry[1])
            if entry is not None:
                model.remove(entry)
                model.append(entry)
        assert len(cache) == len(model) and cache.cost == sum(size for _, size in model)
