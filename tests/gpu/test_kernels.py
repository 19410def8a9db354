"""The kernels in the shapes of released models, beside the same computation in torch."""

import pytest
import torch

from agent_server.generation.attention.batches import LayerShape, attend_gathered
from agent_server.generation.loading.attention_kernels import TritonKernel, choose, example
from agent_server.generation.loading.probe import fit, fit_flat
from agent_server.generation.recorded import fusion
from agent_server.generation.recorded.flat import flatten
from agent_server.generation.sampling.fused_sampler import CHECKED_PARAMS, FusedSampler, agrees, make_sampler
from agent_server.generation.sampling.sampler import RowSampling, Sampler
from events.options import SamplingParams
from tests.gpu.shapes import ATTENTION, VOCABULARIES, random_model

pytestmark = pytest.mark.gpu
BATCHES = {
    "decoding": ((1, 70, 1100, 5), 0),
    "chunk": ((40, 9), 33),
    "long": ((9000, 3), 0),
    "long chunk": ((), 700),
}


@pytest.fixture(scope="module")
def processors(device):
    return torch.cuda.get_device_properties(device).multi_processor_count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("model", ATTENTION)
@torch.inference_mode()
def test_attention_is_that_of_gathered_pages(model, batch, dtype, device, processors):
    layer, group = ATTENTION[model]
    lengths, chunk = BATCHES[batch]
    kernel = TritonKernel(processors)
    spans = [(length - 1, length) for length in lengths] + ([(7, 7 + chunk)] if chunk else [])
    paging, keys, values, call = example(kernel.page_size, device, dtype, layer, spans, group=group)
    kernel.write(call, paging.places, keys.flatten(0, 1), values.flatten(0, 1))
    found, wanted = kernel.attend(paging, keys, values, call), attend_gathered(paging, keys, values, call)
    assert found.isfinite().all()
    apart = (found.float() - wanted.float()).norm() / wanted.float().norm()
    assert float(apart) < {torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]


def test_the_kernel_is_chosen(device):
    """Of all layers together, as when a model is loaded."""
    for layer, _ in ATTENTION.values():
        kernel = choose(device, torch.bfloat16, [layer], [])
        assert kernel is not None and kernel.name == "triton", layer
    assert choose(device, torch.bfloat16, [LayerShape(8, 128, 128)], []).name == "triton"


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_the_sampler_is_chosen_and_keeps_what_the_filters_keep(vocabulary, device):
    assert isinstance(make_sampler(8, vocabulary, device, []), FusedSampler)
    agrees(FusedSampler(len(CHECKED_PARAMS), vocabulary, device))


def test_greedy_rows_with_penalties_are_the_cpus(device):
    torch.manual_seed(8)
    vocabulary, params = 151936, [
        SamplingParams(temperature=0.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3),
        SamplingParams(temperature=0.0, logit_bias={5: 3.0, 11: 40.0}),
        SamplingParams(temperature=0.0, min_tokens=9),
        SamplingParams(temperature=0.0, frequency_penalty=2.0, logprobs=3),
    ]  # fmt: skip
    fused, plain = FusedSampler(4, vocabulary, device), Sampler(4, vocabulary, torch.device("cpu"))
    for sampler in (fused, plain):
        for row, some in enumerate(params):
            sampler.set(row, row, RowSampling(some, seed=50 + row, ends=(2,)), [1, 2, 3], [3, 3, 8])
    logits = torch.randn(4, vocabulary) * 3
    for position in range(6):
        found = fused.sample(logits.to(device), [0, 1, 2, 3], [position] * 4)
        wanted = plain.sample(logits.clone(), [0, 1, 2, 3], [position] * 4)
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert torch.allclose(found.logprobs.cpu(), wanted.logprobs, atol=1e-4)


def test_draws_follow_the_distribution(device):
    """Of the most likely 16 of a large vocabulary, by the whole sampler, 40,000 draws of each row."""
    rows, vocabulary = 64, 32000
    logits = torch.full((rows, vocabulary), -30.0, device=device)
    some = torch.randn(16, generator=torch.Generator().manual_seed(1)).to(device) * 1.5
    logits[:, 7:23] = some
    sampler = FusedSampler(rows, vocabulary, device)
    for row in range(rows):
        sampler.set(row, row, RowSampling(SamplingParams(temperature=1.0, top_p=0.9), seed=row), [], [])
    draws = torch.stack(
        [sampler.sample(logits.clone(), list(range(rows)), [at] * rows).tokens.to("cpu") for at in range(600)]
    )
    weights = some.double().cpu().softmax(-1)
    order = weights.argsort(descending=True)
    kept = int((weights[order].cumsum(0) < 0.9).sum()) + 1
    shares = torch.zeros(16, dtype=torch.float64)
    shares[order[:kept]] = weights[order[:kept]] / weights[order[:kept]].sum()
    found = torch.bincount(draws.flatten() - 7, minlength=16).double()
    assert found[shares == 0].sum() == 0
    wanted = shares * found.sum()
    statistic = float(((found - wanted) ** 2 / wanted)[shares > 0].sum())
    assert statistic < kept - 1 + 5 * (2 * (kept - 1)) ** 0.5


@pytest.mark.parametrize("shape", ["qwen3", "llama", "gemma3"])
def test_fused_layers_give_the_models_own_logits(shape, device):
    model = random_model(shape, device, layers=2)
    layers = fit(model)
    recording = flatten(model, fusion.fuse)
    assert recording is not None and fit_flat(model, layers, recording)
