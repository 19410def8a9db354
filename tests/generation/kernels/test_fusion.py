"""A recorded forward in few launches gives the model's own logits."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb
from triton.runtime.interpreter import InterpretedFunction

from agent_server.generation.attention.batches import KVCache
from agent_server.generation.execution.runner import PackedRunner
from agent_server.generation.loading.attention_kernels import TritonKernel
from agent_server.generation.loading.probe import _LayerRecorder as Recorder
from agent_server.generation.loading.probe import fit, fit_flat
from agent_server.generation.recorded import fusion
from agent_server.generation.recorded.flat import flatten
from agent_server.generation.recorded.kernels import layers
from agent_server.generation.scheduling.pages import PagedMemory
from agent_server.generation.scheduling.sequence import Sequence, StepPlan
from tests.generation.tiny_models import make_model

CPU = torch.device("cpu")
MOST_LAUNCHES = 16


def fused(model):
    """The recording, and the graph behind it."""
    graphs = []

    def how(graph, constants):
        fusion.fuse(graph, constants)
        graphs.append(graph)

    return flatten(model, how), graphs[0]


def agrees(model, flat, tolerance):
    """On three tokens that attend to each other."""
    ids, positions = torch.tensor([7, 301, 44]), torch.arange(3)
    with torch.inference_mode():
        found = flat(ids, positions, None, Recorder())
        mask = torch.zeros(1, 1, 1, 1)
        wanted = model(
            input_ids=ids[None], position_ids=positions[None], attention_mask=mask, use_cache=False, kv=Recorder()
        ).logits[0]
    return float((found - wanted).abs().max() / wanted.abs().max()) < tolerance


def targets(graph):
    return [node.target for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("family", ["llama", "gemma3", "phi3"])
def test_it_gives_the_models_own_logits(family):
    model = make_model(family, num_hidden_layers=1)
    fit(model)
    flat, graph = fused(model)
    assert agrees(model, flat, 1e-5)
    found = targets(graph)
    assert found.count(layers.gated) == 1
    assert found.count(layers.rotate) == (0 if family == "phi3" else 1), "one that turns a part of a head stays"
    norms = found.count(layers.rms_norm) + found.count(layers.add_rms_norm)
    assert norms == (5 if family == "gemma3" else 3), "those of queries and keys go with the rotation"
    assert torch.rsqrt not in found and torch.ops.aten.rsqrt.default not in found


def test_bfloat16_is_near_the_models_own():
    model = make_model("qwen3", num_hidden_layers=1).to(torch.bfloat16)
    fit(model)
    flat, _ = fused(model)
    assert agrees(model, flat, 0.05)


def test_a_fusion_that_is_wrong_is_not_used(monkeypatch):
    model = make_model("llama", num_hidden_layers=1)
    layer_shapes = fit(model)
    right = layers.gated_kernel
    monkeypatch.setattr(layers, "gated_kernel", _other_activation(right))
    flat, _ = fused(model)
    assert not fit_flat(model, layer_shapes, flat)


class _other_activation:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return lambda *given, GELU, **more: self.kernel[grid](*given, GELU=True, **more)


class Launches(TorchDispatchMode):
    """Counts what would be launched on a GPU: torch's operations, but for views and new memory, and Triton's kernels,
    which are not run."""

    FREE = {
        "aten::empty",
        "aten::new_empty",
        "aten::empty_like",
        "aten::_unsafe_view",
        "aten::detach",
        "aten::lift_fresh",
    }

    def __init__(self, monkeypatch):
        super().__init__()
        self.names = []
        monkeypatch.setattr(InterpretedFunction, "run", lambda kernel, *_, **__: self.names.append(kernel.__name__))

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        views = any(given.alias_info and not given.alias_info.is_write for given in function._schema.returns)
        if not views and function._schema.name not in self.FREE:
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def launches(family, count, monkeypatch):
    """Of a step in which two sequences decode, long enough that their keys are split."""
    model = make_model(family, num_hidden_layers=count).to(torch.bfloat16)
    layer_shapes = fit(model)
    flat, _ = fused(model)
    memory = PagedMemory(200, 16)
    cache = KVCache(layer_shapes, 200 * 16, torch.bfloat16, CPU)
    runner = PackedRunner(model, memory, cache, CPU, kernel=TritonKernel(132), flat=flat)
    sequences = [Sequence(number, [5] * 1000, 1000, 2000, row=number, state="running") for number in range(2)]
    for sequence in sequences:
        memory.admit(sequence, alone=False)
        sequence.computed = 1000
    with monkeypatch.context() as patch, Launches(patch) as counted:
        runner.forward(StepPlan(sequences, []), torch.zeros(2, dtype=torch.int64))
    return counted.names


@pytest.mark.parametrize(("family", "expected"), [("llama", 11), ("qwen3", 11), ("gemma3", 13)])
def test_launches_of_a_layer(family, expected, monkeypatch):
    """The difference that a layer makes to a decoding step: products, kernels, and nothing else."""
    fewer, more = (launches(family, count, monkeypatch) for count in (1, 2))
    assert len(more) - len(fewer) == expected <= MOST_LAUNCHES
    assert more.count("combine_kernel") == more.count("store_kernel") == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 80])
def test_norms_are_the_modules_own(width, dtype):
    torch.manual_seed(1)
    x, residual = (torch.randn(3, 2 * width).to(dtype)[:, :width] for _ in range(2))
    for module, norm in (
        (LlamaRMSNorm(width, eps=1e-5), layers.Norm(1e-5, True, 0.0)),
        (Gemma3RMSNorm(width, eps=1e-6), layers.Norm(1e-6, False, 1.0)),
    ):
        module.to(dtype).weight.data.normal_()
        total, normed = layers.add_rms_norm(x, residual, module.weight.data, norm)
        assert torch.equal(total, x + residual)
        near = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2**-7, "atol": 2**-8}
        assert torch.allclose(normed, module(total), **near)
        assert torch.allclose(layers.rms_norm(x, module.weight.data, norm), module(x), **near)


@pytest.mark.parametrize("normed", [False, True])
def test_rotations_are_transformers_own(normed):
    torch.manual_seed(2)
    tokens, heads, kv_heads, dim = 3, 4, 2, 24
    joined = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    queries = joined[:, : heads * dim].view(tokens, heads, dim)
    keys = joined[:, heads * dim : (heads + kv_heads) * dim].view(tokens, kv_heads, dim)
    angles = torch.randn(tokens, dim // 2).repeat(1, 2)
    cosine, sine = angles.cos(), angles.sin()
    signed = torch.cat([-sine[:, : dim // 2], sine[:, dim // 2 :]], -1)
    modules = [LlamaRMSNorm(dim, eps=1e-5) for _ in range(2)]
    for module in modules:
        module.weight.data.normal_()
    given = queries, keys
    more = ()
    if normed:
        given = modules[0](queries), modules[1](keys)
        more = tuple(m.weight.data for m in modules), (layers.Norm(1e-5, True, 0.0),) * 2
    found = layers.rotate(queries, keys, cosine[:, None], signed[:, None], *more)
    wanted = apply_rotary_pos_emb(*(t.transpose(0, 1)[None] for t in given), cosine[None], sine[None])
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other[0].transpose(0, 1), atol=1e-5)


@pytest.mark.parametrize("gelu", [False, True])
def test_gates_are_torchs_own(gelu, monkeypatch):
    monkeypatch.setattr(layers, "BLOCK", 32)
    torch.manual_seed(3)
    joined = torch.randn(2, 160) * 3
    gate, up = joined.chunk(2, -1)
    active = torch.nn.functional.gelu(gate, approximate="tanh") if gelu else torch.nn.functional.silu(gate)
    assert torch.allclose(layers.gated(joined, gelu), active * up, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3-moe", "gpt-oss"])
def test_experts_are_multiplied_without_waiting(family, dtype):
    """Matrices that are stored as they are multiplied (gpt-oss, with a bias), and transposed."""
    model = make_model(family, num_hidden_layers=1).to(dtype)
    fit(model)
    flat, graph = fused(model)
    assert targets(graph).count(layers.grouped_product) == 2
    assert not [target for target in targets(graph) if "grouped_mm" in str(target)]
    assert agrees(model, flat, 1e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("on_hopper", [False, True])
def test_torchs_own_grouped_product_is_used_where_it_reads_sizes_on_the_device(on_hopper, monkeypatch):
    model = make_model("qwen3-moe", num_hidden_layers=1).to(torch.bfloat16)
    fit(model)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0) if on_hopper else (8, 9))
    _, graph = fused(model)
    assert targets(graph).count(layers.grouped_product) == (0 if on_hopper else 2)


@pytest.mark.parametrize(
    "sizes", [[1], [0, 3, 0], [16, 17, 1], [0, 0, 130, 5], [1] * 9, [200, 0, 0, 0, 3]], ids=lambda sizes: str(sizes)
)
@pytest.mark.parametrize("transposed", [False, True])
def test_each_group_gets_its_own_matrix(sizes, transposed):
    """Groups without rows, with one, with more than a tile, and a number of groups that is no power of two."""
    torch.manual_seed(3)
    x = torch.randn(sum(sizes), 2 * 70)[:, :70]
    weights = torch.randn(len(sizes), 100, 70).transpose(1, 2) if transposed else torch.randn(len(sizes), 70, 100)
    ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
    wanted = torch.cat([part @ weight for part, weight in zip(x.split(sizes), weights, strict=True)])
    assert torch.allclose(layers.grouped_product(x, weights, ends), wanted, rtol=1e-5, atol=1e-5)
