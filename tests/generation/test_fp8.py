"""Keys and values in FP8: what is attended is what was kept, and what was kept is near."""

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_server.engine_protocol.protocol import EngineError
from agent_server.generation.attention import fp8
from agent_server.generation.attention.attention import Call
from agent_server.generation.attention.fp8 import FP8, Scales, check_device, pack, unpack
from agent_server.generation.attention.kv_cache import KVCache, LayerShape
from agent_server.generation.attention.paged_batch import PagedBatch, page
from agent_server.generation.loading import fp8_calibration
from agent_server.generation.loading.fp8_calibration import calibrate
from agent_server.generation.loading.loader import load
from agent_server.generation.loading.probe import fit
from agent_server.generation.scheduling.config import EngineConfig
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Sequence
from agent_server.generation.scheduling.step_plan import Chunk, StepPlan
from tests.generation.harness import CPU, Driver, prompts
from tests.generation.tiny_models import make_model, save

PAGE = 4


def reference(call, keys, values, starts):
    """In float64, sequence by sequence, on each one's own keys and values."""
    out = []
    for (first, last), k, v in zip(pairwise(starts), keys, values, strict=True):
        group = call.queries.shape[1] // k.shape[1]
        k, v = (tensor.double().repeat_interleave(group, 1) for tensor in (k, v))
        scores = torch.einsum("qhd,khd->hqk", call.queries[first:last].double(), k) * call.scale
        at, key = torch.arange(len(k) - (last - first), len(k))[:, None], torch.arange(len(k))
        seen = (key <= at) & (at - key < (call.window or len(k)))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out.append(torch.einsum("hqk,khd->qhd", weights, v))
    return torch.cat(out)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 20)), min_size=1, max_size=4),
    window=st.sampled_from([None, 1, 7]),
    group=st.sampled_from([1, 3]),
    largest=st.sampled_from([0.01, 1.0, 300.0]),
    seed=st.integers(0, 2**20),
)
def test_gathered_pages_are_a_references_on_what_was_kept(lengths, window, group, largest, seed):
    """Each sequence is computed in two chunks; keys and values of very unlike size for each head."""
    torch.manual_seed(seed)
    shape = LayerShape(kv_heads=2, key_dim=8, value_dim=12, window=window)
    scales = Scales(torch.rand(2) + 0.01, largest * (torch.rand(2) + 0.01))
    memory = PagedMemory(64, PAGE)
    cache = KVCache([shape], 64 * PAGE, torch.float32, CPU, [scales])
    sequences = []
    for number, (before, after) in enumerate(lengths):
        sequence = Sequence(number, [1] * (before + after), before + after, 64, row=number, state="running")
        memory.admit(sequence, alone=True)
        sequences.append(sequence)
    kept = [([], []) for _ in lengths]
    for part in (0, 1):
        plan = StepPlan(
            [], [Chunk(s, part * b, (b, a)[part], False) for s, (b, a) in zip(sequences, lengths, strict=True)]
        )
        counts = [chunk.length for chunk in plan.chunks]
        new = torch.randn(sum(counts), 2, 8), largest * torch.randn(sum(counts), 2, 12)
        call = Call(torch.randn(sum(counts), 2 * group, 8), *new, None, {"sliding_window": window})
        found = PagedBatch(page(plan, memory, CPU), cache, PAGE, kernel=None).attend(0, call)
        for had, tensor, scale in zip(zip(*kept, strict=True), new, (scales.keys, scales.values), strict=True):
            for some, added in zip(had, as_kept(tensor, scale).split(counts), strict=True):
                some.append(added)
    keys, values = ([torch.cat(parts) for parts in some] for some in zip(*kept, strict=True))
    wanted = reference(call, keys, values, [0, *torch.tensor(counts).cumsum(0).tolist()])
    assert float((found - wanted).abs().max()) < 1e-5 * largest


def as_kept(tensor, scales):
    """By torch's own conversion."""
    return (tensor / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scales[:, None]


def test_numbers_keep_a_sixteenth_over_fifteen_powers_of_two_and_are_cut_off_beyond():
    scales = torch.tensor([0.5])
    numbers = torch.cat([torch.logspace(-6, 8, 200, base=2), torch.tensor([448.0, 449.0, 1e9])])
    for sign in (1, -1):
        given = sign * numbers[:, None, None] * 0.5
        back = unpack(pack(given, scales), scales, torch.float32)
        exact = given[:-2]
        assert ((back[:-2] - exact).abs() <= exact.abs() / 16).all()
        assert (back[-3:] == sign * 224.0).all()
    assert not torch.isnan(unpack(pack(torch.tensor([[[torch.inf]]]), scales), scales, torch.float32)).any()


def test_scales_leave_room_above_what_was_seen():
    model = make_model("mistral-window")
    found = calibrate(model, fit(model))
    seen = fp8_calibration._Largest()
    assert len(found) == 2 and all(scales.keys.shape == scales.values.shape == (2,) for scales in found)
    call = Call(torch.zeros(1, 1, 2), torch.tensor([[[56.0, -3.0]]]), torch.zeros(1, 1, 2), None, {})
    seen.attend(0, call)
    assert fp8_calibration._scale(seen.keys[0]).tolist() == [1.0], "the largest is 56, an eighth of what is held"
    assert fp8_calibration._scale(seen.values[0]).tolist() == [1.0], "nothing is over nothing"


def ids_of(driver, asked, **sampling):
    numbers = [driver.submit(prompt, max_tokens=20, **sampling) for prompt in asked]
    driver.finish()
    return [driver.ids(number) for number in numbers]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt-oss"])
def test_a_token_does_not_depend_on_neighbours_chunks_or_what_is_known(family):
    model = make_model(family)
    asked = prompts(6, seed=8, longest=60)

    def driver(**more):
        return Driver(copy.deepcopy(model), memory="paged", kv_cache_dtype="fp8", max_batch=8, **more)

    crowd, alone = driver(step_tokens=24), driver(step_tokens=512)
    together = ids_of(crowd, asked)
    assert crowd.core.runner.cache.keys[0].dtype == torch.uint8 and crowd.info.details["kv_cache_dtype"] == "fp8"
    assert [ids_of(alone, [prompt])[0] for prompt in asked] == together
    assert ids_of(crowd, asked) == together, "what is cached is what was computed"
    crowd.assert_clean()


def test_log_probabilities_are_near_and_the_memory_holds_more():
    model = make_model("llama")
    found = {}
    for kept in ("auto", "fp8"):
        driver = Driver(
            copy.deepcopy(model), memory="paged", kv_cache_dtype=kept, kv_cache_bytes=2**20, max_batch=4, step_tokens=24
        )
        numbers = [driver.submit(prompt, max_tokens=1, prompt_logprobs=0) for prompt in prompts(4, seed=5)]
        driver.finish()
        scored = [token.logprob for number in numbers for token in driver.end(number).prompt_logprobs[1:]]
        found[kept] = torch.tensor(scored), driver.info.details["kv_cache_tokens"]
    off = (found["auto"][0] - found["fp8"][0]).abs()
    assert 0 < off.mean() < 0.05
    assert found["fp8"][1] == pytest.approx(4 * found["auto"][1], rel=0.01), "this model computes in float32"


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llama", {}, "FP8 are for GPUs; on a CPU leave"),
        ("bloom", {"memory": "paged"}, "runs on caches of its own, which are not kept in FP8"),
    ],
)
def test_where_it_cannot_be_it_is_refused_in_a_sentence(family, options, message, tmp_path):
    folder = save(make_model(family), tmp_path)
    with pytest.raises(EngineError, match=message):
        load(EngineConfig(model=str(folder), kv_cache_dtype="fp8", **options), lambda status: None)


def test_a_torch_that_does_not_convert_is_named(monkeypatch):
    def refusing(tensor, scales):
        raise NotImplementedError('"copy_" not implemented for Float8_e4m3fn\nand more')

    check_device(CPU)
    monkeypatch.setattr(fp8, "pack", refusing)
    with pytest.raises(EngineError, match=r"torch \S+ does not convert to it on cpu .*Float8_e4m3fn\); leave"):
        check_device(CPU)


def test_a_kernel_is_chosen_for_what_is_kept(monkeypatch):
    """torch's own does not read FP8, and is asked."""
    from agent_server.generation.loading import attention_kernels

    asked = []
    monkeypatch.setattr(attention_kernels, "choose", lambda *given: asked.append(given[3]))
    for kept in ("fp8", "auto"):
        Driver(make_model("llama"), memory="paged", kv_cache_dtype=kept)
    assert asked == [FP8, None]
    layer = LayerShape(kv_heads=2, key_dim=64, value_dim=64)
    kernel = attention_kernels.VarlenKernel.__new__(attention_kernels.VarlenKernel)
    assert "float8_e4m3fn" in kernel.refuses(layer, torch.bfloat16, FP8)
    assert kernel.refuses(layer, torch.bfloat16) is None
