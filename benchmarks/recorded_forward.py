"""What the recorded forward (`recorded/flat.py`) brings, by the size of the model: the core with it and without.

    python benchmarks/recorded_forward.py [--shape demo 60m 0.6b] [--streams 1 8] [--new 32] [--rounds 3]

Random weights, one CPU thread, greedy. Both cores are loaded once and take turns; tokens per CPU second, the best round
of each, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, Qwen3Config

from agent_server.generation.core.step import Core
from agent_server.generation.loading.loader import load
from agent_server.generation.scheduling.messages import EngineConfig
from benchmarks.engine import BUNDLED, GREEDY, ours, random_prompts

PROMPT = 64
SHAPES = {
    "60m": {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4,
            "head_dim": 64, "intermediate_size": 1536, "vocab_size": 32_000},
    "0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
             "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151_936},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["demo", "60m", "0.6b"], choices=["demo", *SHAPES])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    for shape in options.shape:
        with tempfile.TemporaryDirectory() as folder:
            compare(shape, made(shape, Path(folder)), options)


def made(shape: str, folder: Path) -> Path:
    """The model's folder; a shape other than the bundled model's has random weights, the bundled template and the
    bundled tokenizer, with a word for each further id, so that a server has text to send."""
    if shape == "demo":
        return BUNDLED
    config = Qwen3Config(**SHAPES[shape], max_position_embeddings=4096, tie_word_embeddings=True)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((BUNDLED / name).read_bytes())
    tokenizer = json.loads((BUNDLED / "tokenizer.json").read_bytes())
    words = tokenizer["model"]["vocab"]
    words |= {f"Ġw{number}": number for number in range(len(words), config.vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def compare(shape: str, model: Path, options: argparse.Namespace) -> None:
    cores = {flat: core_of(model, flat, max(options.streams)) for flat in (True, False)}
    vocab = cores[True][1]
    for count in options.streams:
        best = dict.fromkeys(cores, 0.0)
        for seed in range(options.rounds + 1):
            prompts = random_prompts(count, PROMPT, min(vocab, 700), seed)
            for flat, (core, _) in cores.items():
                began = time.process_time()
                tokens = ours(core, prompts, options.new, GREEDY)
                if seed:
                    best[flat] = max(best[flat], tokens / (time.process_time() - began))
        with_it, without = best[True], best[False]
        ratio = with_it / without
        print(f"{shape:>5} {count:>3} streams: {with_it:8.1f} recorded, {without:8.1f} as it is, {ratio:.2f} times")


def core_of(model: Path, flat: bool, streams: int) -> tuple[Core, int]:
    config = EngineConfig(model=str(model), threads=1, max_batch=streams, flatten=flat, kv_cache_bytes=1 << 28)
    core, info = load(config, lambda status: None)
    if flat and not info.details["flat"]:
        raise SystemExit(f"{model} could not be recorded.")
    return core, info.vocab_size


if __name__ == "__main__":
    main()
