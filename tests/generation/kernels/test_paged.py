"""Attention over pages is a float64 reference's, whatever the batch looks like."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agent_server.generation.attention.kernels import paged

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}
DIMS = [(16, 16), (24, 24), (80, 80), (48, 32), (40, 72), (192, 128)]


@dataclass(frozen=True)
class Case:
    """decodes: lengths of the sequences with one query. chunks: keys before each chunk, and its queries."""

    decodes: list
    chunks: list
    group: int
    kv_heads: int
    dims: tuple
    page: int
    dtype: str
    window: int | None
    softcap: float | None
    sinks: bool
    processors: int
    seed: int


cases = st.builds(
    Case,
    decodes=st.lists(st.integers(1, 180), max_size=2),
    chunks=st.lists(st.tuples(st.integers(0, 100), st.integers(1, 40)), max_size=2),
    group=st.sampled_from([1, 2, 3, 4, 7]),
    kv_heads=st.sampled_from([1, 2]),
    dims=st.sampled_from(DIMS),
    page=st.sampled_from([16, 32, 64]),
    dtype=st.sampled_from(sorted(DTYPES)),
    window=st.sampled_from([None, 1, 9, 70]),
    softcap=st.sampled_from([None, 3.0]),
    sinks=st.booleans(),
    processors=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 2**20),
).filter(lambda case: case.decodes or case.chunks)


def reference(queries, keys, values, lengths, starts, how):
    """In float64, sequence by sequence; `keys` and `values` are each one's own, in order."""
    out = []
    for index, (k, v) in enumerate(zip(keys, values, strict=True)):
        first, last = starts[index], starts[index + 1]
        group = queries.shape[1] // k.shape[1]
        k, v = (tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
        scores = torch.einsum("qhd,khd->hqk", queries[first:last].double(), k) * how.scale
        if how.softcap is not None:
            scores = (scores / how.softcap).tanh() * how.softcap
        at = torch.arange(lengths[index] - (last - first), lengths[index])[:, None]
        key = torch.arange(lengths[index])
        seen = (key <= at) if how.window is None else (key <= at) & (at - key < how.window)
        scores = scores.masked_fill(~seen, -torch.inf)
        if how.sinks is not None:
            sinks = how.sinks.double()[:, None, None].expand(-1, last - first, 1)
            scores = torch.cat([scores, sinks], -1)
        weights = scores.softmax(-1)[..., : lengths[index]]
        out.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(out)


class World:
    """A case as tensors. Whatever is in no sequence's pages, and in these beyond its length, is not a number."""

    def __init__(self, case):
        torch.manual_seed(case.seed)
        self.case, dtype = case, DTYPES[case.dtype]
        self.lengths = [*case.decodes, *(before + count for before, count in case.chunks)]
        counts = [1] * len(case.decodes) + [count for _, count in case.chunks]
        self.starts = torch.tensor([0, *counts]).cumsum(0).tolist()
        heads, (key_dim, value_dim) = case.kv_heads * case.group, case.dims
        self.queries = torch.randn(sum(counts), heads, key_dim).to(dtype)
        self.keys = [torch.randn(length, case.kv_heads, key_dim).to(dtype) for length in self.lengths]
        self.values = [torch.randn(length, case.kv_heads, value_dim).to(dtype) for length in self.lengths]
        self.how = paged.AttentionKind(
            key_dim**-0.5, case.window, case.softcap, torch.randn(heads).to(dtype) if case.sinks else None
        )
        self._lay_out(dtype)
        self.ranges = paged.Ranges(
            self.tables,
            torch.tensor(self.lengths, dtype=torch.int32),
            torch.tensor(self.starts, dtype=torch.int32),
            len(case.decodes),
            max(counts),
            max(self.lengths),
        )

    def _lay_out(self, dtype):
        page, case = self.case.page, self.case
        needed = [-(-length // page) for length in self.lengths]
        pages = torch.randperm(sum(needed) + 3)
        self.tables = torch.full((len(needed), max(needed) + 2), len(pages) - 1, dtype=torch.int32)
        self.caches = [torch.full((len(pages) * page, case.kv_heads, dim), torch.nan).to(dtype) for dim in case.dims]
        given = 0
        for index, count in enumerate(needed):
            own = pages[given : given + count]
            given += count
            self.tables[index, :count] = own.int()
            places = (own[:, None] * page + torch.arange(page)).flatten()[: self.lengths[index]]
            paged.store(self.keys[index], self.values[index], places, *self.caches)

    def attend(self):
        case = self.case
        found = paged.attend(self.queries, *self.caches, case.page, self.ranges, self.how, processors=case.processors)
        assert found.dtype == self.queries.dtype
        return found.double()

    def expected(self):
        return reference(self.queries, self.keys, self.values, self.lengths, self.starts, self.how)


def agree(case):
    world = World(case)
    found, wanted = world.attend(), world.expected()
    assert float((found - wanted).abs().max()) < TOLERANCE[case.dtype]


@pytest.fixture(autouse=True)
def short_splits(monkeypatch):
    """So that keys of a test are shared by several programs."""
    monkeypatch.setattr(paged, "LEAST_SPLIT", 32)
    monkeypatch.setattr(paged, "LONGEST_SPLIT", 100)
    monkeypatch.setattr(paged, "KEYS", 32)


@settings(max_examples=12, deadline=None, phases=[Phase.explicit, Phase.generate])  # to shrink would take minutes
@given(cases)
def test_any_batch(case):
    agree(case)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(cases)
def test_any_batch_at_length(case):
    agree(case)


PLAIN = Case([70], [(20, 30)], 2, 1, (16, 16), 16, "float32", None, None, False, 8, 1)


def but(**changes):
    return Case(**{**{name: getattr(PLAIN, name) for name in Case.__dataclass_fields__}, **changes})


@pytest.mark.parametrize(
    "case",
    [
        but(decodes=[1, 33, 64, 65], chunks=[]),
        but(chunks=[(0, 33), (31, 1)], window=9, decodes=[]),
        but(window=40, processors=64, sinks=True, softcap=2.0),
        but(dims=(192, 128), group=4, page=64),
        but(group=20, decodes=[50], chunks=[(3, 4)]),
        but(group=70, decodes=[20], chunks=[(3, 2)]),
        but(dtype="bfloat16", processors=64),
        but(decodes=[700, 1, 40, 33, 90], chunks=[], kv_heads=2, processors=1),
        but(decodes=[700, 3], chunks=[], window=50, sinks=True, processors=1),
    ],
    ids=[
        "decode",
        "chunks",
        "splits",
        "unequal",
        "group 20",
        "group 70",
        "halves",
        "one is long",
        "long with a window",
    ],
)
def test_cases_that_must_not_be_missed(case):
    agree(case)


def test_splits_follow_from_shapes_alone(monkeypatch):
    monkeypatch.setattr(paged, "LONGEST_SPLIT", 4096)
    assert paged.splits_of(8, 40960, 132) == 32, "a single sequence fills the device"
    assert paged.splits_of(8 * 64, 4096, 132) == 1, "many do so without"
    assert paged.splits_of(8 * 64, 40960, 132) == 10, "but one of them may be long"
    assert paged.splits_of(8, 100, 132) == 2, "short keys are hardly split"
    assert paged.splits_of(1, 10**6, 1000) == paged.MOST_SPLITS
