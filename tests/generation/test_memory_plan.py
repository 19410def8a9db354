"""How memory is shared out, and how it is measured, without a device."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_server.generation.execution import graphs
from agent_server.generation.loading import memory_plan, runner_choice
from agent_server.generation.loading.fallback_check import cache_bytes
from agent_server.generation.loading.memory_plan import (
    GIB,
    LOST_AT_LEAST,
    MIB,
    InsufficientMemory,
    MemoryDemand,
    graphs_reserve,
    share_out,
    state_tokens,
)
from agent_server.generation.own_caches.fallback import CachedRunner
from agent_server.generation.own_caches.own_caches import CachesMemory
from agent_server.generation.scheduling.sequence import Sequence
from tests.generation.tiny_models import make_model

QWEN3_8B = {"weights": 16_381_470_720, "per_token": 36 * 8 * (128 + 128) * 2, "vocab": 151_936}


def test_a_card_of_24_gib_serves_a_model_of_8_billion_parameters():
    """Qwen3-8B in bfloat16 with the default of 64 rows: steps of 4,096 tokens (0.2 GiB for gate and up, as much again
    beside it, and 0.7 GiB to sort 64 rows of logits), 36 graphs, and 64 answers of 400 tokens at the least."""
    free = 24 * GIB - 600 * MIB - QWEN3_8B["weights"]
    reserve = graphs_reserve(graphs.graph_count(64, 40_960), 64 + 8, 64 + 512, QWEN3_8B["vocab"], 64 * 1024)
    shares = share_out(
        free, MemoryDemand(QWEN3_8B["per_token"], 64, requested_tokens=2 * 64 * 65_536), step=1200 * MIB, graphs=reserve
    )
    assert shares.tokens > 64 * 400 and shares.tokens % 64 == 0
    assert shares.cache + shares.step + shares.graphs + shares.overhead <= free
    assert reserve < 400 * MIB
    assert str(shares).endswith(f"keys and values {shares.cache / GIB:.2f} GiB")


def test_a_model_that_leaves_nothing_is_refused_with_what_takes_the_memory():
    with pytest.raises(
        InsufficientMemory,
        match=r"0\.50 GiB are free beside the weights; a step takes 0\.39, .* AGENT_SERVER_MAX_BATCH",
    ):
        share_out(512 * MIB, MemoryDemand(147_456, 16, requested_tokens=10**9), step=400 * MIB, graphs=0)


@given(
    free=st.integers(0, 80 * GIB),
    per_token=st.integers(1, 10**6),
    page=st.sampled_from([16, 64, 256]),
    requested_tokens=st.integers(1, 10**7),
    step=st.integers(0, 8 * GIB),
    reserve=st.integers(0, GIB),
)
def test_nothing_is_given_out_twice(free, per_token, page, requested_tokens, step, reserve):
    try:
        shares = share_out(free, MemoryDemand(per_token, page, requested_tokens), step=step, graphs=reserve)
    except InsufficientMemory:
        assert free - step - reserve - LOST_AT_LEAST < 2 * page * per_token + free * 0.03 or requested_tokens < 2 * page
        return
    assert shares.cache == shares.tokens * per_token and shares.tokens <= requested_tokens and shares.tokens % page == 0
    assert shares.cache + shares.step + shares.graphs + shares.overhead <= free


def test_graphs_are_captured_for_short_and_for_long_sequences():
    assert graphs.reaches(1024) == [1024]
    assert graphs.reaches(40_960) == [4096, 40_960]
    assert graphs.reaches(131_072) == [4096, 32_768, 131_072]


def test_the_profiled_step_has_every_row_and_the_whole_budget():
    assert memory_plan._lengths(10, 4) == [3, 3, 2, 2]
    assert memory_plan._lengths(3, 8) == [1, 1, 1]


@pytest.mark.parametrize(
    ("family", "grows", "state"), [("bloom", True, False), ("lfm2", True, True), ("rwkv", False, True)]
)
def test_a_models_own_cache_is_measured(family, grows, state):
    per_token, per_sequence = cache_bytes(CachedRunner(make_model(family), CachesMemory(1), torch.device("cpu")))
    assert (per_token > 0) == grows and (per_sequence > 0) == state
    if family == "bloom":
        assert per_token == 2 * 2 * 48 * 4


def test_sequences_on_caches_of_their_own_are_admitted_as_memory_allows():
    """Each takes what the longest takes, since it is padded to that, and its state."""
    state = state_tokens(per_token=100, per_sequence=1950)
    memory = CachesMemory(200, state=state)
    assert (state, memory.longest) == (20, 180)
    first, second, third = (Sequence(number, [1] * length, length, 90) for number, length in enumerate((30, 39, 9)))
    assert memory.admit(first, alone=True) == 0 and memory.usage == 0.255
    assert memory.admit(second, alone=False) == 0 and memory.usage == 0.6
    assert memory.admit(third, alone=False) == 0 and memory.usage == 0.9
    assert not memory.grow(first, 47), "47 for each of three, and their states"
    assert memory.grow(first, 46) and memory.usage == 0.99
    memory.release(third)
    assert memory.grow(first, 80) and not memory.grow(second, 81)


def test_models_on_caches_of_their_own_get_what_is_free_not_what_they_could_use(monkeypatch):
    from tests.generation.harness import Driver

    monkeypatch.setattr(runner_choice, "free_bytes", lambda device: 10**6)
    driver = Driver(make_model("bloom"), max_batch=64)
    assert driver.info.details["kv_cache_tokens"] == int(10**6 * runner_choice.CPU_SHARE) // (2 * 2 * 48 * 4)
