"""What later turns and other threads cost on a model that keeps states, beside computing each prompt as a whole.

    python -m benchmarks.hybrid_turns [--threads 4] [--turns 4] [--instructions 600] [--question 100] [--answer 24]

A model of Qwen3.5's shape with random weights: four layers, three of them of linear attention, in float32 on one
thread. Threads begin with the same instructions; a turn's prompt is the thread so far, a question, and four tokens that
open the model's thoughts; the next turn has half of the answer and not what was thought. Each prompt is computed by
the core up to its first token, and by the model's forward from nothing; CPU seconds, and their ratio.
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

from tests.generation.harness import Driver, transformers_own

SHAPE: dict[str, Any] = {
    "vocab_size": 8000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 8192,
    "linear_num_value_heads": 8, "linear_num_key_heads": 8, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"], "bos_token_id": None, "eos_token_id": 2,
}  # fmt: skip
OPENING = [11, 12, 13, 14]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("threads", 4), ("turns", 4), ("instructions", 600), ("question", 100), ("answer", 24)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    config = CONFIG_MAPPING["qwen3_5_text"](**SHAPE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    compare(Driver(copy.deepcopy(model), max_batch=8, step_tokens=512), model, options)


def compare(driver: Driver, model: Any, options: argparse.Namespace) -> None:
    print("| thread | turn | prompt tokens | found | first token, CPU s | whole prompt, CPU s | ratio |")
    print("|---|---|---|---|---|---|---|")
    instructions = text(options.instructions, 0)
    ours = theirs = 0.0
    for thread in range(options.threads):
        history = instructions
        for turn in range(options.turns):
            prompt = history + text(options.question, 1 + thread * options.turns + turn) + OPENING
            number, mine = first_token(driver, prompt, options.answer)
            whole = seconds(lambda prompt=prompt: forward(model, prompt))
            driver.finish()
            found = driver.end(number).usage.cached_tokens
            times = f"{mine:.3f} | {whole:.3f} | {mine / whole:.2f}"
            print(f"| {thread + 1} | {turn + 1} | {len(prompt)} | {found} | {times} |")
            ours, theirs = ours + mine, theirs + whole
            history = prompt[: -len(OPENING)] + driver.ids(number)[options.answer // 2 :]
    print(f"\nAll prompts together take {ours / theirs:.2f} of computing each as a whole.")


def text(length: int, seed: int) -> list[int]:
    found: list[int] = torch.randint(20, 8000, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return found


def first_token(driver: Driver, prompt: list[int], new: int) -> tuple[int, float]:
    number = driver.submit(prompt, max_tokens=new)

    def wait() -> None:
        while not driver.ids(number):
            driver.step()

    return number, seconds(wait)


@torch.inference_mode()
def forward(model: Any, prompt: list[int]) -> None:
    with transformers_own(model):
        model(input_ids=torch.tensor([prompt]), logits_to_keep=1)


def seconds(act: Callable[[], None]) -> float:
    begun = time.process_time()
    act()
    return time.process_time() - begun


if __name__ == "__main__":
    main()
