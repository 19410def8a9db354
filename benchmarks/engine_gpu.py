"""The generation core on a GPU, with random weights in a real model's shape, beside transformers and the hardware.

    python benchmarks/engine_gpu.py [--shapes qwen3-0.6b qwen3-8b] [--streams 1 16 64 256] [--prompt 512] [--new 128]

bfloat16. For each number of streams: tokens per second of our core, of transformers' continuous batching and of
`generate` on a padded batch, and each as a share of the bandwidth limit: the bytes of weights and of keys and values
that a decoding step must read, over the copy bandwidth that is measured at the start. Needs CUDA; says so without.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from engine import GREEDY, continuous, ours, padded, random_prompts
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_server.generation.config import EngineConfig
from agent_server.generation.loader import assemble
from agent_server.model_files import ModelFiles

SHARED = {"head_dim": 128, "num_key_value_heads": 8, "vocab_size": 151936, "max_position_embeddings": 40960}
SHAPES = {
    "qwen3-0.6b": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "tie_word_embeddings": True, **SHARED,
    },
    "qwen3-8b": {
        "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "tie_word_embeddings": False, **SHARED,
    },
}  # fmt: skip
BUNDLED = Path(__file__).parents[1] / "agent_server" / "models" / "demo"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--new", type=int, default=128)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device; there is none here.")
    transformers.utils.logging.set_verbosity_error()
    bandwidth = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}: copies run at {bandwidth / 1e12:.2f} TB/s")
    for shape in options.shapes:
        run(shape, options, bandwidth)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 4 GiB, the best of ten."""
    source = torch.empty(2**31, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(10):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        target.copy_(source)
        torch.cuda.synchronize()
        best = max(best, 2 * source.numel() * 2 / (time.perf_counter() - begun))
    return best


def run(shape: str, options: argparse.Namespace, bandwidth: float) -> None:
    from tokenizers import Tokenizer

    config = Qwen3Config(**SHAPES[shape])
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
        peer = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    files = ModelFiles(tokenizer=Tokenizer.from_file(str(BUNDLED / "tokenizer.json")))
    settings = EngineConfig(model=shape, device="cuda", max_batch=max(options.streams), kv_cache_bytes=24 * 2**30)
    core, info = assemble(settings, model, files, torch.device("cuda"), None)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2
    print(f"{shape}: {info.details}")
    for count in options.streams:
        step = weights + count * (options.prompt + options.new / 2) * per_token
        limit = count * bandwidth / step
        with continuous(peer, count, options.prompt + options.new, page=256, budget=4096) as batching:
            ways = {"continuous": lambda prompts, batching=batching: batching(prompts, options.new)}
            rates = {name: rate(way, count, options, config.vocab_size) for name, way in ways.items()}
        ways = {
            "ours": lambda prompts: ours(core, prompts, options.new, GREEDY),
            "generate": lambda prompts: padded_cuda(peer, prompts, options.new),
        }
        rates |= {name: rate(way, count, options, config.vocab_size) for name, way in ways.items()}
        shown = "  ".join(f"{name} {value:.0f} tok/s ({value / limit:.0%})" for name, value in rates.items())
        print(f"N={count:<4} limit {limit:.0f}  {shown}  x continuous {rates['ours'] / rates['continuous']:.2f}")


def padded_cuda(model: AutoModelForCausalLM, prompts: list[list[int]], new: int) -> int:
    with torch.device("cuda"):
        return padded(model, prompts, new)


def rate(way: Callable, count: int, options: argparse.Namespace, vocab: int) -> float:
    """Tokens per second of the second run, with other prompts than the first."""
    for seed in (1, 2):
        prompts = random_prompts(count, options.prompt, vocab, seed * 1000 + count)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        tokens = way(prompts)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begun
    return tokens / seconds


if __name__ == "__main__":
    main()
