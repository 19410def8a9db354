"""What slabs hold, through every way in which their bookkeeping moves it."""

import pytest
import torch

from agent_server.generation.attention.batches import KVCache, LayerShape, slab
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.slabs import SlabMemory

LAYERS = [LayerShape(3, 4, 4), LayerShape(2, 4, 8)]
"""Layers of different shapes: their heads lie at different places."""


@pytest.fixture
def memory():
    return SlabMemory(1024, 128)


@pytest.fixture
def cache(memory):
    return KVCache(LAYERS, memory.total, torch.float32, torch.device("cpu"))


def arenas(cache):
    return [*cache.keys, *cache.values]


def admitted(memory, number, tokens, limit, tenant=""):
    sequence = Sequence(number, tokens, len(tokens), limit, tenant=tenant)
    sequence.computed = memory.admit(sequence, alone=False)
    return sequence


def fill(memory, cache, sequence):
    """Compute all its tokens: random numbers, which are returned."""
    held = memory.slab(sequence)
    written = []
    for arena in arenas(cache):
        rows = slab(arena, held.offset, held.size)[:, : len(sequence.tokens)]
        written.append(torch.rand(rows.shape))
        rows.copy_(written[-1])
    sequence.computed = len(sequence.tokens)
    return written


def holds(memory, cache, sequence, written, length):
    held = memory.slab(sequence)
    found = (slab(arena, held.offset, held.size)[:, :length] for arena in arenas(cache))
    return all(torch.equal(a, b[:, :length]) for a, b in zip(found, written, strict=True))


def test_a_slab_that_grows_where_it_lies(memory, cache):
    sequence = admitted(memory, 1, list(range(100)), 101)
    written = fill(memory, cache, sequence)
    assert memory.grow(sequence, 500) and memory.slab(sequence).size == 512
    assert memory.slab(sequence).offset == 0
    cache.copy(memory.copies)
    assert holds(memory, cache, sequence, written, 100)


def test_a_slab_that_moves_to_grow(memory, cache):
    first = admitted(memory, 1, list(range(100)), 101)
    second = admitted(memory, 2, list(range(200, 300)), 101)
    mine, others = fill(memory, cache, first), fill(memory, cache, second)
    assert memory.grow(first, 200) and memory.slab(first).offset != 0
    cache.copy(memory.copies)
    assert holds(memory, cache, first, mine, 100) and holds(memory, cache, second, others, 100)


def test_a_common_beginning_is_copied_to_a_slab_of_another_size(memory, cache):
    first = admitted(memory, 1, list(range(120)), 121)
    written = fill(memory, cache, first)
    memory.publish(first)
    second = admitted(memory, 2, [*range(100), *range(500, 650)], 260)
    assert second.computed == 96 or second.computed == 100
    assert memory.slab(second).size > memory.slab(first).size
    cache.copy(memory.copies)
    assert holds(memory, cache, second, written, second.computed)


def test_growing_twice_before_anything_is_computed(memory, cache):
    """The second order is carried out on what the first one left."""
    sequence = admitted(memory, 1, list(range(100)), 101)
    written = fill(memory, cache, sequence)
    memory.grow(sequence, 200)
    memory.grow(sequence, 900)
    cache.copy(memory.copies)
    assert memory.slab(sequence).size == 1024 and holds(memory, cache, sequence, written, 100)
