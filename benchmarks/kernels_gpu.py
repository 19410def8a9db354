"""The engine's Triton kernels on a GPU: microseconds of a replayed CUDA graph, beside those that the bytes take.

    python benchmarks/kernels_gpu.py [--device cuda:0]

Attention over pages in bfloat16 for decoding sequences of several lengths and for a chunk of a prompt, beside torch's
own attention over the same keys where these have one length; sampling of 1, 64 and 256 rows of a vocabulary of 151,936
with several settings, beside `argmax` and a sort of the same logits; a norm with its residual, rotations and a gate
beside the operations of torch that they replace.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention, silu

from agent_server.generation.attention.batches import LayerShape
from agent_server.generation.execution.graphs import CudaCapture
from agent_server.generation.loading.attention_kernels import TritonKernel, example
from agent_server.generation.recorded.kernels import layers
from agent_server.generation.sampling.fused_sampler import FusedSampler
from agent_server.generation.sampling.sampler import RowSampling
from events.options import SamplingParams

VOCABULARY = 151936
LENGTHS = {
    "1 of 600": [600], "16 of 600": [600] * 16, "64 of 600": [600] * 64, "256 of 600": [600] * 256,
    "16 of 4000": [4000] * 16, "1 of 30000": [30000], "1 of 30000, 63 of 600": [30000] + [600] * 63,
}  # fmt: skip
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=1.0),
    "top_p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top_k 20, top_p 0.95": SamplingParams(temperature=0.6, top_k=20, top_p=0.95),
}


def microseconds(work: Callable[[], object], times: int = 20) -> float:
    """The median of replays of a graph of the call."""
    work()
    replay = CudaCapture()(work)  # type: ignore[arg-type]
    found = []
    for _ in range(times):
        begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begun.record()
        replay()
        ended.record()
        ended.synchronize()
        found.append(begun.elapsed_time(ended) * 1e3)
    return statistics.median(found)


def bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy of 2 GiB."""
    source = torch.empty(2**30, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / (microseconds(lambda: target.copy_(source)) * 1e-6)


def attention(device: torch.device, rate: float) -> None:
    kernel = TritonKernel(torch.cuda.get_device_properties(device).multi_processor_count)
    layer = LayerShape(8, 128, 128)
    for group in (2, 4):
        for name, lengths in LENGTHS.items():
            spans = [(length - 1, length) for length in lengths]
            paging, keys, values, call = example(kernel.page_size, device, torch.bfloat16, layer, spans, group=group)
            own = microseconds(partial(kernel.attend, paging, keys, values, call))
            floor = sum(lengths) * layer.kv_heads * 128 * 2 * 2 / rate * 1e6
            peer = ""
            if len(set(lengths)) == 1:
                shape = len(lengths), layer.kv_heads, lengths[0], 128
                k, v = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(2))
                q = torch.randn(len(lengths), 8 * group, 1, 128, device=device, dtype=torch.bfloat16)
                theirs = microseconds(partial(scaled_dot_product_attention, q, k, v, enable_gqa=True))
                peer = f", torch's on contiguous keys {theirs:.0f}"
            print(f"attention, {group} heads a group, {name}: {own:.0f} us, bytes alone {floor:.0f}{peer}", flush=True)
        for chunk, before in ((512, 0), (2048, 0), (512, 8000)):
            spans = [(before, before + chunk)]
            paging, keys, values, call = example(kernel.page_size, device, torch.bfloat16, layer, spans, group=group)
            own = microseconds(partial(kernel.attend, paging, keys, values, call))
            q = torch.randn(1, 8 * group, chunk, 128, device=device, dtype=torch.bfloat16)
            k, v = (torch.randn(1, 8, chunk, 128, device=device, dtype=torch.bfloat16) for _ in range(2))
            theirs = microseconds(partial(scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=True))
            peer = f", torch's {theirs:.0f}" if not before else ""
            print(f"attention, {group} heads a group, {chunk} queries after {before}: {own:.0f} us{peer}", flush=True)


@torch.inference_mode()
def sampling(device: torch.device) -> None:
    for rows in (1, 64, 256):
        for kind, spread in (("flat", 2.5), ("peaked", 6.0)):
            sampler = FusedSampler(rows, VOCABULARY, device)
            logits = torch.randn(rows, VOCABULARY, device=device) * spread
            index = torch.arange(rows, device=device)
            given = logits, logits, index, torch.zeros_like(index), sampler._parameters
            print(f"sampling {rows} {kind} rows: argmax {microseconds(partial(logits.argmax, -1)):.0f} us", end="")
            print(f", sort {microseconds(partial(torch.sort, logits), 5):.0f} us", end="")
            for name, params in SAMPLING.items():
                for row in range(rows):
                    sampler.set(row, row, RowSampling(params, seed=row), [], [])
                print(f"; {name} {microseconds(partial(sampler._launch.pick, *given)):.0f} us", end="", flush=True)
            print()


def norm_of_sum(x: Tensor, residual: Tensor, weight: Tensor) -> Tensor:
    wide = (x + residual).float()
    return weight * (wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).bfloat16()


def gate(joined: Tensor) -> Tensor:
    left, right = joined.chunk(2, -1)
    return silu(left) * right


@torch.inference_mode()
def fused_layers(device: torch.device) -> None:
    norm = layers.Norm(1e-6, late=True, offset=0.0)
    for rows in (1, 64, 512):
        x, residual = (torch.randn(rows, 4096, device=device, dtype=torch.bfloat16) for _ in range(2))
        weight = torch.ones(4096, device=device, dtype=torch.bfloat16)
        joined = torch.randn(rows, 2 * 12288, device=device, dtype=torch.bfloat16)
        own = microseconds(partial(layers.add_rms_norm, x, residual, weight, norm))
        theirs = microseconds(partial(norm_of_sum, x, residual, weight))
        print(f"norm of a sum, {rows} x 4096: {own:.1f} us, torch's {theirs:.1f}", end="; ")
        own = microseconds(partial(layers.gated, joined, False))
        print(f"gate, {rows} x 12288: {own:.1f} us, torch's {microseconds(partial(gate, joined)):.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device; there is none here.")
    device = torch.device(options.device)
    torch.cuda.set_device(device)
    rate = bandwidth(device)
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}: a copy runs at {rate / 1e12:.2f} TB/s")
    fused_layers(device)
    sampling(device)
    attention(device, rate)


if __name__ == "__main__":
    main()
