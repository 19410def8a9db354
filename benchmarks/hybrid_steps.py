"""A hybrid of linear and full attention in bfloat16: the core beside `generate` on a padded batch, in one run.

    python -m benchmarks.hybrid_steps [--streams 8 32] [--prompt 64] [--new 128] [--layers 24] [--rounds 2]
        [--threads 1] [--dtype bfloat16]

A model of Qwen3.5's shape with random weights, half a billion of them at 24 layers; `generate` runs an untouched copy
of it. The same prompts, greedy, in turns; tokens per second of CPU time, prompts included, the best round of each, and
their ratio. Then the same of decoding alone: what the tokens behind the first took.
"""

from __future__ import annotations

import argparse
import copy
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.engine import random_prompts
from tests.generation.harness import Driver, transformers_own

SHAPE: dict[str, Any] = {
    "vocab_size": 32_000, "hidden_size": 1024, "intermediate_size": 3584, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 8192, "linear_num_value_heads": 16,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128, "tie_word_embeddings": True,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
PERIOD = ["linear_attention"] * 3 + ["full_attention"]
Way = Callable[[list[list[int]], int], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[8, 32])
    for name, default in (("prompt", 64), ("new", 128), ("layers", 24), ("rounds", 2), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    model = make(options)
    driver = Driver(
        copy.deepcopy(model), max_batch=max(options.streams), step_tokens=512, dtype=options.dtype,
        threads=options.threads, flatten=None,
    )  # fmt: skip
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count / 1e6:.0f} M weights, {options.dtype}, {options.threads} threads: {options.prompt} tokens in")
    print(f"{'streams':>8} {'':>8} {'ours':>8} {'generate':>9} {'ratio':>6}")
    ways: dict[str, Way] = {"ours": lambda asked, new: ours(driver, asked, new)}
    ways["generate"] = lambda asked, new: padded(model, asked, new)
    for streams in options.streams:
        report(streams, {new: seconds(ways, streams, new, options) for new in (1, options.new)}, options.new)


def make(options: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    layers = (PERIOD * options.layers)[: options.layers]
    config = CONFIG_MAPPING["qwen3_5_text"](**SHAPE, num_hidden_layers=options.layers, layer_types=layers)
    return AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype)).eval()


def seconds(ways: dict[str, Way], streams: int, new: int, options: argparse.Namespace) -> dict[str, float]:
    """The least CPU time of each way."""
    best = dict.fromkeys(ways, float("inf"))
    for round_ in range(options.rounds):
        asked = random_prompts(streams, options.prompt, 700, 1000 * new + round_)
        for name, way in ways.items():
            began = time.process_time()
            way(asked, new)
            best[name] = min(best[name], time.process_time() - began)
    return best


def report(streams: int, found: dict[int, dict[str, float]], new: int) -> None:
    whole = {name: streams * new / spent for name, spent in found[new].items()}
    behind = {name: streams * (new - 1) / (found[new][name] - found[1][name]) for name in whole}
    for name, rates in (("all", whole), ("decoding", behind)):
        own, other = rates["ours"], rates["generate"]
        print(f"{streams:>8} {name:>8} {own:>8.1f} {other:>9.1f} {own / other:>6.2f}", flush=True)


def ours(driver: Driver, asked: list[list[int]], new: int) -> None:
    numbers = [driver.submit(prompt, max_tokens=new) for prompt in asked]
    driver.finish()
    assert all(len(driver.ids(number)) == new for number in numbers)


@torch.inference_mode()
def padded(model: Any, asked: list[list[int]], new: int) -> None:
    ids = torch.tensor(asked)
    with transformers_own(model):
        model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip


if __name__ == "__main__":
    main()
