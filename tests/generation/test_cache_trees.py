"""Caches of several sequences as one, and apart again: what each holds stays its own, ending at the right."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_server.generation.own_caches.cache_trees import DifferentLayouts, assemble, learn, leaves, tensor_bytes

WINDOW = 6


class Layer:
    """Keys, keys of a window, a state of each sequence, what is shared, and a count."""

    def __init__(self, rows):
        longest = max(map(len, rows))
        padded = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        self.keys = padded[:, None, :, None].expand(-1, 2, -1, 3).clone()
        self.window = padded[:, -WINDOW:].clone()
        self.states = {0: torch.tensor([[sum(row)] * 4 for row in rows]), 1: None}
        self.shared = torch.tensor(WINDOW)
        self.count = longest
        self.layers = 2


def cache(*rows):
    return [Layer(list(rows)), (Layer(list(rows)), "name")]


LAYOUT = learn(cache([1] * 2), cache([1] * 2, [2] * 2), cache([1] * 24), (2, 24))
row = st.lists(st.integers(1, 99), min_size=1, max_size=12)


def same(left, right):
    one, two = dict(leaves(left)), dict(leaves(right))
    return one.keys() == two.keys() and all(
        torch.equal(one[path], two[path]) if isinstance(one[path], torch.Tensor) else one[path] == two[path]
        for path in one
    )


@given(st.lists(st.lists(row, min_size=1, max_size=3), min_size=1, max_size=3), st.data())
def test_rows_of_several_caches_are_what_one_cache_of_them_would_be(groups, data):
    wanted = [
        data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=len(rows), unique=True))
        for rows in groups
    ]
    left = [rows[at] for rows, some in zip(groups, wanted, strict=True) for at in some]
    parts = [(cache(*rows), some, max(map(len, rows))) for rows, some in zip(groups, wanted, strict=True)]
    before = [cache(*rows) for rows in groups]
    found = assemble(LAYOUT, parts, max(map(len, left)))
    assert same(found, cache(*left))
    assert all(same(part[0], old) for part, old in zip(parts, before, strict=True)), "the parts stay as they are"


def test_a_layout_tells_rows_from_tokens():
    assert LAYOUT.rows[0, "keys"] == 0 and LAYOUT.tokens[0, "keys"] == 2
    assert LAYOUT.rows[0, "states", 0] == 0 and (0, "states", 0) not in LAYOUT.tokens
    assert (0, "shared") not in LAYOUT.rows
    assert LAYOUT.counts == {(0, "count"), (1, 0, "count")} and LAYOUT.pads
    assert tensor_bytes(cache([1])) == 2 * 8 * (6 + 1 + 4 + 1)


def test_caches_that_are_not_laid_out_alike_are_told():
    with pytest.raises(DifferentLayouts, match="no rows"):
        learn([1], [1], [1], (8, 24))
    with pytest.raises(DifferentLayouts, match="other parts"):
        learn([torch.ones(1, 8)], [torch.ones(2, 8), None], [torch.ones(1, 24)], (8, 24))
    with pytest.raises(DifferentLayouts, match="two dimensions"):
        learn([torch.ones(1, 8, 8)], [torch.ones(2, 8, 8)], [torch.ones(1, 24, 24)], (8, 24))
    with pytest.raises(DifferentLayouts, match="other parts"):
        assemble(LAYOUT, [(cache([1] * 8), [0], 8), ([None, (None, "name")], [0], 8)], 8)
